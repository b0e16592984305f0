// `shortlist top-k`: the k best of every row of a matrix, npy in and npy out.
#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <string>

#include "arrays.hpp"
#include "command.hpp"
#include "output.hpp"
#include "shortlist/shortlist.hpp"
#include "terminal.hpp"

namespace shortlist::program {
namespace {

// Without a file to write: enough to see what came out.
constexpr std::int64_t kShownRows = 10;
constexpr std::int64_t kShownPlaces = 10;

struct top_k_command {
  std::filesystem::path input;
  top_k_options options;
  bool smallest = false;
  std::string indices_as = "i64";
  std::string device = "best";
  std::filesystem::path values;
  std::filesystem::path indices;
  std::filesystem::path mask;
  bool time = false;

  bool prints() const { return values.empty() && indices.empty() && mask.empty(); }
};

struct answer {
  std::int64_t rows = 0;
  std::int64_t k = 0;
  value_type type = value_type::f32;
  index_type indices_as = index_type::i64;
  output_array values{};   // [rows, k]
  output_array indices{};  // [rows, k]
  output_array mask{};     // [rows, cols]
  double seconds = 0;      // of the op, without copies
};

answer compute(const top_k_command& command, const matrix_data& matrix) {
  answer found{.rows = matrix.rows, .k = command.options.k, .type = matrix.type};
  if (command.indices_as == "i32") found.indices_as = index_type::i32;
  const stream s(device::parse(command.device));

  value_matrix input = matrix.view();
  const input_array values(s, matrix.data);
  input.data = values.data();

  // A k that top_k refuses is not to be allocated before.
  const std::int64_t places = matrix.rows * std::clamp(found.k, std::int64_t{0}, matrix.cols);
  const std::int64_t index_bytes = found.indices_as == index_type::i32 ? 4 : 8;
  if (!command.values.empty() || command.prints()) found.values.allocate(s, places * size_bytes(matrix.type));
  if (!command.indices.empty() || command.prints()) found.indices.allocate(s, places * index_bytes);
  if (!command.mask.empty()) found.mask.allocate(s, matrix.rows * matrix.cols);

  s.synchronize();
  using clock = std::chrono::steady_clock;
  const auto start = clock::now();
  top_k(s, input, command.options,
        {.values = found.values.data(),
         .indices = found.indices.data(),
         .indices_as = found.indices_as,
         .mask = static_cast<std::uint8_t*>(found.mask.data())});
  s.synchronize();
  found.seconds = std::chrono::duration<double>(clock::now() - start).count();

  for (output_array* output : {&found.values, &found.indices, &found.mask}) output->download(s);
  return found;
}

/// Exact: fp32 has all values of fp16.
float to_float(float16 value) {
  constexpr int kMantissaBits = 10;
  const int exponent = (value.bits >> kMantissaBits) & 31, mantissa = value.bits & 1023;
  float magnitude = std::ldexp(static_cast<float>(exponent == 0 ? mantissa : mantissa + 1024),
                               std::max(exponent, 1) - 15 - kMantissaBits);
  if (exponent == 31) {
    magnitude = mantissa == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  }
  return (value.bits & 0x8000u) != 0 ? -magnitude : magnitude;
}

/// Shortest decimal that reads back as the same value.
std::string value_text(const answer& found, std::int64_t element) {
  const std::byte* data = found.values.host();
  switch (found.type) {
    case value_type::f32: return fmt::format("{}", load<float>(data, element));
    case value_type::f16: return fmt::format("{}", to_float(load<float16>(data, element)));
    case value_type::bf16: {
      const std::uint32_t bits = load<bfloat16>(data, element).bits;
      return fmt::format("{}", std::bit_cast<float>(bits << 16));
    }
    case value_type::f64: return fmt::format("{}", load<double>(data, element));
  }
  return "";
}

std::int64_t column(const answer& found, std::int64_t element) {
  const std::byte* data = found.indices.host();
  return found.indices_as == index_type::i32 ? load<std::int32_t>(data, element) : load<std::int64_t>(data, element);
}

void print_table(const answer& found) {
  const std::int64_t rows = std::min(found.rows, kShownRows), places = std::min(found.k, kShownPlaces);
  std::size_t width = std::string_view("column").size();
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t place = 0; place < places; ++place) {
      width = std::max(width, fmt::formatted_size("{}", column(found, row * found.k + place)));
    }
  }
  std::string text = fmt::format("row   {:>{}}   value\n", "column", width);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t place = 0; place < places; ++place) {
      const std::int64_t at = row * found.k + place;
      fmt::format_to(std::back_inserter(text), "{:>3}   {:>{}}   {}\n", row, column(found, at), width,
                     value_text(found, at));
    }
  }
  fmt::print("{}", text);
  if (rows < found.rows || places < found.k) {
    fmt::print("shown are {} of {} rows and {} of {} columns each; --values and --indices write them all\n",
               grouped(rows), grouped(found.rows), grouped(places), grouped(found.k));
  }
}

