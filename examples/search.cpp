#include <cstdio>
#include <shortlist/shortlist.hpp>
#include <vector>

int main() {
  const std::vector<float> rows = {1, 0, 0, 0, 1, 0, 0.6f, 0.8f, 0};  // three rows of three elements
  const std::vector<float> query = {1, 1, 0};
  shortlist::flat_index index(shortlist::device::best(), {.dim = 3, .metric = shortlist::metric::cosine});
  index.add(shortlist::matrix_view(rows.data(), 3, 3));
  const auto hits = index.search(shortlist::matrix_view(query.data(), 1, 3), {.k = 2});
  for (int i = 0; i < 2; ++i) std::printf("row %d: %.4f\n", static_cast<int>(hits.ids[i]), hits.scores[i]);
}
