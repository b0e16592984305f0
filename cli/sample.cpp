// `shortlist sample`: one token of every row of logits, npy in and npy out.
#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "command.hpp"
#include "output.hpp"
#include "sample_inputs.hpp"
#include "shortlist/shortlist.hpp"
#include "terminal.hpp"

namespace shortlist::program {
namespace {

constexpr std::int64_t kShownRows = 50;  // without a file to write: enough to see what came out

struct sample_command {
  std::filesystem::path input;
  float temperature = 1.0f;
  std::int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  bool min_p_first = false;
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
  float repetition = 1.0f;
  float presence = 0.0f;
  float frequency = 0.0f;
  std::filesystem::path prompt;
  std::filesystem::path generated;
  std::filesystem::path bias;
  std::filesystem::path allowed;
  std::int32_t top = 0;
  std::string device = "best";
  std::filesystem::path tokens;
  std::filesystem::path logprobs;
  bool time = false;

  bool prints() const { return tokens.empty() && logprobs.empty(); }
};

struct answer {
  std::int64_t rows = 0;
  std::int64_t top = 0;
  output_array tokens{};        // [rows] int32
  output_array status{};        // [rows] sample_status
  output_array logprobs{};      // [rows] fp32
  output_array kept{};          // [rows] int32
  output_array top_tokens{};    // [rows, top] int32
  output_array top_logprobs{};  // [rows, top] fp32
  double seconds = 0;           // of the op, without copies
};

answer compute(const sample_command& command, const matrix_data& matrix) {
  answer found{.rows = matrix.rows, .top = command.top};
  const stream s(device::parse(command.device));

  value_matrix logits = matrix.view();
  const input_array values(s, matrix.data);
  logits.data = values.data();
  const token_file prompt(s, "--prompt", command.prompt, matrix.rows);
  const token_file generated(s, "--generated", command.generated, matrix.rows);
  const bias_file bias(s, command.bias, matrix.rows, matrix.cols);
  const mask_file allowed(s, command.allowed, matrix.rows, matrix.cols);
  std::vector<std::uint64_t> row_offsets(static_cast<std::size_t>(matrix.rows));
  std::iota(row_offsets.begin(), row_offsets.end(), command.offset);
  const input_array offsets(s, row_offsets);

  found.tokens.allocate(s, matrix.rows * 4);
  if (command.prints()) {
    found.status.allocate(s, matrix.rows);
    found.kept.allocate(s, matrix.rows * 4);
  }
  if (command.prints() || !command.logprobs.empty()) found.logprobs.allocate(s, matrix.rows * 4);
  if (command.top > 0 && command.top <= kMaxTopLogprobs) {
    found.top_tokens.allocate(s, matrix.rows * command.top * 4);
    found.top_logprobs.allocate(s, matrix.rows * command.top * 4);
  }

  s.synchronize();
  using clock = std::chrono::steady_clock;
  const auto start = clock::now();
  sample(s, logits,
         {.temperature = command.temperature,
          .top_k = command.top_k,
          .top_p = command.top_p,
          .min_p = command.min_p,
          .seed = command.seed,
          .offset = static_cast<const std::uint64_t*>(offsets.data()),
          .min_p_order = command.min_p_first ? min_p_order::first : min_p_order::last,
          .repetition_penalty = command.repetition,
          .presence_penalty = command.presence,
          .frequency_penalty = command.frequency,
          .prompt = prompt.view(),
          .generated = generated.view(),
          .bias = bias.view(),
          .allowed = allowed.view()},
         {.tokens = found.tokens.data(),
          .status = static_cast<sample_status*>(found.status.data()),
          .logprobs = static_cast<float*>(found.logprobs.data()),
          .kept = static_cast<std::int32_t*>(found.kept.data()),
          .top_n = command.top,
          .top_tokens = static_cast<std::int32_t*>(found.top_tokens.data()),
          .top_logprobs = static_cast<float*>(found.top_logprobs.data())});
  s.synchronize();
  found.seconds = std::chrono::duration<double>(clock::now() - start).count();

  for (output_array* output :
       {&found.tokens, &found.status, &found.logprobs, &found.kept, &found.top_tokens, &found.top_logprobs}) {
    output->download(s);
  }
  return found;
}

/// The log-probability of a row's token, or why it has none.
std::string outcome(const answer& found, std::int64_t row) {
  switch (load<sample_status>(found.status.host(), row)) {
    case sample_status::ok: return fmt::format("{}", load<float>(found.logprobs.host(), row));
    case sample_status::nan_logit: return "nan_logit";
    case sample_status::nothing_allowed: return "nothing_allowed";
    case sample_status::bad_parameter: return "bad_parameter";
  }
  return "";
}

/// "token logprob, token logprob, ..." of the best tokens that there are.
std::string best_tokens(const answer& found, std::int64_t row) {
  std::string text;
  for (std::int64_t at = row * found.top; at < (row + 1) * found.top; ++at) {
    const auto token = load<std::int32_t>(found.top_tokens.host(), at);
    if (token < 0) break;
    fmt::format_to(std::back_inserter(text), "{}{} {}", text.empty() ? "" : ", ", token,
                   load<float>(found.top_logprobs.host(), at));
  }
  return text;
}

void print_table(const answer& found) {
  std::string text = fmt::format("{:>3}   {:>7}   {:>15}   {:>7}{}\n", "row", "token", "log-probability", "kept",
                                 found.top > 0 ? "   best" : "");
  const std::int64_t rows = std::min(found.rows, kShownRows);
  for (std::int64_t row = 0; row < rows; ++row) {
    fmt::format_to(std::back_inserter(text), "{:>3}   {:>7}   {:>15}   {:>7}", row,
                   load<std::int32_t>(found.tokens.host(), row), outcome(found, row),
                   load<std::int32_t>(found.kept.host(), row));
    const std::string best = best_tokens(found, row);
    text += best.empty() ? "\n" : "   " + best + "\n";
  }
  fmt::print("{}", text);
  if (rows < found.rows) {
    fmt::print("shown are {} of {} rows; --tokens and --logprobs write them all\n", grouped(rows), grouped(found.rows));
  }
}

void write(const sample_command& command, const answer& found) {
  const hold_interrupts held;
  if (!command.tokens.empty()) {
    const void* tokens = found.tokens.host();
    write_npy(command.tokens, matrix_view(static_cast<const std::int32_t*>(tokens), found.rows, 1));
  }
  if (!command.logprobs.empty()) {
    write_npy(command.logprobs, value_matrix(found.logprobs.host(), value_type::f32, found.rows, 1, 1));
  }
}

void draw(const sample_command& command) {
  check_npy_name("--tokens", command.tokens);
  check_npy_name("--logprobs", command.logprobs);
  check_other_file("--logprobs", command.logprobs, "--tokens", command.tokens);
  if (command.repetition != 1.0f && command.prompt.empty() && command.generated.empty()) {
    throw invalid_argument(
        fmt::format("--repetition is {}; allowed without --prompt and --generated is 1", command.repetition));
  }
  using clock = std::chrono::steady_clock;
  const auto start = clock::now();
  const matrix_data matrix = read_npy_matrix(command.input);
  const double read_seconds = std::chrono::duration<double>(clock::now() - start).count();

  const answer found = compute(command, matrix);
  if (command.prints())
    print_table(found);
  else
    write(command, found);
  if (command.time) {
    fmt::print(stderr, "{}: {} read in {}; a token of each of {} rows x {} in {}, without copies\n",
               device::parse(command.device).name(), readable_size(std::ssize(matrix.data)),
               readable_time(read_seconds), grouped(matrix.rows), grouped(matrix.cols), readable_time(found.seconds));
  }
}

/// CLI11 reads -1 as 2^64 - 1.
std::string check_unsigned(const std::string& text) {
  return text.starts_with('-') ? fmt::format("is {}; allowed is 0 to 2^64 - 1", text) : std::string();
}

void add_penalties(CLI::App& command, sample_command& options) {
  command.add_option("--prompt", options.prompt, "tokens of the prompt: int32 or int64, -1 where a row has fewer")
      ->type_name("FILE.npy");
  CLI::Option* generated =
      command.add_option("--generated", options.generated, "tokens drawn so far; the same")->type_name("FILE.npy");
  command
      .add_option("--repetition", options.repetition,
                  "divides a positive logit of a token in either file, multiplies another")
      ->capture_default_str()
      ->type_name("R");
  command.add_option("--presence", options.presence, "taken from the logit of a token in --generated")
      ->capture_default_str()
      ->type_name("P")
      ->needs(generated);
  command.add_option("--frequency", options.frequency, "the same, for each time it is there")
      ->capture_default_str()
      ->type_name("F")
      ->needs(generated);
}

}  // namespace

void add_sample(CLI::App& app, action& chosen) {
  auto options = std::make_shared<sample_command>();
  CLI::App* command = app.add_subcommand("sample", "Draw a token of every row of logits");
  command->add_option("input", options->input, "npy of float32 or float16: [rows, vocab]; one axis is one row")
      ->required()
      ->type_name("LOGITS.npy");
  command->add_option("--temperature", options->temperature, "0 takes the best token")
      ->capture_default_str()
      ->type_name("T");
  command->add_option("-k,--top-k", options->top_k, "the K best remain; 0: off")->capture_default_str()->type_name("K");
  command->add_option("--top-p", options->top_p, "the fewest best that hold this share remain; 1: off")
      ->capture_default_str()
      ->type_name("P");
  command->add_option("--min-p", options->min_p, "what has this share of the best one's probability remains; 0: off")
      ->capture_default_str()
      ->type_name("P");
  command->add_flag("--min-p-first", options->min_p_first, "min-p before top-k and top-p, else after them");
  command->add_option("--seed", options->seed, "of all rows")
      ->capture_default_str()
      ->type_name("S")
      ->check(check_unsigned);
  command->add_option("--offset", options->offset, "of the first row; row r draws with offset O + r")
      ->capture_default_str()
      ->type_name("O")
      ->check(check_unsigned);
  add_penalties(*command, *options);
  command->add_option("--bias", options->bias, "added to the logits: float32 [rows, vocab]")->type_name("FILE.npy");
  command->add_option("--allowed", options->allowed, "uint8 [rows, vocab]: 0 where a token may not be drawn")
      ->type_name("FILE.npy");
  command->add_option("-d,--device", options->device, kDeviceHelp)->capture_default_str()->type_name("DEVICE");
  CLI::Option* tokens =
      command->add_option("--tokens", options->tokens, "write the tokens: [rows, 1] int32, -1 where there is none")
          ->type_name("OUT.npy");
  CLI::Option* logprobs =
      command->add_option("--logprobs", options->logprobs, "write their log-probabilities: [rows, 1] float32")
          ->type_name("OUT.npy");
  command->add_option("--top", options->top, "show the N best tokens of each row too")
      ->type_name("N")
      ->excludes(tokens)
      ->excludes(logprobs);
  command->add_flag("--time", options->time, "state the times on stderr");
  command->footer(
      "Rows are the steps of one sequence: they share the seed, and each has an offset of its own.\n"
      "--prompt, --generated, --bias and --allowed hold a row for each of the logits, or one for all.\n"
      "Log-probabilities are of the distribution after temperature and before all filters.\n"
      "Without a file to write, the first rows are printed.\n"
      "Examples:\n"
      "  shortlist sample logits.npy --temperature 0.8 -k 50 --top-p 0.95 --seed 7\n"
      "  shortlist sample logits.npy --temperature 0 --top 5\n"
      "  shortlist sample logits.npy --min-p 0.1 --generated so_far.npy --repetition 1.1 --tokens tokens.npy");
  command->callback([options, &chosen] { chosen = [options] { draw(*options); }; });
}

}  // namespace shortlist::program
