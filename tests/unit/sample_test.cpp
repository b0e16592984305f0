// The public sampling calls at their border: every bad argument gets one clear error and leaves the outputs as they
// were.
#include "shortlist/sample.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "core_environment.hpp"
#include "shortlist/error.hpp"

namespace shortlist {
namespace {

using test::environment_value;

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t kRows = 2;
constexpr std::int64_t kVocab = 4;
constexpr std::int32_t kTopN = 2;
const float kValues[] = {1, 4, 2, 3, 8, 5, 6, 7};
const value_matrix kLogits(kValues, value_type::f32, kRows, kVocab, kVocab);

/// Room for every output, filled with a pattern that must stay.
struct room {
  room() { std::memset(&arrays, kPattern, sizeof(arrays)); }
  sample_output output() {
    sample_output out;
    out.tokens = arrays.tokens;
    out.tokens_as = index_type::i64;
    out.status = arrays.status;
    out.logprobs = arrays.logprobs;
    out.kept = arrays.kept;
    out.top_n = kTopN;
    out.top_tokens = arrays.top_tokens;
    out.top_logprobs = arrays.top_logprobs;
    return out;
  }
  bool is_untouched() const {
    const std::string_view all(reinterpret_cast<const char*>(&arrays), sizeof(arrays));
    return all.find_first_not_of(static_cast<char>(kPattern)) == std::string_view::npos;
  }

