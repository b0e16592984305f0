// See sample_cases.hpp.
#include "conformance/sample_cases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <utility>

#include "conformance/harness.hpp"
#include "conformance/pairwise.hpp"
#include "conformance/sample_values.hpp"
#include "conformance/top_k_cases.hpp"

namespace shortlist::conformance {
namespace {

constexpr std::int64_t kLogitGaps[] = {0, 1, 37};
constexpr std::int64_t kLogitStrides[] = {1, 1, 1, 2, 3};  // most cases have the stride that kernels are made for

enum factor : std::size_t {
  type_,
  rows_,
  vocab_,
  row_gap_,
  col_stride_,
  distribution_,
  temperature_,
  top_k_,
  top_p_,
  min_p_,
  min_p_order_,
  penalties_,
  history_,
  bias_,
  mask_,
  parameters_,
  answer_,
  top_n_,
};

choice counts() {
  return {std::size(kLogitTypes),   std::size(kBatches),      std::size(kVocabs),
          std::size(kLogitGaps),    std::size(kLogitStrides), logit_distributions().size(),
          std::size(kTemperatures), std::size(kTopKs),        std::size(kTopPs),
          std::size(kMinPs),        std::size(kMinPOrders),   std::size(kPenalties),
          std::size(kHistories),    std::size(kBiases),       std::size(kMasks),
          std::size(kParameters),   std::size(kAnswers),      std::size(kTopNs)};
}

sample_case case_of(const choice& at) {
  sample_case what;
  what.type = kLogitTypes[at[type_]];
  what.rows = kBatches[at[rows_]];
  what.vocab = kVocabs[at[vocab_]];
  what.row_gap = kLogitGaps[at[row_gap_]];
  what.col_stride = kLogitStrides[at[col_stride_]];
  what.distribution = logit_distributions()[at[distribution_]];
  what.temperature = kTemperatures[at[temperature_]];
  what.top_k = top_k_of(kTopKs[at[top_k_]], what.vocab);
  what.top_p = kTopPs[at[top_p_]];
  what.min_p = kMinPs[at[min_p_]];
  what.min_p_order = kMinPOrders[at[min_p_order_]];
  what.penalties = kPenalties[at[penalties_]].name;
  what.history = kHistories[at[history_]].name;
  what.bias = kBiases[at[bias_]].name;
  what.mask = kMasks[at[mask_]].name;
  what.parameters = kParameters[at[parameters_]].name;
  what.answer = kAnswers[at[answer_]].name;
  what.top_n = kTopNs[at[top_n_]];
  return what;
}

/// The name as the table has it, which outlives the line that it was read from.
template <class Names>
std::string_view known_name(const Names& names, std::string_view name) {
  const auto found = std::find(std::begin(names), std::end(names), name);
  if (found == std::end(names)) throw std::invalid_argument("no choice is named " + std::string(name));
  return *found;
}

/// Parameters that are used together, for cases that are not a covering's.
sample_case with_usual_parameters(sample_case what, std::size_t turn) {
  constexpr std::size_t kTurns = 6;
  switch (turn % kTurns) {
    case 0:
      what.temperature = 0.8f;
      what.top_k = 50;
      what.top_p = 0.95f;
      break;
    case 1: break;
    case 2:
      what.top_p = 0.9f;
      what.penalties = "all";
      what.history = "long_both";
      break;
    case 3:
      what.min_p = 0.05f;
      what.min_p_order = "first";
      what.top_k = 2048;
      what.mask = "bits";
      break;
    case 4:
      what.temperature = 0.0f;
      what.bias = "rows";
      break;
    default:
      what.temperature = 1.7f;
      what.top_p = 0.999f;
      what.parameters = "all_rows";
      what.mask = "shared_bytes";
  }
  return what;
}

}  // namespace

std::string describe(const sample_case& what, const sample_way& how) {
  return fmt::format(
      "op=sample device={} isa={} algorithm={} type={} rows={} vocab={} row_gap={} col_stride={} distribution={} "
      "temperature={} top_k={} top_p={} min_p={} min_p_order={} penalties={} history={} bias={} mask={} parameters={} "
      "answer={} top_n={} seed={}",
      how.where.name(), how.isa, how.algorithm, to_string(what.type), what.rows, what.vocab, what.row_gap,
      what.col_stride, what.distribution, what.temperature, what.top_k, what.top_p, what.min_p, what.min_p_order,
      what.penalties, what.history, what.bias, what.mask, what.parameters, what.answer, what.top_n, what.seed);
}

std::pair<sample_case, sample_way> parse_sample_case(const std::string& line) {
  const replay_line fields(line);
  const auto field = [&](const char* name) -> const std::string& { return fields[name]; };
  const auto number = [&](const char* name) { return std::stoll(field(name)); };
  // Through double, since stof throws on denormals.
  const auto real = [&](const char* name) { return static_cast<float>(std::stod(field(name))); };
  sample_case what;
  what.type = parse_value_type(field("type"));
  what.rows = number("rows");
  what.vocab = number("vocab");
  what.row_gap = number("row_gap");
  what.col_stride = number("col_stride");
  what.distribution = known_name(logit_distributions(), field("distribution"));
  what.temperature = real("temperature");
  what.top_k = static_cast<std::int32_t>(number("top_k"));
  what.top_p = real("top_p");
  what.min_p = real("min_p");
  what.min_p_order = known_name(kMinPOrders, field("min_p_order"));
  what.penalties = named(kPenalties, field("penalties")).name;
  what.history = named(kHistories, field("history")).name;
  what.bias = named(kBiases, field("bias")).name;
  what.mask = named(kMasks, field("mask")).name;
  what.parameters = named(kParameters, field("parameters")).name;
  what.answer = named(kAnswers, field("answer")).name;
  what.top_n = static_cast<std::int32_t>(number("top_n"));
  what.seed = std::stoull(field("seed"));
  return {what, {device::parse(field("device")), field("isa"), field("algorithm")}};
}

std::int32_t top_k_of(std::int64_t entry, std::int64_t vocab) {
  if (entry == kAllButOne) return static_cast<std::int32_t>(vocab - 1);
  if (entry == kAll) return static_cast<std::int32_t>(vocab);
  if (entry == kMoreThanAll) return std::numeric_limits<std::int32_t>::max();
  return static_cast<std::int32_t>(entry);
}

std::vector<sample_case> covering_sample_cases(std::int64_t max_elements, std::uint64_t seed) {
  const auto cost = [&](const choice& at) {
    const std::int64_t elements = kBatches[at[rows_]] * kVocabs[at[vocab_]];
    return elements <= max_elements ? elements : -1;
  };
  random_numbers random(seed);
  std::vector<sample_case> cases;
  for (const choice& at : pairwise_choices({.counts = counts(), .cost = cost}, seed)) {
    cases.push_back(case_of(at));
    cases.back().seed = random.bits() % 1000000;
  }
  return cases;
}

std::vector<sample_case> filter_sample_cases() {
  std::vector<sample_case> cases;
  const auto add = [&](sample_case what) {
    what.rows = 3;
    if (what.vocab == 1) what.vocab = 4097;
    what.type = kLogitTypes[cases.size() % std::size(kLogitTypes)];
    what.parameters = "seed_rows";
    what.seed = 1000 + cases.size();
    cases.push_back(what);
  };
  for (const std::string_view distribution : {"normal", "normal_3", "ties_90", "all_equal", "coarse"}) {
    for (const std::int32_t top_k : {1, 2, 50, 64, 65, 111, 112, 113, 511, 512, 513, 1024, 2047, 2048, 2049, 4096}) {
      add({.distribution = distribution, .top_k = top_k});
    }
    for (const float top_p : kTopPs) add({.distribution = distribution, .top_p = top_p});
    for (const float min_p : kMinPs) add({.distribution = distribution, .min_p = min_p});
    for (const float temperature : kTemperatures) add({.distribution = distribution, .temperature = temperature});
  }
  // As many as all tokens, and more: top_k is off.
  for (const std::int64_t vocab : {33, 100, 4097}) {
    for (const std::int64_t entry : {vocab, vocab + 7, kMoreThanAll}) {
      for (const float top_p : {1.0f, 0.5f}) {
        add({.vocab = vocab, .distribution = "normal", .top_k = top_k_of(entry, vocab), .top_p = top_p});
      }
    }
  }
  // Of 2^12 equal tokens top_p keeps two from P = 2^20 + 1 on: P is 2^20 and 3, 4, 5 and 12 eighths here.
  for (const float top_p : {0x1.000006p-12f, 0x1.000008p-12f, 0x1.00000ap-12f, 0x1.000018p-12f}) {
    add({.vocab = 4096, .distribution = "all_equal", .top_p = top_p});
  }
  // Without log-probabilities GPUs have other ways.
  const std::size_t count = cases.size();
  for (std::size_t i = 0; i < count; ++i) {
    cases.push_back(cases[i]);
    cases.back().answer = "i32+status";
  }
  return cases;
}

std::vector<sample_case> changed_sample_cases() {
  constexpr std::int64_t kSizes[] = {4097, 33, 16'385, 1000, 4096, 50'257, 31};
  constexpr std::int32_t kCounts[] = {50, 1, 2, 112, 64};
  constexpr std::string_view kPlainAnswers[] = {"i32+status", "i64", "i32+kept"};
  std::vector<sample_case> cases;
  const auto turn = [&](const auto& values) { return values[cases.size() % std::size(values)]; };
  for (const std::string_view distribution : logit_distributions()) {
    for (const named_mask& mask : kMasks) {
      for (const named_history& history : kHistories) {
        if (!mask.is_given && history.prompt <= 0 && history.generated <= 0) continue;
        const std::size_t i = cases.size();
        cases.push_back({.type = turn(kLogitTypes),
                         .rows = 1 + static_cast<std::int64_t>(i % 4),
                         .vocab = turn(kSizes),
                         .row_gap = kLogitGaps[i / 2 % std::size(kLogitGaps)],
                         .distribution = distribution,
                         .temperature = i % 11 == 0 ? 0.0f : 0.8f,
                         .top_k = turn(kCounts),
                         .top_p = i % 2 == 0 ? 0.95f : 1.0f,
                         .min_p = i % 5 == 0 ? 0.01f : 0.0f,
                         .penalties = kPenalties[1 + i % (std::size(kPenalties) - 1)].name,
                         .history = history.name,
                         .mask = mask.name,
                         .parameters = kParameters[(i + i / 5) % std::size(kParameters)].name,
                         .answer = turn(kPlainAnswers)});
        cases.back().top_k = std::min(cases.back().top_k, static_cast<std::int32_t>(cases.back().vocab - 1));
        cases.back().seed = 7000 + i;
      }
    }
  }
  return cases;
}

std::vector<sample_case> array_sample_cases() {
  // On 132 multiprocessors, each of which holds two blocks: rows of one block, of two, of four, of eight, and of one
  // again where nearly all places are taken.
  struct rows_of {
    std::int64_t rows;
    std::int64_t wide_vocab;    // of fp32
    std::int64_t narrow_vocab;  // of 16 bits
  };
  constexpr rows_of kShapes[] = {
      {33, 1000, 4097}, {70, 8193, 12'289}, {32, 16'385, 20'001}, {9, 32'769, 50'257}, {140, 2001, 8191}};
  struct change {
    std::string_view history;
    std::string_view bias;
    std::string_view mask;
    std::int64_t col_stride;
  };
  constexpr change kChanges[] = {{"no", "no", "no", 1},
                                 {"long_both", "no", "no", 1},
                                 {"no", "no", "no", 1},
                                 {"no", "no", "bits", 1},
                                 {"short_both", "no", "bytes", 1},
                                 {"no", "no", "no", 1},
                                 {"long_generated", "rows", "shared_bits", 2}};
  constexpr std::string_view kPlainAnswers[] = {"i32+status", "i64", "i32+kept"};
  std::vector<sample_case> cases;
  const auto turn = [&](const auto& values) { return values[cases.size() % std::size(values)]; };
  const auto add = [&](sample_case what) {
    what.answer = turn(kPlainAnswers);
    cases.push_back(what);
    cases.back().seed = 8000 + cases.size();
  };
  for (const std::string_view distribution : logit_distributions()) {
    for (const rows_of& shape : kShapes) {
      const std::size_t i = cases.size();
      const value_type type = kLogitTypes[i / 2 % std::size(kLogitTypes)];
      const change& by = turn(kChanges);
      add({.type = type,
           .rows = shape.rows,
           .vocab = type == value_type::f32 ? shape.wide_vocab : shape.narrow_vocab,
           .row_gap = kLogitGaps[i / 4 % std::size(kLogitGaps)],
           .col_stride = by.col_stride,
           .distribution = distribution,
           .temperature = 0.8f,
           .top_p = 0.9f,
           .penalties = by.history == "no" ? "none" : "all",
           .history = by.history,
           .bias = by.bias,
           .mask = by.mask,
           .parameters = i % 4 == 3 ? "bad_rows" : "all_rows"});
    }
  }
  // Arrays beside parameters in common. Which are arrays, the case's seed says: its bits that are 0, temperature's the
  // lowest, then top_k's, top_p's, min_p's, those of the seed and the offset, and of the penalties.
  constexpr std::uint64_t kTopKAlone = 0b1'1100'1101;
  constexpr std::uint64_t kTopKAndTopP = 0b1'1100'1001;
  constexpr std::uint64_t kAllButTopK = 0b0'0000'0010;  // all rows are weighed
  const auto add_some = [&](std::uint64_t arrays, sample_case what) {
    what.type = turn(kLogitTypes);
    what.parameters = "some_rows";
    add(what);
    cases.back().seed = arrays;
  };
  for (const auto& [rows, vocab] : {std::pair{33, 1000}, std::pair{20, 32'000}}) {
    const sample_case base{.rows = rows, .vocab = vocab, .temperature = 0.8f};
    sample_case filtered = base;
    filtered.top_p = 0.9f;
    add_some(kTopKAlone, filtered);
    add_some(kTopKAndTopP, base);
    add_some(kAllButTopK, base);
    filtered.min_p = 0.05f;
    add_some(kTopKAlone, filtered);
    filtered.top_p = 1.0f;  // behind min_p it has a kernel of its own
    filtered.min_p_order = "first";
    add_some(kTopKAlone, filtered);
  }
  // As many rows as places, and one more; logits of as many bytes as a block holds; and of all rows 3 << 21.
  const auto add_many = [&](sample_case what) {
    what.top_k = 50;
    what.parameters = "all_rows";
    add(what);
  };
  add_many({.rows = 264, .vocab = 999});
  add_many({.rows = 265, .vocab = 999});
  add_many({.rows = 133, .vocab = 32'768});
  add_many({.rows = 133, .vocab = 32'769});
  add_many({.rows = 48, .vocab = 131'071});
  add_many({.rows = 48, .vocab = 131'072});
  add_many({.type = value_type::bf16, .rows = 48, .vocab = 131'072, .history = "long_both", .mask = "bytes"});
  add_many({.type = value_type::f16, .rows = 48, .vocab = 131'072, .bias = "shared"});
  return cases;
}

std::vector<sample_case> border_sample_cases() {
  std::vector<sample_case> cases;
  const auto add = [&](sample_case what) {
    what = with_usual_parameters(what, cases.size());
    what.seed = 100 + cases.size();
    cases.push_back(what);
  };
  constexpr std::string_view kData[] = {"peaked", "all_equal", "ties_90",         "narrow_band",
                                        "normal", "coarse",    "mostly_minus_inf"};
  std::size_t turn = 0;
  for (const std::int64_t vocab : {16'385, 32'000, 50'257, 128'256}) {
    for (const value_type type : kLogitTypes) {
      add({.type = type, .rows = 2, .vocab = vocab, .distribution = kData[turn++ % std::size(kData)], .top_n = 20});
    }
  }
  for (const std::int64_t vocab : {262'143, 262'144, 262'145, 300'001}) {
    add({.vocab = vocab, .distribution = "peaked", .top_n = 5});
    add({.type = value_type::bf16, .vocab = vocab, .distribution = kData[turn++ % std::size(kData)]});
  }
  // Rows that a GPU whose algorithm is forced draws from by two launches, since they alone tell which of them serves
  // them; as planned, so many have one.
  for (const auto& [type, tokens] : {std::pair{value_type::f32, 130'001}, std::pair{value_type::bf16, 250'003}}) {
    for (const std::string_view mask : {"no", "bits"}) {
      cases.push_back({.type = type,
                       .rows = 6,
                       .vocab = tokens,
                       .distribution = kData[turn++ % std::size(kData)],
                       .top_p = 0.9f,
                       .mask = mask,
                       .parameters = "all_rows",
                       .answer = "i32+status",
                       .seed = 100 + cases.size()});
    }
  }
  // More rows than a GPU has blocks at a time.
  add({.rows = 5000, .vocab = 100, .parameters = "all_rows"});
  add({.type = value_type::f16, .rows = 3000, .vocab = 33, .row_gap = 2, .top_n = 5});
  return cases;
}

std::vector<sample_case> flat_sample_cases() {
  // Of as many bytes that GPUs have a row on eight multiprocessors, on two, on half of one, on two halves, and on a
  // quarter.
  struct rows_of {
    std::int64_t rows;
    std::int64_t wide_vocab;    // of fp32
    std::int64_t narrow_vocab;  // of 16 bits
  };
  constexpr rows_of kShapes[] = {
      {2, 130'001, 250'003}, {40, 40'007, 70'000}, {140, 20'001, 50'257}, {135, 33'001, 65'601}, {301, 8'001, 16'383}};
  constexpr float kWarm[] = {1.5f, 3.0f, 0.8f, 100.0f, 1.0f};
  constexpr float kKept[] = {0.95f, 1.0f, 0.5f, 0.999f};
  constexpr float kLeasts[] = {0.0f, 0.0f, 0.01f, 0.0f, 0.0f, 0.3f, 1e-4f};
  constexpr std::string_view kOutputs[] = {"i32+kept", "i32+all", "i64+logprobs"};
  std::vector<sample_case> cases;
  const auto turn = [&](const auto& values) { return values[cases.size() % std::size(values)]; };
  for (const rows_of& shape : kShapes) {
    for (const std::string_view distribution : logit_distributions()) {
      for (int i = 0; i < 5; ++i) {
        const value_type type = turn(kLogitTypes);
        cases.push_back({.type = type,
                         .rows = shape.rows,
                         .vocab = type == value_type::f32 ? shape.wide_vocab : shape.narrow_vocab,
                         .row_gap = turn(kLogitGaps),
                         .distribution = distribution,
                         .temperature = turn(kWarm),
                         .top_p = turn(kKept),
                         .min_p = turn(kLeasts),
                         .min_p_order = kMinPOrders[cases.size() / 4 % std::size(kMinPOrders)],
                         .parameters = cases.size() % 4 == 0 ? "all_rows" : "seed_rows",
                         .answer = turn(kOutputs)});
        cases.back().seed = cases.size();
      }
    }
  }
  return cases;
}

std::vector<sample_case> large_sample_cases() {
  std::vector<sample_case> cases;
  for (const std::string_view distribution : logit_distributions()) {
    for (const std::int64_t vocab : {128'256, 262'144, 262'145}) {
      const value_type type = kLogitTypes[cases.size() % std::size(kLogitTypes)];
      cases.push_back(with_usual_parameters(
          {.type = type, .rows = 8, .vocab = vocab, .distribution = distribution, .top_n = 20}, cases.size()));
      cases.back().seed = cases.size();
    }
  }
  // Rows that top_p alone filters, of which a GPU holds each on several multiprocessors where no log-probabilities are
  // asked for.
  constexpr std::string_view kWithoutLogprobs = "i32+kept";
  for (const std::string_view distribution : logit_distributions()) {
    for (const value_type type : {value_type::f32, value_type::bf16}) {
      const std::size_t i = cases.size();
      cases.push_back({.type = type,
                       .rows = 3,
                       .vocab = type == value_type::f32 ? 130'001 : 250'003,
                       .row_gap = 3,
                       .distribution = distribution,
                       .top_p = kTopPs[i % std::size(kTopPs)],
                       .min_p = i % 3 == 0 ? 0.01f : 0.0f,
                       .parameters = "seed_rows",
                       .answer = kWithoutLogprobs});
      cases.back().seed = i;
      cases.push_back({.type = type,
                       .rows = 40,
                       .vocab = 70'000,
                       .distribution = distribution,
                       .top_p = 0.9f,
                       .answer = kWithoutLogprobs});
      cases.back().seed = i;
    }
  }
  // The same of so many rows that they follow each other.
  for (const std::string_view distribution : {"normal", "peaked", "all_equal", "ties_90", "mostly_minus_inf"}) {
    cases.push_back(
        {.rows = 130, .vocab = 110'000, .distribution = distribution, .top_p = 0.9f, .answer = kWithoutLogprobs});
    cases.push_back({.type = value_type::bf16,
                     .rows = 130,
                     .vocab = 215'000,
                     .distribution = distribution,
                     .top_p = 0.5f,
                     .parameters = "seed_rows",
                     .answer = kWithoutLogprobs});
    cases.push_back({.type = value_type::f16,
                     .rows = 135,
                     .vocab = 125'001,
                     .distribution = distribution,
                     .temperature = 0.8f,
                     .top_p = 0.9f,
                     .answer = kWithoutLogprobs});
  }
  cases.push_back({.type = value_type::bf16, .rows = 64, .vocab = 128'256, .top_k = 50, .top_p = 0.95f});
  // Batches as servers hold them, whose parameters are arrays.
  for (const std::string_view history : {"no", "long_both"}) {
    for (const value_type type : {value_type::bf16, value_type::f32}) {
      cases.push_back({.type = type,
                       .rows = 64,
                       .vocab = 128'256,
                       .top_k = 50,
                       .top_p = 0.95f,
                       .penalties = "all",
                       .history = history,
                       .parameters = "all_rows",
                       .answer = "i32+kept"});
    }
  }
  cases.push_back({.vocab = kMaxVocab, .distribution = "all_equal", .top_p = 0.5f});
  // Rows that are changed some after the others, for all of them would take too much memory.
  cases.push_back({.type = value_type::bf16,
                   .rows = 10,
                   .vocab = kMaxVocab,
                   .top_k = 50,
                   .penalties = "all",
                   .history = "long_both",
                   .bias = "shared",
                   .mask = "bits",
                   .parameters = "all_rows",
                   .answer = "i32+status"});
  // The same of rows that are not copied.
  cases.push_back({.type = value_type::bf16,
                   .rows = 60,
                   .vocab = 1'000'000,
                   .top_k = 50,
                   .penalties = "all",
                   .history = "long_both",
                   .mask = "bits",
                   .parameters = "seed_rows",
                   .answer = "i32+status"});
  cases.push_back({.type = value_type::f16, .rows = 2, .vocab = kMaxVocab, .top_n = 500});
  return cases;
}

}  // namespace shortlist::conformance
