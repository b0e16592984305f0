// The program `shortlist`: vector search from the command line, on the public API alone.
//
// Exit codes: 0 done, 1 failed, 2 wrong use. An error is one line on stderr.
#include <fmt/core.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>

#include "command.hpp"
#include "shortlist/shortlist.hpp"

namespace {

namespace program = shortlist::program;

enum exit_code : int { kDone = 0, kFailed = 1, kWrongUse = 2 };

int report(exit_code code, std::string message) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  std::fputs(("shortlist: " + message + "\n").c_str(), stderr);
  return code;
}

/// A blank line after the description.
class help_formatter : public CLI::Formatter {
 public:
  std::string make_description(const CLI::App* app) const override {
    return CLI::Formatter::make_description(app) + "\n";
  }
};

/// CLI11 says of an unknown command only that one is required.
std::string describe(const CLI::ParseError& wrong, const CLI::App& app) {
  const auto unknown = app.remaining();
  if (!app.get_subcommands().empty() || unknown.empty()) return wrong.what();
  std::string known;
  for (const CLI::App* command : app.get_subcommands({})) known += (known.empty() ? "" : ", ") + command->get_name();
  return fmt::format("command is {}; allowed is {}", unknown.front(), known);
}

/// The help to look at after a mistake: the command's own where one was recognised.
std::string help_command(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return "shortlist " + (parsed.empty() ? std::string() : parsed.front()->get_name() + " ") + "--help";
}

int run(int argc, char** argv) {
  // A file that passes the size limit is a failed write with a message, not the end of the process.
  std::signal(SIGXFSZ, SIG_IGN);

  CLI::App app{
      "Shortlist finds the k best of n vectors exactly, on the CPU and on NVIDIA GPUs, with the same answer "
      "to the bit.",
      "shortlist"};
  app.formatter(std::make_shared<help_formatter>());
  app.set_version_flag("--version", std::string("shortlist ") + shortlist::version(), "Print the version and exit");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.require_subcommand(1);
  app.footer("Start with:\n  shortlist demo\nEach command has its own help:\n  shortlist search --help");

  program::action chosen;
  program::add_build(app, chosen);
  program::add_search(app, chosen);
  program::add_train(app, chosen);
  program::add_add(app, chosen);
  program::add_tune(app, chosen);
  program::add_suggest(app, chosen);
  program::add_info(app, chosen);
  program::add_top_k(app, chosen);
  program::add_sample(app, chosen);
  program::add_explain(app, chosen);
  program::add_explain_top_k(app, chosen);
  program::add_explain_sample(app, chosen);
  program::add_bench(app, chosen);
  program::add_devices(app, chosen);
  program::add_demo(app, chosen);

  try {
    app.parse(argc, argv);
    if (chosen) chosen();
  } catch (const CLI::Success& request) {  // --help or --version
    app.exit(request);
  } catch (const CLI::ParseError& wrong) {
    return report(kWrongUse, fmt::format("{} (see {})", describe(wrong, app), help_command(app)));
  } catch (const shortlist::invalid_argument& wrong) {
    return report(kWrongUse, wrong.what());
  } catch (const std::bad_alloc&) {
    return report(kFailed, "out of memory");
  } catch (const std::length_error&) {  // more elements than any memory holds
    return report(kFailed, "out of memory");
  } catch (const std::exception& failure) {
    return report(kFailed, failure.what());
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return report(kFailed, "cannot write to standard output");
  return kDone;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (...) {  // even a message can fail for want of memory
    std::fputs("shortlist: failed, and could not say why\n", stderr);
    return kFailed;
  }
}
