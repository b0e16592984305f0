// shortlist_bench: runs one campaign of measurements and writes its records as JSON. Every answer is verified before it
// is timed; a wrong one has no time, and the exit code is 1. run_campaign.py calls this and adds the peers.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <fstream>
#include <iostream>
#include <string>

#include "campaigns.hpp"
#include "machine.hpp"
#include "shortlist/shortlist.hpp"

namespace shortlist::benchmark {
namespace {

struct named_campaign {
  const char* name;
  limits_report (*run)(results&, const campaign_settings&);
  nlohmann::ordered_json (*accuracy)(const results&, const campaign_settings&) = nullptr;
};
constexpr named_campaign kCampaigns[] = {
    {"seeds", run_seeds},
    {"flat_gpu", run_flat_gpu},
    {"flat_cpu", run_flat_cpu},
    {"flat_certified", run_flat_certified},
    {"flat_certified_gpu", run_flat_certified_gpu},
    {"flat_host_rows", run_flat_host_rows},
    {"rows", run_rows, rows_accuracy},
    {"logits", run_logits},
    {"ivf_pq", run_ivf_pq},
    {"ivf_pq_billion", run_ivf_pq_billion},
    {"ivf_pq_wide", run_ivf_pq_wide},
};

/// SHORTLIST_COMMIT, or what git says of the folder that this runs in.
std::string commit() {
  if (const char* given = std::getenv("SHORTLIST_COMMIT")) return given;
  std::string hash;
  if (FILE* git = popen("git describe --always --dirty --abbrev=12 --exclude '*' 2>/dev/null", "r")) {
    std::array<char, 64> line{};
    if (std::fgets(line.data(), line.size(), git)) hash = line.data();
    pclose(git);
  }
  hash.erase(std::remove(hash.begin(), hash.end(), '\n'), hash.end());
  return hash.empty() ? "unknown" : hash;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text.data();
}

int run(int argc, char** argv) {
  CLI::App app{"Runs one campaign of measurements: verified first, then timed, written as JSON.", "shortlist_bench"};
  std::string chosen;
  std::string only;
  std::string file;
  campaign_settings settings;
  std::vector<std::string> names;
  for (const auto& c : kCampaigns) names.emplace_back(c.name);
  app.add_option("--campaign", chosen, "what to measure")->required()->check(CLI::IsMember(names));
  app.add_option("--only", only, "only work whose name contains this")->type_name("SUBSTRING");
  app.add_option("--out", file, "where the JSON goes; without it, to stdout")->type_name("FILE");
  app.add_flag("--quick", settings.quick, "fewer repetitions; for a look, not for a record");
  app.add_option("--gigabytes", settings.gigabytes, "rows of flat_host_rows")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& failure) {
    return app.exit(failure) == 0 ? 0 : 2;
  }

  std::string command = "shortlist_bench";
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--out") {
      ++i;  // where the result goes says nothing about it
    } else {
      command += std::string(" ") + argv[i];
    }
  }
  nlohmann::ordered_json document = {{"campaign", chosen},
                                     {"machine", describe_machine()},
                                     {"commit", commit()},
                                     {"library", version()},
                                     {"date", utc_now()},
                                     {"command", command},
                                     {"limits", nlohmann::json::object()}};
  results out(only);
  bool finished = true;
  try {
    const auto* campaign = std::ranges::find(kCampaigns, chosen, &named_campaign::name);
    document["limits"] = campaign->run(out, settings);
    if (campaign->accuracy) document["accuracy"] = campaign->accuracy(out, settings);
  } catch (const std::exception& failure) {  // what was measured before it still is written
    fmt::print(stderr, "shortlist_bench: {}\n", failure.what());
    finished = false;
  }
  document["records"] = out.records();

  const std::string text = document.dump(1) + "\n";
  if (file.empty()) {
    std::cout << text;
  } else if (!(std::ofstream(file) << text).flush()) {
    fmt::print(stderr, "shortlist_bench: cannot write {}\n", file);
    return 1;
  }
  return finished && out.all_right() ? 0 : 1;
}

}  // namespace
}  // namespace shortlist::benchmark

int main(int argc, char** argv) {
  try {
    return shortlist::benchmark::run(argc, argv);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "shortlist_bench: %s\n", failure.what());
    return 1;
  }
}
