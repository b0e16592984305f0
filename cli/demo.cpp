// `shortlist demo`: twelve questions to a corpus of 2478 passages, answered, timed and checked against the reference.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "command.hpp"
#include "compare.hpp"
#include "shortlist/shortlist.hpp"
#include "terminal.hpp"

namespace shortlist::program {
namespace {

namespace fs = std::filesystem;

constexpr char kFolder[] = "help_wiki";
constexpr std::int64_t kShown = 3;         // passages printed for each question
constexpr int kTextLines = 2;              // lines of each passage's text
constexpr std::int64_t kTimedRuns = 3000;  // single searches, about a second on a slow machine

struct passage {
  std::string source;
  std::string title;
  std::string text;
};

/// The folder with the demo's data: named by the user, by the environment, or beside the program as it was built or
/// installed.
fs::path find_data(const fs::path& named) {
  std::vector<fs::path> candidates;
  if (!named.empty()) {
    candidates = {named, named / kFolder};
  } else if (const char* repository_data = std::getenv("SHORTLIST_REPOSITORY_DATA")) {
    candidates = {fs::path(repository_data) / kFolder, repository_data};
  } else {
    std::error_code unreadable;
    const fs::path program = fs::read_symlink("/proc/self/exe", unreadable).parent_path();
    for (const char* up : {"../data", "../../data", "../../../data", "../share/shortlist/data"}) {
      candidates.push_back((program / up).lexically_normal() / kFolder);
    }
  }
  std::string tried;
  for (const fs::path& folder : candidates) {
    std::error_code unreadable;
    if (fs::exists(folder / "base.fbin", unreadable)) return folder;
    tried += (tried.empty() ? "" : ", ") + folder.string();
  }
  throw io_error(
      fmt::format("the demo's data (base.fbin and its companions) is not in {}; name its folder with --data", tried));
}

std::vector<std::string> read_lines(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(std::move(line));
  if (!file.eof()) throw io_error(fmt::format("cannot read {}", path.string()));
  return lines;
}

/// passages.tsv: id, source, title, text; the id of line i is i.
std::vector<passage> read_passages(const fs::path& path) {
  std::vector<passage> passages;
  for (std::string_view line : read_lines(path)) {
    std::vector<std::string> fields;
    for (std::size_t tab = 0; tab != std::string_view::npos;) {
      tab = line.find('\t');
      fields.emplace_back(line.substr(0, tab));
      if (tab != std::string_view::npos) line.remove_prefix(tab + 1);
    }
    if (fields.size() != 4 || fields[0] != std::to_string(passages.size())) {
      throw corrupt_file(fmt::format("{}: line {} is not id, source, title, text with id {}", path.string(),
                                     passages.size() + 1, passages.size()));
    }
    passages.push_back({std::move(fields[1]), std::move(fields[2]), std::move(fields[3])});
  }
  return passages;
}

struct demo_data {
  vectors base;
  vectors queries;
  std::vector<std::string> questions;
  std::vector<passage> passages;
};

demo_data read_data(const fs::path& folder) {
  demo_data data{read_vectors(folder / "base.fbin"), read_vectors(folder / "queries.fbin"),
                 read_lines(folder / "queries.txt"), read_passages(folder / "passages.tsv")};
  if (std::ssize(data.passages) != data.base.rows || std::ssize(data.questions) != data.queries.rows) {
    throw corrupt_file(fmt::format("{}: {} passages and {} questions have {} and {} vectors", folder.string(),
                                   data.passages.size(), data.questions.size(), data.base.rows, data.queries.rows));
  }
  return data;
}

struct device_run {
  device where;
  double build_seconds = 0;
  double median_seconds = 0;  ///< one query, host to host
  search_result best;         ///< [questions, kShown]
  search_result ranking;      ///< [questions, passages]: all of them, best first
  search_stats stats;         ///< of `best`
};

/// The median time of one question at a time, all questions in turn.
double median_time(const flat_index& index, const vectors& queries) {
  using clock = std::chrono::steady_clock;
  const auto row_bytes = queries.dim * size_bytes(queries.type);
  std::vector<float> scores(kShown);
  std::vector<std::int64_t> ids(kShown);
  std::vector<double> seconds;
  for (std::int64_t run = 0; run < kTimedRuns; ++run) {
    const std::byte* query = queries.data.data() + (run % queries.rows) * row_bytes;
    const auto start = clock::now();
    index.search({query, queries.type, 1, queries.dim, queries.dim}, {.k = kShown}, {scores.data(), ids.data()});
    seconds.push_back(std::chrono::duration<double>(clock::now() - start).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + kTimedRuns / 2, seconds.end());
  return seconds[kTimedRuns / 2];
}

device_run run_on(device where, const demo_data& data) {
  using clock = std::chrono::steady_clock;
  const auto start = clock::now();
  flat_index index(where, {.dim = data.base.dim, .storage = storage::int8_and_full});
  index.add(data.base.view());
  device_run run{.where = where, .best = {}, .ranking = {}, .stats = {}};
  run.build_seconds = std::chrono::duration<double>(clock::now() - start).count();
  run.best = index.search(data.queries.view(), {.k = kShown, .stats = &run.stats});
  run.ranking = index.search(data.queries.view(), {.k = data.base.rows});
  run.median_seconds = median_time(index, data.queries);
  return run;
}

/// The GPU of this machine, or why there is none.
std::optional<device> find_gpu(std::string& why_not) {
  try {
    return device::cuda();
  } catch (const error& none) {
    why_not = none.what();
    return std::nullopt;
  }
}

void print_answers(const demo_data& data, const search_result& best) {
  const styles style;
  constexpr int kIndent = 11;
  const int width = text_width() - kIndent;
  for (std::int64_t question = 0; question < data.queries.rows; ++question) {
    fmt::print("\n{}\n",
               style.bold(fmt::format("{:>2}. {}", question + 1, data.questions[static_cast<std::size_t>(question)])));
    for (std::int64_t place = 0; place < best.k_found; ++place) {
      const auto at = static_cast<std::size_t>(place);
      const passage& found = data.passages[static_cast<std::size_t>(best.ids_of(question)[at])];
      fmt::print("    {:.3f}  {}  {}\n", best.scores_of(question)[at], found.title,
                 style.dim("[" + found.source + "]"));
      for (const std::string& line : wrap(found.text, width, kTextLines)) fmt::print("{:{}}{}\n", "", kIndent, line);
    }
  }
}

/// @throws error at the first bit that differs.
void check(const device_run& run, const search_result& best, const search_result& ranking, std::string_view name) {
  for (const auto& [result, expected] : {std::pair(&run.best, &best), std::pair(&run.ranking, &ranking)}) {
    if (const auto difference = first_difference(*result, run.where.name(), *expected, name)) {
      throw error("the check failed: " + *difference);
    }
  }
}

void demo(const fs::path& named_data) {
  const demo_data data = read_data(find_data(named_data));
  std::string why_no_gpu;
  const std::optional<device> gpu = find_gpu(why_no_gpu);

  std::vector<device_run> runs;
  runs.push_back(run_on(device::cpu(), data));
  if (gpu) runs.push_back(run_on(*gpu, data));

  fmt::print("{} passages x {} dimensions, {} questions; the {} best of each by inner product:\n",
             grouped(data.base.rows), data.base.dim, data.queries.rows, kShown);
  print_answers(data, runs.back().best);

  fmt::print("\n");
  for (const device_run& run : runs) {
    fmt::print("{:<7} {} a query (median of {}), index built in {}; {}\n", run.where.name(),
               readable_time(run.median_seconds), grouped(kTimedRuns), readable_time(run.build_seconds),
               run.where.description());
    if (run.stats.certified_queries > 0) {
      fmt::print("        {} of {} questions certified by int8 bounds: {:.1f} of {} scores computed for each\n",
                 run.stats.certified_queries, data.queries.rows,
                 static_cast<double>(run.stats.survivors) / static_cast<double>(run.stats.certified_queries),
                 grouped(data.base.rows));
    }
  }
  if (!gpu) fmt::print("cuda    not used: {}\n", why_no_gpu);

  const search_result best =
      reference_search(data.base.view(), data.queries.view(), metric::inner_product, {.k = kShown});
  const search_result ranking =
      reference_search(data.base.view(), data.queries.view(), metric::inner_product, {.k = data.base.rows});
  for (const device_run& run : runs) check(run, best, ranking, "the reference");
  fmt::print(
      "checked {} questions, the {} best and the whole ranking of {}: every id and every bit of every score "
      "equals the reference's\n",
      data.queries.rows, kShown, grouped(data.base.rows));
  if (gpu) {
    check(runs.back(), runs.front().best, runs.front().ranking, runs.front().where.name());
    fmt::print("        {} and {} gave the same bits\n", runs.front().where.name(), runs.back().where.name());
  }
}

}  // namespace

void add_demo(CLI::App& app, action& chosen) {
  auto data = std::make_shared<fs::path>();
  CLI::App* command = app.add_subcommand("demo", "Answer twelve questions from a small real corpus, timed and checked");
  command
      ->add_option("--data", *data,
                   "the folder of the demo's data; else SHORTLIST_REPOSITORY_DATA, or beside the program")
      ->type_name("DIR");
  command->footer("Example:\n  shortlist demo");
  command->callback([data, &chosen] { chosen = [data] { demo(*data); }; });
}

}  // namespace shortlist::program
