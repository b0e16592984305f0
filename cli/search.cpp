// `shortlist search`: an index file and a file of queries -> the k best of each query.
#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <memory>
#include <string>
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

std::string table(const search_result& result) {
  std::vector<std::string> ids, scores;
  std::size_t id_width = 2;
  for (std::int64_t query = 0; query < result.queries; ++query) {
    for (std::int64_t place = 0; place < result.k_found; ++place) {
      ids.push_back(fmt::format("{}", result.ids_of(query)[static_cast<std::size_t>(place)]));
      scores.push_back(fmt::format("{}", result.scores_of(query)[static_cast<std::size_t>(place)]));
      id_width = std::max(id_width, ids.back().size());
    }
  }
  std::string text = fmt::format("query   rank   {:>{}}   score\n", "id", id_width);
  std::size_t at = 0;
  for (std::int64_t query = 0; query < result.queries; ++query) {
    for (std::int64_t place = 0; place < result.k_found; ++place, ++at) {
      fmt::format_to(std::back_inserter(text), "{:>5}   {:>4}   {:>{}}   {}\n", query, place + 1, ids[at], id_width,
                     scores[at]);
    }
  }
  return text;
}

/// JSON has no infinity and no NaN: such scores become null. Padding beyond k_found is left out.
std::string json(const search_result& result, const flat_index& index) {
  std::string text =
      fmt::format("{{\"metric\":\"{}\",\"rows\":{},\"dim\":{},\"queries\":{},\"k\":{},\"k_found\":{},\"results\":[",
                  to_string(index.metric()), index.rows(), index.dim(), result.queries, result.k, result.k_found);
  const auto out = std::back_inserter(text);
  const auto found = static_cast<std::size_t>(result.k_found);
  for (std::int64_t query = 0; query < result.queries; ++query) {
    fmt::format_to(out, "{}\n{{\"query\":{},\"ids\":[{}],\"scores\":[", query == 0 ? "" : ",", query,
                   fmt::join(result.ids_of(query).first(found), ","));
    const char* comma = "";
    for (const float score : result.scores_of(query).first(found)) {
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

void search(const search_command& command) {
  const std::string format = chosen_format(command);
  if (format == "ibin" && command.output.empty()) {
    throw invalid_argument("--output is missing; --format ibin is binary and allowed only with -o FILE");
  }
  using clock = std::chrono::steady_clock;
  const auto since = [](clock::time_point start) {
    return std::chrono::duration<double>(clock::now() - start).count();
  };

  const auto load_start = clock::now();
  const flat_index index = flat_index::load(device::parse(command.device), command.index);
  const double load_seconds = since(load_start);
  const vectors queries = read_vectors(command.queries);

  const auto search_start = clock::now();
  const search_result result = index.search(queries.view(), {.k = command.k});
  const double search_seconds = since(search_start);

  if (command.verify) verify_result(command, index, queries, result);  // first: what is wrong is not written
  if (format == "ibin") {
    const hold_interrupts held;
    write_ibin(command.output, {result.ids.data(), result.queries, result.k});
  } else {
    emit(format == "json" ? json(result, index) : table(result), command.output);
  }
  if (command.time) {
    fmt::print(stderr, "{}: index loaded in {}; {} {} in {}, {} a query\n", index.where().name(),
               readable_time(load_seconds), grouped(result.queries), result.queries == 1 ? "query" : "queries",
               readable_time(search_seconds),
               readable_time(search_seconds / static_cast<double>(std::max<std::int64_t>(1, result.queries))));
  }
}

}  // namespace

void add_search(CLI::App& app, action& chosen) {
  auto options = std::make_shared<search_command>();
  CLI::App* command = app.add_subcommand("search", "Find the k best rows of an index for each query of a file");
  command->add_option("index", options->index, "an index file made by `shortlist build`")
      ->required()
      ->type_name("INDEX");
  command->add_option("queries", options->queries, "fbin, u8bin, i8bin, fvecs, bvecs or npy")
      ->required()
      ->type_name("QUERIES");
  command->add_option("-k,--k", options->k, "how many rows for each query")->capture_default_str()->type_name("K");
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
      "  shortlist search base.safetensors queries.fbin -k 100 -o answers.ibin --verify --corpus base.fbin");
  command->callback([options, &chosen] { chosen = [options] { search(*options); }; });
}

}  // namespace shortlist::program
