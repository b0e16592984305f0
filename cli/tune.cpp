// `shortlist tune` and `shortlist suggest`: how to choose an IVF-PQ index and its searches.
#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "command.hpp"
#include "shortlist/shortlist.hpp"
#include "terminal.hpp"

namespace shortlist::program {
namespace {

using json = nlohmann::ordered_json;

struct tune_command {
  std::filesystem::path index;
  std::filesystem::path queries;
  std::filesystem::path truth;
  tune_options options;
  bool curve = false;
  std::int64_t refine_ratio = 0;
  std::string device = "best";
  bool json = false;
};

json point_of(const tune_point& point) {
  return {{"nprobe", point.nprobe},
          {"refine_ratio", point.refine_ratio},
          {"recall", point.recall},
          {"queries_per_second", point.queries_per_second},
          {"bytes_per_query", point.bytes_per_query}};
}

void print_point(std::FILE* to, const tune_point& point) {
  constexpr double kGigabyte = 1e9;
  fmt::print(to, "nprobe {:>6}   refine_ratio {:>3}   recall {:.4f}   {:>12} queries/s   {:>9.1f} GB/s by the model\n",
             point.nprobe, point.refine_ratio, point.recall,
             grouped(static_cast<std::int64_t>(point.queries_per_second)),
             point.queries_per_second * static_cast<double>(point.bytes_per_query) / kGigabyte);
}

void print_curve(const tune_command& command, const std::vector<tune_point>& points) {
  if (!command.json) {
    for (const tune_point& point : points) print_point(stdout, point);
    return;
  }
  json all = json::array();
  for (const tune_point& point : points) all.push_back(point_of(point));
  fmt::print("{}\n", json{{"k", command.options.k}, {"points", std::move(all)}}.dump(2));
}

void print_result(const tune_command& command, const tune_result& result) {
  if (command.json) {
    json all = json::array();
    for (const tune_point& point : result.points) all.push_back(point_of(point));
    fmt::print("{}\n", json{{"k", command.options.k},
                            {"wanted_recall", command.options.recall},
                            {"reached", result.reached},
                            {"best", point_of(result.best)},
                            {"points", std::move(all)}}
                           .dump(2));
    return;
  }
  if (!result.reached)
    fmt::print(stderr, "no search reached recall {}; this one came nearest\n", command.options.recall);
  print_point(stdout, result.best);
}

void tune(const tune_command& command) {
  const ivf_pq_index index = ivf_pq_index::load(device::parse(command.device), command.index);
  const vectors queries = read_vectors(command.queries);
  tune_options options = command.options;
  id_table truth;
  if (!command.truth.empty()) {
    truth = read_ids(command.truth);
    options.truth = {truth.data.data(), truth.rows, truth.dim};
  }
  const bool shows = is_terminal(stderr);
  options.progress = [&](const tune_point& point) {
    if (shows) print_point(stderr, point);
    return proceed::yes;
  };
  if (command.curve) {
    print_curve(command, recall_curve(index, queries.view(), options, command.refine_ratio));
  } else {
    print_result(command, shortlist::tune(index, queries.view(), options));
  }
}

struct suggest_command {
  ivf_pq_need need;
  double memory_gib = 0;
  double read_gb_per_second = 2000;
  std::string type = "f32";
  bool json = false;
};

void suggest(const suggest_command& command) {
  constexpr double kGibibyte = 1 << 30, kGigabyte = 1e9, kMost = 9e18;
  ivf_pq_need need = command.need;
  need.type = parse_element_type(command.type);
  const double bytes = command.memory_gib * kGibibyte;
  if (!(bytes >= 0 && bytes < kMost)) {
    throw invalid_argument(fmt::format("--memory is {}; allowed is a number of GiB, 0 or more", command.memory_gib));
  }
  need.memory_bytes = static_cast<std::int64_t>(bytes);
  need.read_bytes_per_second = command.read_gb_per_second * kGigabyte;
  const ivf_pq_suggestion made = shortlist::suggest(need);
  const json all = {{"nlist", made.options.nlist},
                    {"pq_dim", made.options.pq_dim},
                    {"keep", to_string(made.options.rows)},
                    {"nprobe", made.search.nprobe},
                    {"refine_ratio", made.search.refine_ratio},
                    {"device_bytes", made.device_bytes},
                    {"bytes_per_query", made.bytes_per_query},
                    {"predicted_qps", made.predicted_qps}};
  if (command.json) {
    fmt::print("{}\n", all.dump(2));
    return;
  }
  fmt::print(
      "nlist {}, pq_dim {}, rows kept: {}; {} of device memory\n"
      "nprobe {}, refine_ratio {}: {} of codes a query, at most {} queries/s at {} GB/s\n"
      "A guess from sizes alone; `shortlist tune` measures.\n",
      made.options.nlist, made.options.pq_dim, to_string(made.options.rows), readable_size(made.device_bytes),
      made.search.nprobe, made.search.refine_ratio, readable_size(made.bytes_per_query),
      grouped(static_cast<std::int64_t>(made.predicted_qps)), command.read_gb_per_second);
}

}  // namespace

void add_tune(CLI::App& app, action& chosen) {
  auto options = std::make_shared<tune_command>();
  CLI::App* command = app.add_subcommand("tune", "Find the fastest search of an IVF-PQ index that reaches a recall");
  command->add_option("index", options->index, "an IVF-PQ index file with rows")->required()->type_name("INDEX");
  command->add_option("queries", options->queries, "fbin, u8bin, i8bin, fvecs, bvecs or npy")
      ->required()
      ->type_name("QUERIES");
  command->add_option("-r,--recall", options->options.recall, "the recall to reach")
      ->capture_default_str()
      ->type_name("R");
  command->add_option("-k,--k", options->options.k, "how many rows for each query")
      ->capture_default_str()
      ->type_name("K");
  command
      ->add_option("--truth", options->truth,
                   "the true nearest ids, ibin, ivecs or npy; else the kept rows are searched exactly")
      ->type_name("FILE");
  command->add_flag("--curve", options->curve, "measure at every power of two of nprobe instead");
  command->add_option("--refine", options->refine_ratio, "with --curve: the refine_ratio")
      ->capture_default_str()
      ->type_name("RATIO");
  command->add_option("-d,--device", options->device, kDeviceHelp)->capture_default_str()->type_name("DEVICE");
  command->add_flag("--json", options->json, "as one JSON object, with all that was measured");
  command->footer("Example:\n  shortlist tune base.ivf queries.fbin --recall 0.95 --truth truth.ibin");
  command->callback([options, &chosen] { chosen = [options] { tune(*options); }; });
}

void add_suggest(CLI::App& app, action& chosen) {
  auto options = std::make_shared<suggest_command>();
  CLI::App* command = app.add_subcommand("suggest", "Guess the parameters of an IVF-PQ index from sizes alone");
  command->add_option("--rows", options->need.rows, "rows")->required()->type_name("N");
  command->add_option("--dim", options->need.dim, "elements of a row")->required()->type_name("N");
  command->add_option("-t,--type", options->type, kTypeHelp)->capture_default_str()->type_name("TYPE");
  command->add_option("--memory", options->memory_gib, "of the device, in GiB")->required()->type_name("GIB");
  command->add_option("-r,--recall", options->need.recall, "of the ten nearest")->capture_default_str()->type_name("R");
  command->add_option("--read-speed", options->read_gb_per_second, "of the device's memory, in GB/s")
      ->capture_default_str()
      ->type_name("GB/S");
  command->add_flag("--json", options->json, "as one JSON object");
  command->footer("Example:\n  shortlist suggest --rows 1000000000 --dim 96 --memory 80 --recall 0.95");
  command->callback([options, &chosen] { chosen = [options] { suggest(*options); }; });
}

}  // namespace shortlist::program
