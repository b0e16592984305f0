// shortlist_calls: how long small calls take from C++, for python_calls.py to set beside the same calls from Python.
//
// usage: shortlist_calls [cpu | cuda]
// On a GPU it is the time until the call returns; the queue is emptied between the batches that are timed.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "shortlist/shortlist.hpp"
#include "timing.hpp"

namespace {

using namespace shortlist;

constexpr int kCallsPerBatch = 200;  // a GPU's queue holds more
constexpr int kBatches = 100;
constexpr std::uint32_t kMultiplier = 2654435761u;  // spreads 0, 1, 2, ... over [0, 1); python_calls.py has it too

std::vector<float> spread(std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::uint32_t i = 0; auto& value : values) value = static_cast<float>((i++ * kMultiplier) >> 8) * 0x1p-24f;
  return values;
}

buffer on_device(const stream& s, const std::vector<float>& values) {
  buffer made(s.where(), static_cast<std::int64_t>(values.size() * sizeof(float)));
  made.upload(s, values.data());
  return made;
}

class timed_calls {
 public:
  explicit timed_calls(stream s) : s_(std::move(s)) {}

  void search(std::int64_t rows, std::int64_t dim, std::int64_t k) {
    flat_index index(s_.where(), {.dim = dim, .metric = metric::cosine});
    const auto vectors = spread(rows * dim);
    index.add(matrix_view(vectors.data(), rows, dim));
    const buffer query = on_device(s_, spread(dim));
    buffer scores(s_.where(), k * 4), ids(s_.where(), k * 8);
    const any_matrix_view view(query.data(), element_type::f32, 1, dim, dim);
    const search_output out{static_cast<float*>(scores.data()), static_cast<std::int64_t*>(ids.data())};
    const bool is_cpu = s_.where().kind() == device_kind::cpu;
    add(fmt::format("call/search/q1/{}x{}/f32/cos/k{}", rows, dim, k),
        [&] { is_cpu ? index.search(view, {.k = k}, out) : index.search(s_, view, {.k = k}, out); });
  }

  void top_k(std::int64_t rows, std::int64_t cols, std::int64_t k) {
    const buffer data = on_device(s_, spread(rows * cols));
    buffer values(s_.where(), rows * k * 4), indices(s_.where(), rows * k * 8);
    const value_matrix matrix(data.data(), value_type::f32, rows, cols, cols);
    add(fmt::format("call/top_k/{}x{}/f32/k{}", rows, cols, k), [&] {
      shortlist::top_k(s_, matrix, {.k = k, .sorted = true}, {.values = values.data(), .indices = indices.data()});
    });
  }

  void sample(std::int64_t rows, std::int64_t vocab) {
    const buffer data = on_device(s_, spread(rows * vocab));
    buffer tokens(s_.where(), rows * 8);
    const value_matrix logits(data.data(), value_type::f32, rows, vocab, vocab);
    const sample_params params{.temperature = 0.8f, .top_k = 50, .top_p = 0.95f, .seed = 7u};
    add(fmt::format("call/sample/{}x{}/f32/t0.8-k50-p0.95", rows, vocab),
        [&] { shortlist::sample(s_, logits, params, {.tokens = tokens.data(), .tokens_as = index_type::i64}); });
  }

  void print() const { std::printf("{%s}\n", fmt::format("{}", fmt::join(lines_, ",\n ")).c_str()); }

 private:
  void add(const std::string& work, const std::function<void()>& call) {
    double least_ms = 1e9;
    for (int batch = 0; batch < kBatches; ++batch) {
      least_ms = std::min(least_ms, benchmark::wall_ms([&] {
                            for (int i = 0; i < kCallsPerBatch; ++i) call();
                          }));
      s_.synchronize();
    }
    lines_.push_back(fmt::format("\"{}/{}\": {:.6f}", work, s_.where().kind() == device_kind::cpu ? "cpu" : "cuda",
                                 least_ms / kCallsPerBatch));
  }

  stream s_;
  std::vector<std::string> lines_;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    timed_calls calls{stream(device::parse(argc > 1 ? argv[1] : "cpu"))};
    calls.search(100, 64, 10);
    calls.search(100, 384, 10);
    calls.top_k(1, 64, 5);
    calls.top_k(4, 256, 32);
    calls.sample(1, 1000);
    calls.print();
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "shortlist_calls: %s\n", failure.what());
    return 1;
  }
}
