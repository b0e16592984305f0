// Verifies and times sampling. See logits_bench.hpp.
#include "logits_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <stdexcept>

#include "parallel.hpp"
#include "random.hpp"
#include "read_speed.hpp"

namespace shortlist::benchmark {
namespace {

constexpr std::int64_t kCheckedValues = std::int64_t{1} << 23;  // the oracle sorts so many in about half a second
constexpr std::int64_t kCheckedOnGpu = std::int64_t{1} << 22;
constexpr std::byte kPoison{0xA5};  // no right output has these bytes everywhere: what was not written is seen

constexpr std::uint64_t kRowsSeed = 11;
constexpr std::int64_t kPromptTokens = 1000;
constexpr std::int64_t kGeneratedTokens = 200;
constexpr std::uint64_t kGeneratedOf = 100;  // of the prompt's first ones, so that tokens are there more than once
constexpr float kRepetitionPenalty = 1.1f;
constexpr float kPresencePenalty = 0.3f;
constexpr float kFrequencyPenalty = 0.2f;
constexpr std::uint64_t kOffset = 7;
constexpr std::int32_t kTopTokens = 5;

std::int64_t mask_words_of(const sample_job& job) { return (job.vocab + 31) / 32; }

/// Where the outputs of `rows` rows stand in one piece of memory: int32 and fp32 first, then the bytes of status.
struct output_layout {
  std::int64_t rows;
  std::int64_t top;
  bool with_logprobs;

  output_layout(const sample_job& job, std::int64_t rows)
      : rows(rows),
        top(job.extra == sample_extra::logprobs ? kTopTokens : 0),
        with_logprobs(job.extra == sample_extra::logprobs) {}

