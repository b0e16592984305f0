// `shortlist build`: vector files -> an index file.
#include <fmt/core.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "command.hpp"
#include "corpus.hpp"
#include "output.hpp"
#include "shortlist/shortlist.hpp"
#include "terminal.hpp"

namespace shortlist::program {
namespace {

struct build_options {
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path index;
  std::string metric = "ip";
  std::string type;
  std::string storage = "full";
  std::filesystem::path ids;
  std::string device = "cpu";
  bool progress = false;
};

void build(const build_options& options) {
  const auto start = std::chrono::steady_clock::now();
  reject_vector_file_name(options.index);
  const metric by = parse_metric(options.metric);
  const auto stored = options.type.empty() ? std::nullopt : std::optional(parse_element_type(options.type));
  const storage kept = parse_storage(options.storage);
  const device where = device::parse(options.device);

  corpus from(options.inputs, stored);
  const std::vector<std::int64_t> ids =
      options.ids.empty() ? std::vector<std::int64_t>() : read_labels(options.ids, from.rows());
  flat_index index(where, {.dim = from.dim(), .metric = by, .type = from.type(), .storage = kept});
  if (from.rows() > 0) index.reserve({.max_rows = from.rows()});  // memory that runs out does so now, not at the end
  {
    progress line(options.index.filename().string(), from.rows(), from.dim() * size_bytes(from.type()),
                  options.progress ? progress_mode::always : progress_mode::when_terminal);
    from.for_each_slice([&](any_matrix_view rows) {
      const std::span<const std::int64_t> all_ids(ids);
      index.add(rows, ids.empty() ? all_ids
                                  : all_ids.subspan(static_cast<std::size_t>(index.rows()),
                                                    static_cast<std::size_t>(rows.rows)));
      line.advance(rows.rows);
    });
  }
  {
    const hold_interrupts held;
    index.save(options.index);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print("{}: {} rows x {}, {}, {}, {} in {}\n", options.index.string(), grouped(index.rows()), index.dim(),
             to_string(index.type()), to_string(index.metric()),
             readable_size(static_cast<std::int64_t>(std::filesystem::file_size(options.index))),
             readable_time(seconds));
}

}  // namespace

void add_build(CLI::App& app, action& chosen) {
  auto options = std::make_shared<build_options>();
  CLI::App* command = app.add_subcommand("build", "Make an index file from files of vectors");
  command->add_option("inputs", options->inputs, "fbin, u8bin, i8bin, fvecs, bvecs or npy files, added in this order")
      ->required()
      ->type_name("INPUT");
  command->add_option("-o,--output", options->index, "the index file to write")->required()->type_name("INDEX");
  command->add_option("-m,--metric", options->metric, kMetricHelp)->capture_default_str()->type_name("METRIC");
  command
      ->add_option("-t,--type", options->type,
                   "store fp32 input as f16 or bf16, rounded to nearest even; else the input's own type")
      ->type_name("TYPE");
  command->add_option("-s,--storage", options->storage, kStorageHelp)->capture_default_str()->type_name("STORAGE");
  command
      ->add_option("--ids", options->ids, "labels, one a row: ibin, ivecs or npy; else a row's label is its position")
      ->type_name("FILE");
  command->add_option("-d,--device", options->device, kDeviceHelp)->capture_default_str()->type_name("DEVICE");
  command->add_flag("--progress", options->progress, "show progress where stderr is no terminal, too");
  command->footer("Example:\n  shortlist build base.fbin -o base.safetensors --metric cosine --type f16");
  command->callback([options, &chosen] { chosen = [options] { build(*options); }; });
}

}  // namespace shortlist::program
