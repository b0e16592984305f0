// The cases of sampling's tests: what is drawn from which logits, as a line of text, and the choice of few cases out of
// the full product.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shortlist/shortlist.hpp"

namespace shortlist::conformance {

struct named_penalties {
  std::string_view name;
  float repetition;
  float presence;
  float frequency;
};
inline constexpr named_penalties kPenalties[] = {
    {"none", 1.0f, 0.0f, 0.0f},       {"repetition", 1.3f, 0.0f, 0.0f}, {"repetition_below_1", 0.7f, 0.0f, 0.0f},
    {"presence", 1.0f, 0.6f, 0.0f},   {"frequency", 1.0f, 0.0f, 0.1f},  {"all", 1.1f, 0.3f, 0.07f},
    {"negative", 1.0f, -0.5f, -0.2f}, {"huge", 3e38f, 3e38f, 3e38f},
};

/// The most tokens of a row, of which some are repeated, some outside of the vocabulary and some -1 at the end.
struct named_history {
  static constexpr std::int64_t kAbsent = -1;  ///< null `begins`
  std::string_view name;
  std::int64_t prompt;
  std::int64_t generated;
};
inline constexpr named_history kHistories[] = {
    {"no", named_history::kAbsent, named_history::kAbsent},
    {"empty", 0, 0},
    {"short_prompt", 8, named_history::kAbsent},
    {"short_generated", named_history::kAbsent, 8},
    {"short_both", 8, 8},
    {"long_prompt", 5000, named_history::kAbsent},
    {"long_generated", named_history::kAbsent, 5000},
    {"long_both", 3000, 6000},
};

struct named_bias {
  std::string_view name;
  bool is_given;
  bool is_shared;
  bool has_infinities;
};
inline constexpr named_bias kBiases[] = {
    {"no", false, false, false},
    {"shared", true, true, false},
    {"rows", true, false, false},
    {"shared_infinities", true, true, true},
    {"rows_infinities", true, false, true},
};

struct named_mask {
  std::string_view name;
  bool is_given;
  mask_kind kind;
  bool is_shared;
};
inline constexpr named_mask kMasks[] = {
    {"no", false, mask_kind::bytes, false},         {"bytes", true, mask_kind::bytes, false},
    {"shared_bytes", true, mask_kind::bytes, true}, {"bits", true, mask_kind::bits, false},
    {"shared_bits", true, mask_kind::bits, true},
};

/// Which parameters are arrays of a value a row; the others are common.
enum class arrays_of : std::uint8_t { none, seeds, some, all };
struct named_parameters {
  std::string_view name;
  arrays_of arrays;
  bool has_bad_rows;
};
inline constexpr named_parameters kParameters[] = {{"common", arrays_of::none, false},
                                                   {"seed_rows", arrays_of::seeds, false},
                                                   {"some_rows", arrays_of::some, false},
                                                   {"all_rows", arrays_of::all, false},
                                                   {"bad_rows", arrays_of::all, true}};

/// Which arrays are written; the last two only if top_n is not 0.
struct named_answer {
  std::string_view name;
  index_type tokens_as;
  bool status;
  bool logprobs;
  bool kept;
  bool top_tokens;
  bool top_logprobs;
};
inline constexpr named_answer kAnswers[] = {
    {"i32+all", index_type::i32, true, true, true, true, true},
    {"i64+all", index_type::i64, true, true, true, true, true},
    {"i32", index_type::i32, false, false, false, true, false},
    {"i64", index_type::i64, false, false, false, false, true},
    {"i32+status", index_type::i32, true, false, false, true, true},
    {"i64+logprobs", index_type::i64, false, true, false, false, true},
    {"i32+kept", index_type::i32, false, false, true, true, false},
};

inline constexpr std::string_view kMinPOrders[] = {"last", "first"};

struct sample_case {
  value_type type = value_type::f32;
  std::int64_t rows = 1;
  std::int64_t vocab = 1;
  std::int64_t row_gap = 0;  ///< elements between the last of a row and the first of the next
  std::int64_t col_stride = 1;
  std::string_view distribution = "normal_3";
  float temperature = 1.0f;  ///< of all rows; of the first where a parameter is an array, and so below
  std::int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  std::string_view min_p_order = "last";
  std::string_view penalties = "none";
  std::string_view history = "no";
  std::string_view bias = "no";
  std::string_view mask = "no";
  std::string_view parameters = "common";
  std::string_view answer = "i32+all";
  std::int32_t top_n = 0;
  std::uint64_t seed = 1;