  std::int64_t words() const { return rows * ((with_logprobs ? 3 : 2) + 2 * top); }
  std::int64_t bytes() const { return words() * 4 + rows; }
  /// Of the rows from `row` on.
  sample_output in(std::byte* memory, std::int64_t row = 0) const {
    auto* words_of = reinterpret_cast<std::int32_t*>(memory);
    sample_output out;
    out.tokens = words_of + row;
    out.kept = words_of + rows + row;
    out.status = reinterpret_cast<sample_status*>(memory + words() * 4) + row;
    if (!with_logprobs) return out;
    out.logprobs = reinterpret_cast<float*>(words_of + 2 * rows) + row;
    out.top_n = static_cast<std::int32_t>(top);
    out.top_tokens = words_of + 3 * rows + row * top;
    out.top_logprobs = reinterpret_cast<float*>(words_of + (3 + top) * rows) + row * top;
    return out;
  }
};

/// The first difference within one row, in words.
std::optional<std::string> difference(const sample_output& found, const sample_output& right) {
  const auto token = [](const sample_output& of) { return *static_cast<const std::int32_t*>(of.tokens); };
  const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
  if (*found.status != *right.status) {
    return fmt::format("status {}, expected {}", static_cast<int>(*found.status), static_cast<int>(*right.status));
  }
  if (token(found) != token(right)) return fmt::format("token {}, expected {}", token(found), token(right));
  if (*found.kept != *right.kept) return fmt::format("{} kept tokens, expected {}", *found.kept, *right.kept);
  if (right.logprobs && bits(*found.logprobs) != bits(*right.logprobs)) {
    return fmt::format("log-probability of bits {:08x}, expected {:08x}", bits(*found.logprobs), bits(*right.logprobs));
  }
  for (std::int32_t i = 0; i < right.top_n; ++i) {
    if (found.top_tokens[i] != right.top_tokens[i] || bits(found.top_logprobs[i]) != bits(right.top_logprobs[i])) {
      return fmt::format("top token {}: {} (bits {:08x}), expected {} (bits {:08x})", i, found.top_tokens[i],
                         bits(found.top_logprobs[i]), right.top_tokens[i], bits(right.top_logprobs[i]));
    }
  }
  return std::nullopt;
}

nlohmann::ordered_json fields_of(const sample_truth& right, const nlohmann::ordered_json& more) {
  nlohmann::ordered_json fields = {{"checked_rows", right.rows()}, {"mean_kept", right.mean_kept()}};
  if (more.is_object()) fields.update(more);
  return fields;
}

}  // namespace

std::string work_name(const sample_job& job, std::string_view place) {
  std::string name = fmt::format("sample/{}x{}/{}/t{:g}", job.rows, job.vocab, to_string(job.type), job.temperature);
  if (job.top_k > 0) name += fmt::format("-k{}", job.top_k);
  if (job.top_p < 1) name += fmt::format("-p{:g}", job.top_p);
  if (job.min_p > 0) name += fmt::format("-minp{:g}", job.min_p);
  if (!place.empty()) name += fmt::format("/{}", place);
  if (job.arrays) name += "/arrays";
  if (job.extra == sample_extra::logprobs) name += "/logprobs";
  if (job.extra == sample_extra::penalties) name += "/penalties";
  if (job.extra == sample_extra::mask) name += "/mask";
  return name;
}

sample_rows::sample_rows(const sample_job& job) : job_(job) {
  const bool with_tokens = job.extra == sample_extra::penalties;
  const std::int64_t begins_bytes = with_tokens ? (job.rows + 1) * 8 : 0;
  const std::int64_t mask_words = job.extra == sample_extra::mask ? mask_words_of(job) : 0;
  parameters_at_ = job.rows * 8;
  mask_at_ = parameters_at_ + (job.arrays ? (job.rows * 3 + 1) / 2 * 8 : 0);
  prompt_begins_at_ = mask_at_ + (job.rows * mask_words + 1) / 2 * 8;
  generated_begins_at_ = prompt_begins_at_ + begins_bytes;
  prompt_at_ = generated_begins_at_ + begins_bytes;
  generated_at_ = prompt_at_ + (with_tokens ? job.rows * kPromptTokens * 4 : 0);
  memory_.resize(static_cast<std::size_t>(generated_at_ + (with_tokens ? job.rows * kGeneratedTokens * 4 : 0)));

  const auto put = [&](std::int64_t at, std::int64_t i, auto value) {
    std::memcpy(memory_.data() + at + i * static_cast<std::int64_t>(sizeof value), &value, sizeof value);
  };
  for (std::int64_t r = 0; r < job.rows; ++r) {
    random_row random(kRowsSeed, r);
    put(0, r, random.next());
    if (job.arrays) {
      put(parameters_at_, r, job.temperature);
      put(parameters_at_, job.rows + r, job.top_k);
      put(parameters_at_, job.rows * 2 + r, job.top_p);
    }
    for (std::int64_t i = 0; i < mask_words; ++i)
      put(mask_at_, r * mask_words + i, static_cast<std::uint32_t>(random.next() >> 32));
    if (!with_tokens) continue;
    std::vector<std::int32_t> prompt(kPromptTokens);
    std::ranges::generate(
        prompt, [&] { return static_cast<std::int32_t>(random.next() % static_cast<std::uint64_t>(job.vocab)); });
    for (std::int64_t i = 0; i < kPromptTokens; ++i) put(prompt_at_, r * kPromptTokens + i, prompt[i]);
    for (std::int64_t i = 0; i < kGeneratedTokens; ++i) {
      put(generated_at_, r * kGeneratedTokens + i, prompt[random.next() % kGeneratedOf]);
    }
  }
  for (std::int64_t r = 0; with_tokens && r <= job.rows; ++r) {
    put(prompt_begins_at_, r, r * kPromptTokens);
    put(generated_begins_at_, r, r * kGeneratedTokens);
  }
}

sample_params sample_rows::params(const std::byte* at, std::int64_t row) const {
  sample_params params;
  params.temperature = job_.temperature;
  params.top_k = job_.top_k;
  params.top_p = job_.top_p;
  params.min_p = job_.min_p;
  params.seed = reinterpret_cast<const std::uint64_t*>(at) + row;
  params.offset = kOffset;
  if (job_.arrays) {
    const auto values = [&](std::int64_t array) { return at + parameters_at_ + (job_.rows * array + row) * 4; };
    params.temperature = reinterpret_cast<const float*>(values(0));
    params.top_k = reinterpret_cast<const std::int32_t*>(values(1));
    params.top_p = reinterpret_cast<const float*>(values(2));
  }
  if (job_.extra == sample_extra::mask) {
    const std::int64_t words = mask_words_of(job_);
    params.allowed = {reinterpret_cast<const std::uint32_t*>(at + mask_at_) + row * words, mask_kind::bits, words};
  }
  if (job_.extra != sample_extra::penalties) return params;
  const auto begins = [&](std::int64_t from) { return reinterpret_cast<const std::int64_t*>(at + from) + row; };
  const auto tokens = [&](std::int64_t from) { return reinterpret_cast<const std::int32_t*>(at + from); };
  params.repetition_penalty = kRepetitionPenalty;
  params.presence_penalty = kPresencePenalty;
  params.frequency_penalty = kFrequencyPenalty;
  params.prompt = {begins(prompt_begins_at_), tokens(prompt_at_)};
  params.generated = {begins(generated_begins_at_), tokens(generated_at_)};
  return params;
}

sample_truth::sample_truth(const row_matrix& matrix, const sample_job& job, const sample_rows& of_rows,
                           std::int64_t most_values)
    : job_(job) {
  const std::int64_t most = std::max<std::int64_t>(1, most_values / job.vocab);
  const std::int64_t step = (job.rows + most - 1) / most;
  for (std::int64_t row = 0; row < job.rows; row += step) checked_.push_back({row, {}});
  if (checked_.back().row != job.rows - 1) checked_.push_back({job.rows - 1, {}});
  const output_layout layout(job, rows());
  memory_.resize(static_cast<std::size_t>(layout.bytes()));
  over_cores(rows(), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      auto& [row, answer] = checked_[static_cast<std::size_t>(i)];
      answer = layout.in(memory_.data(), i);
      reference_sample(matrix.every(row, 1, 1), of_rows.params(of_rows.data(), row), answer);
    }
  });
}

