// The commands of the program: each declares its options on the parser and leaves behind what is to be run.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace shortlist::program {

/// What the chosen command does; it throws when it fails.
using action = std::function<void()>;

void add_build(CLI::App& app, action& chosen);
void add_search(CLI::App& app, action& chosen);
void add_train(CLI::App& app, action& chosen);
void add_add(CLI::App& app, action& chosen);
void add_tune(CLI::App& app, action& chosen);
void add_suggest(CLI::App& app, action& chosen);
void add_info(CLI::App& app, action& chosen);
void add_top_k(CLI::App& app, action& chosen);
void add_sample(CLI::App& app, action& chosen);
void add_explain(CLI::App& app, action& chosen);
void add_explain_top_k(CLI::App& app, action& chosen);
void add_explain_sample(CLI::App& app, action& chosen);
void add_bench(CLI::App& app, action& chosen);
void add_devices(CLI::App& app, action& chosen);
void add_demo(CLI::App& app, action& chosen);

// Words that several commands share in their help. The library parses the values and names the known ones.
inline constexpr char kDeviceHelp[] = "cpu, cuda, cuda:1 (a GPU by number) or best (a GPU if there is one)";
inline constexpr char kMetricHelp[] = "ip (inner product), cosine or l2 (squared distance)";
inline constexpr char kStorageHelp[] =
    "full, int8_and_full (an int8 plane beside the rows, for faster searches) or int8_and_host (rows in host memory)";
inline constexpr char kTypeHelp[] = "how rows are stored: f32, f16, bf16, i8 or u8";

}  // namespace shortlist::program
