// `shortlist add`: more rows for an IVF-PQ index file, batch by batch, each committed when it is on disk.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "command.hpp"
#include "corpus.hpp"
#include "output.hpp"
#include "shortlist/shortlist.hpp"
#include "terminal.hpp"

namespace shortlist::program {
namespace {

struct add_command {
  std::filesystem::path index;
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path ids;
  std::int64_t batch = 1'000'000;
  bool resume = false;
  std::string device = "best";
  bool progress = false;
};

/// A batch must fit in memory, whatever its rows.
constexpr std::int64_t kMaxBatchBytes = std::int64_t{2} << 30;

void check_index(const index_summary& file, const add_command& command) {
  if (file.kind != index_kind::ivf_pq) {
    throw invalid_argument(fmt::format("INDEX is {}, a flat index; allowed is an index made by `shortlist train`",
                                       command.index.string()));
  }
  if (command.batch < 1) throw invalid_argument(fmt::format("--batch is {}; allowed is 1 or more", command.batch));
}

/// How many of the inputs' rows an interrupted call has added.
std::int64_t rows_done(const add_command& command, std::int64_t index_rows, std::int64_t input_rows) {
  if (!command.resume) return 0;
  if (index_rows > input_rows) {
    throw invalid_argument(fmt::format("--resume: the index holds {} rows; allowed is up to {}, what the inputs hold",
                                       index_rows, input_rows));
  }
  return index_rows;
}

void add(const add_command& command) {
  const auto start = std::chrono::steady_clock::now();
  const index_summary file = summarize_index(command.index);
  check_index(file, command);
  ivf_pq_index index = ivf_pq_index::load_trained(device::parse(command.device), command.index);
  corpus from(command.inputs, file.type);
  const std::vector<std::int64_t> ids =
      command.ids.empty() ? std::vector<std::int64_t>() : read_labels(command.ids, from.rows());

  const std::int64_t row_bytes = from.dim() * size_bytes(from.type());
  const std::int64_t batch = std::min(command.batch, std::max<std::int64_t>(1, kMaxBatchBytes / row_bytes));
  const std::int64_t done = rows_done(command, file.rows, from.rows());
  {
    progress line(command.index.filename().string(), from.rows() - done, row_bytes,
                  command.progress ? progress_mode::always : progress_mode::when_terminal);
    for (std::int64_t first = done; first < from.rows(); first += batch) {
      const std::int64_t count = std::min(batch, from.rows() - first);
      const vectors rows = from.read(first, count);
      index.clear();
      index.add(rows.view(),
                ids.empty() ? std::span<const std::int64_t>()
                            : std::span(ids).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)));
      const hold_interrupts held;
      index.append_to(command.index);
      line.advance(count);
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print("{}: {} rows added in {}, {} in all\n", command.index.string(), grouped(from.rows() - done),
             readable_time(seconds), grouped(summarize_index(command.index).rows));
}

}  // namespace

void add_add(CLI::App& app, action& chosen) {
  auto options = std::make_shared<add_command>();
  CLI::App* command = app.add_subcommand("add", "Add the rows of files of vectors to an IVF-PQ index file");
  command->add_option("index", options->index, "an index file made by `shortlist train`")
      ->required()
      ->type_name("INDEX");
  command->add_option("inputs", options->inputs, "fbin, u8bin, i8bin, fvecs, bvecs or npy files, added in this order")
      ->required()
      ->type_name("INPUT");
  command
      ->add_option("--ids", options->ids, "labels, one a row: ibin, ivecs or npy; else a row's label is its position")
      ->type_name("FILE");
  command->add_option("--batch", options->batch, "rows that are added, and then safe on disk, at a time")
      ->capture_default_str()
      ->type_name("ROWS");
  command->add_flag(
      "--resume", options->resume,
      "go on where an interrupted call with these inputs ended: as many rows as the index holds are skipped");
  command->add_option("-d,--device", options->device, kDeviceHelp)->capture_default_str()->type_name("DEVICE");
  command->add_flag("--progress", options->progress, "show progress where stderr is no terminal, too");
  command->footer("Example:\n  shortlist add base.ivf base.fbin --resume");
  command->callback([options, &chosen] { chosen = [options] { add(*options); }; });
}

}  // namespace shortlist::program