double sample_truth::mean_kept() const {
  double total = 0;
  for (const auto& [row, answer] : checked_) total += *answer.kept;
  return total / static_cast<double>(rows());
}

std::optional<std::string> sample_truth::first_difference(std::byte* outputs) const {
  const output_layout layout(job_, job_.rows);
  for (const auto& [row, answer] : checked_) {
    if (const auto text = difference(layout.in(outputs, row), answer)) return fmt::format("row {}: {}", row, *text);
  }
  return std::nullopt;
}

void run_on_cpu(const row_matrix& matrix, const sample_job& job, const patience& limit, results& out,
                const nlohmann::ordered_json& more) {
  const std::string work = work_name(job, "cpu");
  if (!out.wants(work)) return;
  try {
    const stream s(device::cpu());
    const sample_rows of_rows(job);
    const sample_params params = of_rows.params(of_rows.data());
    const output_layout layout(job, job.rows);
    std::vector<std::byte> found(static_cast<std::size_t>(layout.bytes()), kPoison);
    const auto draw = [&] { sample(s, matrix.view(), params, layout.in(found.data())); };
    const sample_truth right(matrix, job, of_rows, kCheckedValues);
    const auto verify = [&] {
      if (const auto text = right.first_difference(found.data())) throw std::runtime_error(*text);
    };
    draw();
    verify();
    const timing time = repeat(limit, [&](std::int64_t) { return wall_ms(draw); });
    verify();
    const double limit_ms = cpu_read_ms(matrix.data(), job.bytes());
    out.add(work, {.time = time, .bytes = job.bytes(), .limit_ms = limit_ms}, fields_of(right, more));
  } catch (const std::exception& failure) {
    out.add_wrong(work, failure.what());
  }
}

void run_on_gpu(gpu_clock& gpu, const gpu_matrices& matrices, const sample_job& job, const patience& limit,
                results& out, const nlohmann::ordered_json& more) {
  const std::string work = work_name(job);
  if (!out.wants(work)) return;
  try {
    const stream s = stream::wrap(device::cuda(0), gpu.stream());
    const sample_rows of_rows(job);
    buffer inputs(s.where(), of_rows.bytes());
    inputs.upload(s, of_rows.data());
    const sample_params params = of_rows.params(static_cast<const std::byte*>(inputs.data()));

    const output_layout layout(job, job.rows);
    std::vector<std::byte> found(static_cast<std::size_t>(layout.bytes()), kPoison);
    buffer outputs(s.where(), layout.bytes());
    buffer poison(s.where(), layout.bytes());
    poison.upload(s, found.data());
    const sample_output to = layout.in(static_cast<std::byte*>(outputs.data()));
    const auto draw = [&](std::int64_t run) {
      sample(s, {matrices.of_run(run), job.type, job.rows, job.vocab, job.vocab}, params, to);
    };

    const sample_truth right(matrices.host(), job, of_rows, kCheckedOnGpu);
    const auto spoil = [&] { gpu.copy(outputs.data(), poison.data(), layout.bytes()); };
    const auto verify = [&] {
      outputs.download(s, found.data());
      if (const auto text = right.first_difference(found.data())) throw std::runtime_error(*text);
    };
    spoil();
    draw(0);
    verify();
    const gpu_clock::graph graph = gpu.capture([&] { draw(0); });
    spoil();
    graph.replay();
    verify();
    const timing time = repeat(limit, [&](std::int64_t run) { return gpu.time_ms([&] { draw(run); }); });
    verify();
    nlohmann::ordered_json fields = fields_of(right, more);
    fields["copies"] = matrices.copies();
    fields.update(time_in_graph(gpu, job.bytes(), limit, draw, spoil, verify));
    out.add(work, {.time = time, .bytes = job.bytes(), .limit_ms = gpu.read_ms(job.bytes())}, fields);
  } catch (const std::exception& failure) {
    out.add_wrong(work, failure.what());
  }
}

}  // namespace shortlist::benchmark
