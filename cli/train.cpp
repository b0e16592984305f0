// `shortlist train`: files of vectors -> an IVF-PQ index without rows.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "command.hpp"
#include "corpus.hpp"
#include "output.hpp"
#include "shortlist/shortlist.hpp"
#include "terminal.hpp"

namespace shortlist::program {
namespace {

struct train_command {
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path index;
  std::string metric = "l2";
  std::string type;
  std::string code = "pq";
  std::string encodes = "residual";
  std::string rotation = "none";
  std::string keep = "none";
  ivf_pq_options options;
  train_options training;
  std::string device = "best";
  bool progress = false;
};

/// Rows that a training looks at, at most.
std::int64_t rows_to_read(const train_command& command, std::int64_t rows) {
  std::int64_t wanted = 0;
  if (__builtin_mul_overflow(command.options.nlist, command.training.rows_per_list, &wanted)) return rows;
  return std::clamp<std::int64_t>(std::max(wanted, std::int64_t{1} << command.options.pq_bits), 0, rows);
}

void train(const train_command& command) {
  const auto start = std::chrono::steady_clock::now();
  reject_vector_file_name(command.index);
  ivf_pq_options options = command.options;
  options.metric = parse_metric(command.metric);
  options.code = parse_code_kind(command.code);
  options.encodes = parse_encoded(command.encodes);
  options.rotation = parse_rotation(command.rotation);
  options.rows = parse_kept_rows(command.keep);
  const auto stored = command.type.empty() ? std::nullopt : std::optional(parse_element_type(command.type));
  corpus from(command.inputs, stored);
  options.dim = from.dim();
  options.type = from.type();
  ivf_pq_index index(device::parse(command.device), options);

  const vectors rows = from.sample(rows_to_read(command, from.rows()));
  train_options training = command.training;
  const bool shows = command.progress || is_terminal(stderr);
  training.progress = [&](const train_progress& now) {
    if (shows) fmt::print(stderr, "{}: {} of {} steps\n", now.stage, now.step, now.steps);
    return proceed::yes;
  };
  index.train(rows.view(), training);
  {
    const hold_interrupts held;
    index.save(command.index);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print("{}: {} lists, {} bytes of code a row, {}, from {} of {} rows x {} in {}\n", command.index.string(),
             grouped(options.nlist), (index.options().pq_dim * index.options().pq_bits + 7) / 8,
             to_string(options.metric), grouped(rows.rows), grouped(from.rows()), options.dim, readable_time(seconds));
}

}  // namespace

void add_train(CLI::App& app, action& chosen) {
  auto options = std::make_shared<train_command>();
  CLI::App* command = app.add_subcommand("train", "Train an IVF-PQ index on files of vectors; `add` then adds rows");
  command
      ->add_option("inputs", options->inputs, "fbin, u8bin, i8bin, fvecs, bvecs or npy files; a sample of them is read")
      ->required()
      ->type_name("INPUT");
  command->add_option("-o,--output", options->index, "the index file to write")->required()->type_name("INDEX");
  command->add_option("-n,--nlist", options->options.nlist, "lists")->capture_default_str()->type_name("N");
  command->add_option("-m,--metric", options->metric, kMetricHelp)->capture_default_str()->type_name("METRIC");
  command->add_option("--code", options->code, "pq, sq4 or sq8")->capture_default_str()->type_name("CODE");
  command->add_option("--pq-dim", options->options.pq_dim, "pieces of a product code; 0: one for every two elements")
      ->capture_default_str()
      ->type_name("N");
  command->add_option("--pq-bits", options->options.pq_bits, "bits of a piece's code, 4 to 8")
      ->capture_default_str()
      ->type_name("N");
  command->add_option("--encodes", options->encodes, "residual or row: what a code stands for")
      ->capture_default_str()
      ->type_name("WHAT");
  command->add_option("--rotation", options->rotation, "none or random")->capture_default_str()->type_name("ROTATION");
  command->add_option("--keep", options->keep, "rows for refining: none, device or host")
      ->capture_default_str()
      ->type_name("WHERE");
  command
      ->add_option("-t,--type", options->type,
                   "add fp32 input as f16 or bf16, rounded to nearest even; else the input's own type")
      ->type_name("TYPE");
  command->add_option("--iterations", options->training.iterations, "steps of k-means")
      ->capture_default_str()
      ->type_name("N");
  command->add_option("--rows-per-list", options->training.rows_per_list, "rows to train with, at most, for each list")
      ->capture_default_str()
      ->type_name("N");
  command->add_option("--seed", options->options.seed, "of all that is random")
      ->capture_default_str()
      ->type_name("SEED");
  command->add_option("-d,--device", options->device, kDeviceHelp)->capture_default_str()->type_name("DEVICE");
  command->add_flag("--progress", options->progress, "show progress where stderr is no terminal, too");
  command->footer("Example:\n  shortlist train base.fbin -o base.ivf --nlist 8192 --keep host");
  command->callback([options, &chosen] { chosen = [options] { train(*options); }; });
}

}  // namespace shortlist::program
