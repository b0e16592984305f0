// `shortlist search`: an index file and a file of queries -> the k best of each query.
#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "command.hpp"
#include "compare.hpp"
#include "corpus.hpp"
#include "output.hpp"
#include "shortlist/shortlist.hpp"
#include "terminal.hpp"

namespace shortlist::program {
namespace {

struct search_command {
  std::filesystem::path index;
  std::filesystem::path queries;
  std::int64_t k = 10;
  std::optional<std::int64_t> nprobe;
  std::optional<std::int64_t> refine_ratio;
  std::filesystem::path truth;
  std::string device = "best";
  std::string format;
  std::filesystem::path output;
  bool verify = false;
  std::vector<std::filesystem::path> corpus;
  std::filesystem::path ids;
  bool time = false;
};

/// The format that was asked for, or the one that the output's name suggests.
std::string chosen_format(const search_command& command) {
  if (!command.format.empty()) return command.format;
  const auto extension = command.output.extension();
  return extension == ".ibin" ? "ibin" : extension == ".json" ? "json" : "table";
}

/// The answer of any kind of index, and what it was asked of.
struct answer {
  ivf_pq_result result;
  shortlist::metric metric;
  std::int64_t rows;
  std::int64_t dim;
  bool same_found;  ///< every query finds as many, k_found is one number
  double load_seconds;
  double search_seconds;
  std::string device;

  auto ids_of(std::int64_t query) const { return result.ids_of(query).first(found(query)); }
  auto scores_of(std::int64_t query) const { return result.scores_of(query).first(found(query)); }

