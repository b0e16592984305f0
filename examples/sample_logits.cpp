// Draws a next word for each of 24 recorded contexts, in three ways, and prints what was likely.
//
// usage: sample_logits [FOLDER]: that of logits.npy, contexts.txt and vocabulary.txt, made by tools/make_logits.py
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <shortlist/shortlist.hpp>
#include <string>
#include <vector>

namespace sl = shortlist;

constexpr int kLikely = 3;

std::vector<std::string> read_lines(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

struct way {
  const char* name;
  sl::sample_params params;
  std::vector<std::int32_t> tokens = {};  // [rows]
};

void run(const std::filesystem::path& folder) {
  const sl::matrix_data logits = sl::read_npy_matrix(folder / "logits.npy");
  const std::vector<std::string> contexts = read_lines(folder / "contexts.txt");
  const std::vector<std::string> words = read_lines(folder / "vocabulary.txt");
  const auto rows = static_cast<std::size_t>(logits.rows);
  if (contexts.size() != rows || words.size() != static_cast<std::size_t>(logits.cols)) {
    throw sl::corrupt_file("contexts.txt and vocabulary.txt do not have a line for each row and column of logits.npy");
  }

  // One seed for all, and for every row another offset: no two draws share a random number.
  std::vector<std::uint64_t> offsets(rows);
  for (std::size_t row = 0; row < rows; ++row) offsets[row] = row;
  way ways[] = {{"greedy", {.temperature = 0.0f}},
                {"t 0.8, top_k 50, top_p 0.95",
                 {.temperature = 0.8f, .top_k = 50, .top_p = 0.95f, .seed = 7u, .offset = offsets.data()}},
                {"min_p 0.1", {.min_p = 0.1f, .seed = 8u, .offset = offsets.data()}}};

  const sl::stream s(sl::device::cpu());
  std::vector<std::int32_t> likely(rows * kLikely);
  std::vector<float> logprobs(rows * kLikely);
  for (way& one : ways) {
    one.tokens.resize(rows);
    // Once is enough: log-probabilities are those before all filters, at temperature 0 those of temperature 1.
    sl::sample_output out{.tokens = one.tokens.data()};
    if (&one == ways) {
      out.top_n = kLikely;
      out.top_tokens = likely.data();
      out.top_logprobs = logprobs.data();
    }
    sl::sample(s, logits.view(), one.params, out);
  }

  for (std::size_t row = 0; row < rows; ++row) {
    std::printf("%s ...\n  likely:", contexts[row].c_str());
    for (std::size_t at = row * kLikely; at < (row + 1) * kLikely; ++at) {
      std::printf(" %s (%.3f)", words[static_cast<std::size_t>(likely[at])].c_str(), static_cast<double>(logprobs[at]));
    }
    std::printf("\n");
    for (const way& one : ways) {
      std::printf("  %s: %s\n", one.name, words[static_cast<std::size_t>(one.tokens[row])].c_str());
    }
  }
}

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : "data/logits");
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "sample_logits: %s\n", failure.what());
    return 1;
  }
}
