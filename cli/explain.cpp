// `shortlist explain`, `explain-top-k` and `explain-sample`: the plan of a search, of a row-wise top k or of a sampling
// step, from its shape alone.
// `shortlist devices`: where it could run.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <string>

#include "command.hpp"
#include "shortlist/shortlist.hpp"

namespace shortlist::program {
namespace {

struct explain_options {
  search_shape shape;
  std::string storage = "full";
  std::string type = "f32";
  std::string metric = "ip";
  std::string device = "best";
};

struct explain_top_k_options {
  top_k_shape shape;
  std::string type = "f32";
  std::string indices_as = "i64";
  std::string device = "best";
};

struct explain_sample_options {
  sample_shape shape;
  std::string type = "f32";
  std::string device = "best";
};

void print_plan(std::string text) {
  if (!text.ends_with('\n')) text += '\n';
  fmt::print("{}", text);
}

void explain_search(const explain_options& options) {
  search_shape shape = options.shape;
  shape.type = parse_element_type(options.type);
  shape.metric = parse_metric(options.metric);
  shape.storage = parse_storage(options.storage);
  print_plan(explain(device::parse(options.device), shape));
}

void explain_rows(const explain_top_k_options& options) {
  top_k_shape shape = options.shape;
  shape.type = parse_value_type(options.type);
  if (options.indices_as == "i32") shape.indices_as = index_type::i32;
  print_plan(explain(device::parse(options.device), shape));
}

void explain_step(const explain_sample_options& options) {
  sample_shape shape = options.shape;
  shape.type = parse_value_type(options.type);
  print_plan(explain(device::parse(options.device), shape));
}

void list_devices() {
  std::size_t width = 0;
  const std::vector<device> devices = device::all();
  for (const device& one : devices) width = std::max(width, one.name().size());
  for (const device& one : devices) fmt::print("{:<{}}   {}\n", one.name(), width, one.description());
}

}  // namespace

void add_explain(CLI::App& app, action& chosen) {
  auto options = std::make_shared<explain_options>();
  CLI::App* command = app.add_subcommand("explain", "Print the plan of a search: algorithm, reason, bytes to read");
  command->add_option("-n,--rows", options->shape.rows, "rows of the index")->required()->type_name("N");
  command->add_option("--dim", options->shape.dim, "elements of a row")->required()->type_name("D");
  command->add_option("-q,--queries", options->shape.queries, "queries in one call")
      ->capture_default_str()
      ->type_name("Q");
  command->add_option("-k,--k", options->shape.k, "how many rows for each query")
      ->capture_default_str()
      ->type_name("K");
  command->add_option("-t,--type", options->type, kTypeHelp)->capture_default_str()->type_name("TYPE");
  command->add_option("-m,--metric", options->metric, kMetricHelp)->capture_default_str()->type_name("METRIC");
  command->add_option("-s,--storage", options->storage, kStorageHelp)->capture_default_str()->type_name("STORAGE");
  command->add_option("-d,--device", options->device, kDeviceHelp)->capture_default_str()->type_name("DEVICE");
  command->footer(
      "SHORTLIST_FORCE_FLAT_SEARCH=name overrides the plan.\n"
      "Example:\n  shortlist explain --rows 1000000 --dim 384 --queries 16 -k 100");
  command->callback([options, &chosen] { chosen = [options] { explain_search(*options); }; });
}

void add_explain_top_k(CLI::App& app, action& chosen) {
  auto options = std::make_shared<explain_top_k_options>();
  CLI::App* command =
      app.add_subcommand("explain-top-k", "Print the plan of a row-wise top k: algorithm, reason, bytes to move");
  command->add_option("-n,--rows", options->shape.rows, "rows of the matrix")->required()->type_name("N");
  command->add_option("-c,--cols", options->shape.cols, "columns of the matrix")->required()->type_name("C");
  command->add_option("-k,--k", options->shape.k, "how many of each row")->required()->type_name("K");
  command->add_option("-t,--type", options->type, "of the values: f32, f16, bf16 or f64")
      ->capture_default_str()
      ->type_name("TYPE");
  command->add_flag("--sorted", options->shape.sorted, "best first, as with --sorted of `shortlist top-k`");
  command->add_flag("--mask", options->shape.mask, "a mask, as with --mask of `shortlist top-k`");
  command->add_option("--index-type", options->indices_as, "of the columns: i32 or i64")
      ->capture_default_str()
      ->check(CLI::IsMember({"i32", "i64"}))
      ->type_name("TYPE");
  command->add_option("--col-stride", options->shape.col_stride, "elements from one column to the next")
      ->capture_default_str()
      ->type_name("S");
  command->add_flag("--early-stop", options->shape.early_stop, "as with --eps or --max-iter of `shortlist top-k`");
  command->add_option("-d,--device", options->device, kDeviceHelp)->capture_default_str()->type_name("DEVICE");
  command->footer(
      "SHORTLIST_FORCE_TOP_K=name overrides the plan.\n"
      "Examples:\n"
      "  shortlist explain-top-k --rows 1048576 --cols 256 -k 32\n"
      "  shortlist explain-top-k --rows 1 --cols 1000000000 -k 100 --sorted --device cuda");
  command->callback([options, &chosen] { chosen = [options] { explain_rows(*options); }; });
}

void add_explain_sample(CLI::App& app, action& chosen) {
  auto options = std::make_shared<explain_sample_options>();
  CLI::App* command =
      app.add_subcommand("explain-sample", "Print the plan of a sampling step: algorithm, reason, bytes to read");
  command->add_option("-n,--rows", options->shape.rows, "rows of the logits")->required()->type_name("N");
  command->add_option("-v,--vocab", options->shape.vocab, "tokens of the vocabulary")->required()->type_name("V");
  command->add_option("-k,--top-k", options->shape.top_k, "how many remain; 0: all, or a number for each row")
      ->capture_default_str()
      ->type_name("K");
  command->add_option("-t,--type", options->type, "of the logits: f32, f16 or bf16")
      ->capture_default_str()
      ->type_name("TYPE");
  command->add_option("-d,--device", options->device, kDeviceHelp)->capture_default_str()->type_name("DEVICE");
  command->footer(
      "SHORTLIST_FORCE_SAMPLE=name overrides the plan.\n"
      "Example:\n  shortlist explain-sample --rows 64 --vocab 128256 --type bf16 --top-k 50");
  command->callback([options, &chosen] { chosen = [options] { explain_step(*options); }; });
}

void add_devices(CLI::App& app, action& chosen) {
  CLI::App* command = app.add_subcommand("devices", "List the devices that searches can run on");
  command->footer("Example:\n  shortlist devices");
  command->callback([&chosen] { chosen = list_devices; });
}

}  // namespace shortlist::program