  std::int64_t row_stride() const { return (vocab - 1) * col_stride + 1 + row_gap; }
};

struct sample_way {
  device where = device::cpu();
  std::string isa = "-";           ///< on the CPU
  std::string algorithm = "plan";  ///< or what SHORTLIST_FORCE_SAMPLE names
};

/// A case and a way as the line that every failure prints, and back. @throws std::invalid_argument on any other line.
std::string describe(const sample_case& what, const sample_way& how);
std::pair<sample_case, sample_way> parse_sample_case(const std::string& line);

// What cases, and rows' own parameters, are chosen from beside the tables above and logit_distributions(). A
// temperature of 3e38 makes log2e / T a denormal, one of 1e-38 makes it more than 2^100. A filter is often off, since
// each hides what another does.
inline constexpr value_type kLogitTypes[] = {value_type::f32, value_type::f16, value_type::bf16};
inline constexpr std::int64_t kBatches[] = {1, 2, 5, 33};
inline constexpr std::int64_t kVocabs[] = {1,   2,    3,    31,   32,    33,    127,   128,
                                           129, 1000, 4096, 4097, 16385, 32000, 50257, 128256};
inline constexpr float kTemperatures[] = {0.0f, -0.0f, 1e-38f, 1e-6f, 0.5f, 1.0f, 1.7f, 100.0f, 3e38f};
inline constexpr float kTopPs[] = {0.0f,           1e-9f, 0.1f, 0.5f, 0.95f, 0.999f,
                                   0x1.fffffep-1f, 1.0f,  1.0f, 1.0f, 2.0f,  -1.0f};
inline constexpr float kMinPs[] = {0.0f, 0.0f, 0.0f, 1e-40f, 1e-4f, 0.05f, 1.0f};
inline constexpr std::int32_t kTopNs[] = {0, 1, 5, 20, 500};
inline constexpr std::int64_t kAllButOne = -2;  ///< of the vocabulary
inline constexpr std::int64_t kAll = -3;
inline constexpr std::int64_t kMoreThanAll = -4;
inline constexpr std::int64_t kTopKs[] = {0, 0, 0, 1, 2, 50, 64, 65, 1000, 2048, kAllButOne, kAll, kMoreThanAll};

/// One of kTopKs as the parameter's value.
std::int32_t top_k_of(std::int64_t entry, std::int64_t vocab);

/// Cases that have every pair of values of any two factors whose logits are no more than `max_elements`.
std::vector<sample_case> covering_sample_cases(std::int64_t max_elements, std::uint64_t seed);

/// Each filter alone, at every value, over data of few and of many ties.
std::vector<sample_case> filter_sample_cases();

/// Rows that penalties and masks change, every distribution with every mask and history, of which few remain by count:
/// without log-probabilities GPUs do not copy them.
std::vector<sample_case> changed_sample_cases();

/// Rows of which top_k is an array, so that the device alone knows which of them keep few by count: counted, greedy,
/// filtered by top_p or min_p alone, and not at all, in one batch, and without log-probabilities. GPUs that draw from
/// them all at a time have blocks that know each way, one, two, four or eight a row; rows that do not fit so, or have
/// many logits, get two launches. Every distribution, plain and changed; then both sides of each limit.
std::vector<sample_case> array_sample_cases();

/// The vocabularies of models, and both sides of the one at which a GPU changes its algorithm: of these none is left
/// out.
std::vector<sample_case> border_sample_cases();
/// Batches as they are served, and the largest vocabulary: for the full run.
std::vector<sample_case> large_sample_cases();

/// Rows of which much is kept, and those whose weights are hard to guess from a few of their tokens.
std::vector<sample_case> flat_sample_cases();

}  // namespace shortlist::conformance