  static constexpr unsigned char kPattern = 0xA5;
  struct {
    std::int64_t tokens[kRows];
    sample_status status[kRows];
    float logprobs[kRows];
    std::int32_t kept[kRows];
    std::int32_t top_tokens[kRows * kTopN];
    float top_logprobs[kRows * kTopN];
  } arrays;
};

/// Both calls throw invalid_argument, the message has the part, and nothing was written.
void refuses(const value_matrix& logits, const sample_params& params, const sample_output& out, const room& memory,
             std::string_view part) {
  SCOPED_TRACE(part);
  const std::function<void()> calls[] = {[&] { sample(stream(device::cpu()), logits, params, out); },
                                         [&] { reference_sample(logits, params, out); }};
  for (const auto& call : calls) {
    try {
      call();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const invalid_argument& refusal) {
      const std::string_view message = refusal.what();
      EXPECT_NE(message.find(part), std::string_view::npos) << message;
      EXPECT_NE(message.find("; allowed is "), std::string_view::npos) << message;
    }
    EXPECT_TRUE(memory.is_untouched());
  }
}

void refuses(const value_matrix& logits, std::string_view part) {
  room memory;
  refuses(logits, {}, memory.output(), memory, part);
}
void refuses(const sample_params& params, std::string_view part) {
  room memory;
  refuses(kLogits, params, memory.output(), memory, part);
}

value_matrix strided(std::int64_t rows, std::int64_t vocab, std::int64_t row_stride, std::int64_t col_stride = 1) {
  return {kValues, value_type::f32, rows, vocab, row_stride, col_stride};
}

TEST(Sample, RefusesWrongLogits) {
  const double doubles[] = {1, 2, 3, 4};
  refuses({doubles, value_type::f64, 1, 4, 4}, "logits.type is f64; allowed is f32, f16 or bf16");
  refuses({kValues, static_cast<value_type>(99), 2, 4, 4}, "logits.type is 99; allowed is f32, f16 or bf16");
  refuses(strided(2, 0, 4), "logits.cols is 0; allowed is 1 to 8388607");
  refuses(strided(2, -4, 4), "logits.cols is -4; allowed is 1 to 8388607");
  refuses(strided(2, kMaxVocab + 1, 4), "logits.cols is 8388608; allowed is 1 to 8388607");
  refuses(strided(0, 0, 4), "logits.cols is 0; allowed is 1 to 8388607");
  refuses(strided(-1, 4, 4), "logits.rows is -1; allowed is 0 or more");
  refuses(strided(2, 4, 0), "logits.row_stride is 0; allowed is 1 or more");
  refuses(strided(2, 4, -4), "logits.row_stride is -4; allowed is 1 or more");
  refuses(strided(2, 4, 4, 0), "logits.col_stride is 0; allowed is 1 or more");
  refuses({nullptr, value_type::f32, 2, 4, 4}, "logits.data is null; allowed is 2 rows of 4 columns");
}

TEST(Sample, RefusesWhatNoMemoryHolds) {
  refuses(strided(kHuge, 4, 4), "logits is 9223372036854775807 x 4 with strides 4 and 1; allowed is what 2^60 bytes");
  refuses(strided(2, 4, kHuge), "logits is 2 x 4 with strides 9223372036854775807 and 1");
  refuses(strided(2, 4, 4, kHuge), "logits is 2 x 4 with strides 4 and 9223372036854775807");
  const std::uint8_t bytes[] = {1, 1, 1, 1};
  sample_params params;
  params.bias = {kValues, kHuge};
  refuses(params, "bias.row_stride is 9223372036854775807; allowed is one with which 2^60 bytes hold 2 rows");
  params = {};
  params.allowed = {bytes, mask_kind::bytes, kHuge};
  refuses(params, "allowed.row_stride is 9223372036854775807; allowed is one with which 2^60 bytes hold 2 rows");
  room memory;
  sample_output out = memory.output();
  out.top_n = kMaxTopLogprobs;
  refuses(strided(std::int64_t{1} << 55, 1, 1), {}, out, memory, "out.top_n is 512; allowed is one with which 2^60");
}

TEST(Sample, RefusesParametersOutOfRange) {
  struct rule {
    per_row<float> sample_params::*parameter;
    const char* name;
    const char* allowed;
    std::vector<std::pair<float, const char*>> wrong;
  };
  const rule rules[] = {
      {&sample_params::temperature,
       "temperature",
       "0 or more, and finite",
       {{-0.5f, "-0.5"}, {kInf, "inf"}, {-kInf, "-inf"}, {kNan, "nan"}}},
      {&sample_params::top_p, "top_p", "any number", {{kNan, "nan"}}},
      {&sample_params::min_p, "min_p", "0 to 1", {{-0.25f, "-0.25"}, {1.5f, "1.5"}, {kInf, "inf"}, {kNan, "nan"}}},
      {&sample_params::repetition_penalty,
       "repetition_penalty",
       "above 0, and finite",
       {{0.0f, "0"}, {-1.0f, "-1"}, {kInf, "inf"}, {kNan, "nan"}}},
      {&sample_params::presence_penalty,
       "presence_penalty",
       "any finite number",
       {{kInf, "inf"}, {-kInf, "-inf"}, {kNan, "nan"}}},
      {&sample_params::frequency_penalty,
       "frequency_penalty",
       "any finite number",
       {{kInf, "inf"}, {-kInf, "-inf"}, {kNan, "nan"}}},
  };
  for (const rule& r : rules) {
    for (const auto& [value, text] : r.wrong) {
      sample_params params;
      params.*r.parameter = value;
      const std::string message = std::string(r.name) + " is " + text;
      refuses(params, message + "; allowed is " + r.allowed);
    }
  }
  sample_params params;
  params.min_p_order = static_cast<min_p_order>(7);
  refuses(params, "min_p_order is 7; allowed is last or first");
}

TEST(Sample, RefusesHalfOfAHistory) {
  const std::int64_t begins[] = {0, 1, 1};
  const std::int32_t tokens[] = {2};
  sample_params params;
  params.prompt = {begins, nullptr};
  refuses(params, "prompt.tokens is null; allowed is an array");
  params.prompt = {nullptr, tokens};
  refuses(params, "prompt.begins is null; allowed is an array");
  const std::int64_t no_tokens[] = {0, 0, 0};
  params.prompt = {no_tokens, nullptr};
  params.generated = {begins, nullptr};
  refuses(params, "generated.tokens is null; allowed is an array");
  params.generated = {nullptr, tokens};
  refuses(params, "generated.begins is null; allowed is an array");
}

TEST(Sample, RefusesBeginsThatDecrease) {
  const std::int32_t tokens[] = {2, 3, 0};
  const std::int64_t decreasing[] = {0, 3, 2};
  const std::int64_t negative[] = {-1, 0, 2};
  sample_params params;
  params.prompt = {decreasing, tokens};
  refuses(params, "prompt.begins[2] is 2; allowed is 3 or more");
  params.prompt = {negative, tokens};
  refuses(params, "prompt.begins[0] is -1; allowed is 0 or more");
  params.prompt = {};
  params.generated = {decreasing, tokens};
  refuses(params, "generated.begins[2] is 2; allowed is 3 or more");
}

TEST(Sample, RefusesWrongStridesOfBiasAndMask) {
  const std::uint32_t words[] = {1, 1, 1, 1};
  sample_params params;
  for (const std::int64_t stride : {-4, 1, 3}) {
    params = {};
    params.bias = {kValues, stride};
    refuses(params, "bias.row_stride is " + std::to_string(stride) + "; allowed is 0, or 4 or more");
    params = {};
    params.allowed = {words, mask_kind::bytes, stride};
    refuses(params, "allowed.row_stride is " + std::to_string(stride) + "; allowed is 0, or 4 or more");
  }
  params.allowed = {words, mask_kind::bits, -1};
  refuses(params, "allowed.row_stride is -1; allowed is 0, or 1 or more");
  params.allowed.kind = static_cast<mask_kind>(5);
  refuses(params, "allowed.kind is 5; allowed is bytes or bits");
  const std::vector<float> wide(33, 0.0f);
  params.allowed = {words, mask_kind::bits, 1};
  room memory;
  refuses({wide.data(), value_type::f32, 1, 33, 33}, params, memory.output(), memory,
          "allowed.row_stride is 1; allowed is 0, or 2 or more");
}

TEST(Sample, RefusesWrongOutputs) {
  room memory;
  sample_output out = memory.output();
  out.tokens = nullptr;
  refuses(kLogits, {}, out, memory, "out.tokens is null; allowed is an array of 2 tokens");
  out = memory.output();
  out.tokens_as = static_cast<index_type>(9);
  refuses(kLogits, {}, out, memory, "out.tokens_as is 9; allowed is i32 or i64");
  for (const std::int32_t top_n : {-1, kMaxTopLogprobs + 1}) {
    out = memory.output();
    out.top_n = top_n;
    refuses(kLogits, {}, out, memory, "out.top_n is " + std::to_string(top_n) + "; allowed is 0 to 512");
  }
  out = memory.output();
  out.top_tokens = nullptr;
  out.top_logprobs = nullptr;
  refuses(kLogits, {}, out, memory, "out.top_n is 2; allowed is 0 without out.top_tokens and out.top_logprobs");
  for (const bool with_tokens : {false, true}) {
    out = memory.output();
    out.top_n = 0;
    if (with_tokens) {
      out.top_logprobs = nullptr;
    } else {
      out.top_tokens = nullptr;
    }
    refuses(kLogits, {}, out, memory, "out.top_n is 0; allowed is 1 or more beside");
  }
}

TEST(Sample, OfNoRowsTouchesNothing) {
  room memory;
  const std::int64_t decreasing[] = {3, 2};
  const std::int32_t tokens[] = {0};
  sample_params params;
  params.prompt = {decreasing, tokens};
  sample(stream(device::cpu()), {nullptr, value_type::f32, 0, 4, 0}, params, memory.output());
  reference_sample({nullptr, value_type::bf16, 0, 4, 4}, params, memory.output());
  reference_sample({nullptr, value_type::f32, 0, 4, 4}, {}, {});
  EXPECT_TRUE(memory.is_untouched());
}

TEST(Sample, TakesArraysWhoseCommonValueIsNotLookedAt) {
  const float fine[] = {0.0f, 0.0f};
  room memory;
  sample_params params;
  params.temperature.common = kNan;
  params.temperature.rows = fine;
  reference_sample(kLogits, params, memory.output());
  EXPECT_EQ(memory.arrays.tokens[0], 1);
  EXPECT_EQ(memory.arrays.tokens[1], 0);
}

TEST(Sample, TakesBorderValuesOfAllParameters) {
  room memory;
  sample_params params;
  params.temperature = 0.0f;
  params.top_p = -kInf;
  params.min_p = 1.0f;
  params.top_k = std::numeric_limits<std::int32_t>::min();
  params.repetition_penalty = std::numeric_limits<float>::denorm_min();
  params.bias = {kValues, kVocab};
  sample_output out = memory.output();
  out.top_n = 1;
  out.top_tokens = nullptr;
  reference_sample(kLogits, params, out);
  EXPECT_EQ(memory.arrays.tokens[0], 1);
  EXPECT_EQ(memory.arrays.status[1], sample_status::ok);
}

TEST(Sample, RefusesToExplainAShapeThatIsNone) {
  struct wrong {
    sample_shape shape;
    const char* part;
  };
  const wrong cases[] = {
      {{.rows = 0, .vocab = 4}, "shape.rows is 0; allowed is 1 or more"},
      {{.rows = 1, .vocab = 0}, "shape.vocab is 0; allowed is 1 to 8388607"},
      {{.rows = 1, .vocab = kMaxVocab + 1}, "shape.vocab is 8388608; allowed is 1 to 8388607"},
      {{.rows = 1, .vocab = 4, .type = value_type::f64}, "shape.type is f64; allowed is f32, f16 or bf16"},
  };
  for (const wrong& w : cases) {
    try {
      explain(device::cpu(), w.shape);
      ADD_FAILURE() << "nothing was thrown for " << w.part;
    } catch (const invalid_argument& refusal) {
      EXPECT_NE(std::string_view(refusal.what()).find(w.part), std::string_view::npos) << refusal.what();
    }
  }
}

TEST(Sample, ExplainsItsAlgorithm) {
  const environment_value planned("SHORTLIST_FORCE_SAMPLE", nullptr);
  const sample_shape shape{.rows = 64, .vocab = 128'256};
  EXPECT_NE(explain(device::cpu(), shape).find("algorithm:  cpu_rows"), std::string::npos);
  const environment_value forced("SHORTLIST_FORCE_SAMPLE", "fastest");
  try {
    explain(device::cpu(), shape);
    FAIL() << "nothing was thrown";
  } catch (const invalid_argument& refusal) {
    constexpr std::string_view kPart = "SHORTLIST_FORCE_SAMPLE is fastest; allowed is cpu_rows";
    EXPECT_NE(std::string_view(refusal.what()).find(kPart), std::string_view::npos) << refusal.what();
  }
}

}  // namespace
}  // namespace shortlist