 private:
  std::size_t found(std::int64_t query) const {
    return static_cast<std::size_t>(result.k_found[static_cast<std::size_t>(query)]);
  }
};

std::string table(const answer& found) {
  std::vector<std::string> ids, scores;
  std::size_t id_width = 2;
  for (std::int64_t query = 0; query < found.result.queries; ++query) {
    for (const std::int64_t id : found.ids_of(query)) {
      ids.push_back(fmt::format("{}", id));
      id_width = std::max(id_width, ids.back().size());
    }
    for (const float score : found.scores_of(query)) scores.push_back(fmt::format("{}", score));
  }
  std::string text = fmt::format("query   rank   {:>{}}   score\n", "id", id_width);
  std::size_t at = 0;
  for (std::int64_t query = 0; query < found.result.queries; ++query) {
    for (std::size_t place = 1; place <= found.ids_of(query).size(); ++place, ++at) {
      fmt::format_to(std::back_inserter(text), "{:>5}   {:>4}   {:>{}}   {}\n", query, place, ids[at], id_width,
                     scores[at]);
    }
  }
  return text;
}

/// JSON has no infinity and no NaN: such scores become null. Padding behind what was found is left out.
std::string json(const answer& found) {
  const ivf_pq_result& result = found.result;
  std::string text = fmt::format("{{\"metric\":\"{}\",\"rows\":{},\"dim\":{},\"queries\":{},\"k\":{},",
                                 to_string(found.metric), found.rows, found.dim, result.queries, result.k);
  const auto out = std::back_inserter(text);
  if (found.same_found) {
    fmt::format_to(out, "\"k_found\":{},", std::min(result.k, found.rows));
  }
  text += "\"results\":[";
  for (std::int64_t query = 0; query < result.queries; ++query) {
    fmt::format_to(out, "{}\n{{\"query\":{},\"ids\":[{}],\"scores\":[", query == 0 ? "" : ",", query,
                   fmt::join(found.ids_of(query), ","));
    const char* comma = "";
    for (const float score : found.scores_of(query)) {
      if (std::isfinite(score))
        fmt::format_to(out, "{}{}", comma, score);
      else
        fmt::format_to(out, "{}null", comma);
      comma = ",";
    }
    text += "]}";
  }
  return text + "\n]}\n";
}

void emit(const std::string& text, const std::filesystem::path& output) {
  if (output.empty())
    fmt::print("{}", text);
  else
    write_file(output, text);
}

void verify_result(const search_command& command, const flat_index& index, const vectors& queries,
                   const search_result& result) {
  corpus from(command.corpus, index.type());
  if (from.rows() != index.rows() || from.dim() != index.dim()) {
    throw invalid_argument(
        fmt::format("--corpus holds {} rows of dim {}; allowed is what the index holds, {} rows of dim {}", from.rows(),
                    from.dim(), index.rows(), index.dim()));
  }
  const std::vector<std::int64_t> ids =
      command.ids.empty() ? std::vector<std::int64_t>() : read_labels(command.ids, from.rows());
  const vectors rows = from.read_all();
  const search_result expected = reference_search(rows.view(), queries.view(), index.metric(), {.k = command.k}, ids);
  if (const auto difference = first_difference(result, "the index", expected, "the reference")) {
    throw error("verification failed: " + *difference);
  }
  fmt::print(stderr, "verified: {} {} x {} places, every id and every bit of every score equals the reference's\n",
             grouped(result.queries), result.queries == 1 ? "query" : "queries", grouped(result.k));
}

using seconds_clock = std::chrono::steady_clock;

double seconds_since(seconds_clock::time_point start) {
  return std::chrono::duration<double>(seconds_clock::now() - start).count();
}

answer search_flat(const search_command& command, const vectors& queries) {
  if (command.nprobe || command.refine_ratio) {
    throw invalid_argument("--nprobe and --refine are given; allowed for an IVF-PQ index alone, and this one is flat");
  }
  const auto load_start = seconds_clock::now();
  const flat_index index = flat_index::load(device::parse(command.device), command.index);
  const double load_seconds = seconds_since(load_start);
  const auto start = seconds_clock::now();
  search_result result = index.search(queries.view(), {.k = command.k});
  const double search_seconds = seconds_since(start);
  if (command.verify) verify_result(command, index, queries, result);  // first: what is wrong is not written
  return {.result = {.queries = result.queries,
                     .k = result.k,
                     .k_found = std::vector<std::int64_t>(static_cast<std::size_t>(result.queries), result.k_found),
                     .scores = std::move(result.scores),
                     .ids = std::move(result.ids)},
          .metric = index.metric(),
          .rows = index.rows(),
          .dim = index.dim(),
          .same_found = true,
          .load_seconds = load_seconds,
          .search_seconds = search_seconds,
          .device = index.where().name()};
}

answer search_ivf_pq(const search_command& command, const vectors& queries) {
  if (command.verify) {
    throw invalid_argument(
        "--verify is given; allowed for a flat index alone: what an IVF-PQ index finds is approximate");
  }
  const auto load_start = seconds_clock::now();
  const ivf_pq_index index = ivf_pq_index::load(device::parse(command.device), command.index);
  const double load_seconds = seconds_since(load_start);
  ivf_pq_search_options options = {.k = command.k, .refine_ratio = command.refine_ratio.value_or(0)};
  options.nprobe = command.nprobe.value_or(std::min(options.nprobe, index.options().nlist));
  const auto start = seconds_clock::now();
  ivf_pq_result result = index.search(queries.view(), options);
  const double search_seconds = seconds_since(start);
  return {.result = std::move(result),
          .metric = index.options().metric,
          .rows = index.rows(),
          .dim = index.options().dim,
          .same_found = false,
          .load_seconds = load_seconds,
          .search_seconds = search_seconds,
          .device = index.where().name()};
}

void print_recall(const search_command& command, const answer& found) {
  const id_table truth = read_ids(command.truth);
  const double recall = recall_of({found.result.ids.data(), found.result.queries, found.result.k},
                                  {truth.data.data(), truth.rows, truth.dim}, command.k);
  fmt::print(stderr, "recall@{}: {:.4f}\n", command.k, recall);
}

void search(const search_command& command) {
  const std::string format = chosen_format(command);
  if (format == "ibin" && command.output.empty()) {
    throw invalid_argument("--output is missing; --format ibin is binary and allowed only with -o FILE");
  }
  const index_kind kind = summarize_index(command.index).kind;
  const vectors queries = read_vectors(command.queries);
  const answer found = kind == index_kind::flat ? search_flat(command, queries) : search_ivf_pq(command, queries);
  if (format == "ibin") {
    const hold_interrupts held;
    write_ibin(command.output, {found.result.ids.data(), found.result.queries, found.result.k});
  } else {
    emit(format == "json" ? json(found) : table(found), command.output);
  }
  if (!command.truth.empty()) print_recall(command, found);
  if (command.time) {
    const std::int64_t count = found.result.queries;
    fmt::print(stderr, "{}: index loaded in {}; {} {} in {}, {} a query\n", found.device,
               readable_time(found.load_seconds), grouped(count), count == 1 ? "query" : "queries",
               readable_time(found.search_seconds),
               readable_time(found.search_seconds / static_cast<double>(std::max<std::int64_t>(1, count))));
  }
}

}  // namespace

void add_search(CLI::App& app, action& chosen) {
  auto options = std::make_shared<search_command>();
  CLI::App* command = app.add_subcommand("search", "Find the k best rows of an index for each query of a file");
  command->add_option("index", options->index, "an index file made by `shortlist build`, or by `train` and `add`")
      ->required()
      ->type_name("INDEX");
  command->add_option("queries", options->queries, "fbin, u8bin, i8bin, fvecs, bvecs or npy")
      ->required()
      ->type_name("QUERIES");
  command->add_option("-k,--k", options->k, "how many rows for each query")->capture_default_str()->type_name("K");
  command->add_option("--nprobe", options->nprobe, "of an IVF-PQ index: lists to look at, else 32")->type_name("N");
  command
      ->add_option("--refine", options->refine_ratio,
                   "of an IVF-PQ index that keeps rows: RATIO x K candidates are scored by their rows, else none")
      ->type_name("RATIO");
  command->add_option("--truth", options->truth, "the true nearest ids, ibin, ivecs or npy: state the recall on stderr")
      ->type_name("FILE");
  command->add_option("-d,--device", options->device, kDeviceHelp)->capture_default_str()->type_name("DEVICE");
  command
      ->add_option("-f,--format", options->format,
                   "table, json or ibin (ids alone); else by the output's name, or table")
      ->check(CLI::IsMember({"table", "json", "ibin"}))
      ->type_name("FORMAT");
  command->add_option("-o,--output", options->output, "the file to write, else standard output")->type_name("FILE");
  CLI::Option* verify =
      command->add_flag("--verify", options->verify, "check every id and score against the slow reference");
  CLI::Option* from =
      command->add_option("--corpus", options->corpus, "with --verify: the vector files that the index was built from")
          ->type_name("FILE");
  CLI::Option* ids =
      command->add_option("--ids", options->ids, "with --verify: the labels that the index was built with")
          ->type_name("FILE");
  verify->needs(from);
  from->needs(verify);
  ids->needs(verify);
  command->add_flag("--time", options->time, "state the times on stderr");
  command->footer(
      "Examples:\n"
      "  shortlist search base.safetensors queries.fbin -k 5\n"
      "  shortlist search base.safetensors queries.fbin -k 100 -o answers.ibin --verify --corpus base.fbin\n"
      "  shortlist search base.ivf queries.fbin --nprobe 64 --refine 4 --truth truth.ibin");
  command->callback([options, &chosen] { chosen = [options] { search(*options); }; });
}

}  // namespace shortlist::program