void write(const top_k_command& command, const matrix_data& matrix, const answer& found) {
  const hold_interrupts held;
  if (!command.values.empty()) {
    write_npy(command.values, value_matrix(found.values.host(), found.type, found.rows, found.k, found.k));
  }
  if (!command.indices.empty()) {
    const void* indices = found.indices.host();
    if (found.indices_as == index_type::i32)
      write_npy(command.indices, matrix_view(static_cast<const std::int32_t*>(indices), found.rows, found.k));
    else
      write_npy(command.indices, matrix_view(static_cast<const std::int64_t*>(indices), found.rows, found.k));
  }
  if (!command.mask.empty()) {
    const void* mask = found.mask.host();
    write_npy(command.mask, matrix_view(static_cast<const std::uint8_t*>(mask), matrix.rows, matrix.cols));
  }
}

void check_outputs(const top_k_command& command) {
  check_npy_name("--values", command.values);
  check_npy_name("--indices", command.indices);
  check_npy_name("--mask", command.mask);
  check_other_file("--indices", command.indices, "--values", command.values);
}

void select(top_k_command command) {
  check_outputs(command);
  if (command.smallest) command.options.order = order::smallest;
  using clock = std::chrono::steady_clock;
  const auto start = clock::now();
  const matrix_data matrix = read_npy_matrix(command.input);
  const double read_seconds = std::chrono::duration<double>(clock::now() - start).count();

  const answer found = compute(command, matrix);
  if (command.prints())
    print_table(found);
  else
    write(command, matrix, found);
  if (command.time) {
    fmt::print(stderr, "{}: {} read in {}; {} of each of {} rows x {} in {}, without copies\n",
               device::parse(command.device).name(), readable_size(std::ssize(matrix.data)),
               readable_time(read_seconds), grouped(found.k), grouped(matrix.rows), grouped(matrix.cols),
               readable_time(found.seconds));
  }
}

}  // namespace

void add_top_k(CLI::App& app, action& chosen) {
  auto options = std::make_shared<top_k_command>();
  CLI::App* command = app.add_subcommand("top-k", "Find the k best of every row of a matrix");
  command->add_option("input", options->input, "npy of float32, float16 or float64; one axis is one row")
      ->required()
      ->type_name("INPUT.npy");
  command->add_option("-k,--k", options->options.k, "how many of each row")->required()->type_name("K");
  command->add_flag("--smallest", options->smallest, "the smallest are best, else the largest");
  command->add_flag("--sorted", options->options.sorted, "best first, else by ascending column");
  CLI::Option* eps = command
                         ->add_option("--eps", options->options.eps,
                                      "stop the bisection early: at a bracket of E times |the row's best value|")
                         ->type_name("E");
  CLI::Option* max_iter =
      command->add_option("--max-iter", options->options.max_iter, "stop the bisection early: after N steps")
          ->type_name("N");
  eps->excludes(max_iter);
  command->add_option("-d,--device", options->device, kDeviceHelp)->capture_default_str()->type_name("DEVICE");
  CLI::Option* values =
      command->add_option("--values", options->values, "write the values: [rows, K], the input's type")
          ->type_name("OUT.npy");
  CLI::Option* indices =
      command->add_option("--indices", options->indices, "write their columns: [rows, K]")->type_name("OUT.npy");
  command->add_option("--index-type", options->indices_as, "of the columns: i32 or i64")
      ->capture_default_str()
      ->check(CLI::IsMember({"i32", "i64"}))
      ->type_name("TYPE");
  command->add_option("--mask", options->mask, "write uint8 instead: [rows, cols], 1 where a value is among the best")
      ->type_name("OUT.npy")
      ->excludes(values)
      ->excludes(indices);
  command->add_flag("--time", options->time, "state the times on stderr");
  command->footer(
      "Without a file to write, the first rows are printed.\n"
      "Examples:\n"
      "  shortlist top-k scores.npy -k 10 --sorted\n"
      "  shortlist top-k activations.npy -k 32 --values best.npy --indices columns.npy\n"
      "  shortlist top-k activations.npy -k 32 --max-iter 8 --mask mask.npy");
  command->callback([options, &chosen] { chosen = [options] { select(*options); }; });
}

}  // namespace shortlist::program
