// One case of row-wise top k's tests: its data, the ways to run it, and the comparison with the reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "conformance/harness.hpp"
#include "conformance/top_k_cases.hpp"
#include "unit/core_environment.hpp"

namespace shortlist::conformance {

/// Holds a line that a failure printed: EqualsTheReferenceToTheBit then runs that case alone.
inline constexpr const char* kReplayTopK = "SHORTLIST_REPLAY_TOP_K";

/// A matrix in memory that ends with its last element, and whose every element beside the rows' own is poison.
struct matrix_data {
  std::vector<std::byte> bytes;
  std::int64_t first = 0;  ///< element of `bytes` where the matrix starts: its alignment is only that of its type
  std::vector<std::int64_t> begins;
  std::vector<std::int64_t> ends;
};

/// The same case gives the same data on every machine.
matrix_data make_data(const top_k_case& what);
/// The next seed, from `seed` on, whose data begin at the element `first`: where that is 0, rows of whole 16 bytes lie
/// where copies of so many can bring them, and most kernels have a way of their own for them.
std::uint64_t seed_that_begins_at(std::int64_t first, std::uint64_t seed);

/// The outputs of a call, each array between two guards; those that a case does not ask for are empty.
struct output_bytes {
  std::vector<std::byte> values;
  std::vector<std::byte> indices;
  std::vector<std::byte> mask;

  bool operator==(const output_bytes&) const = default;
};

/// The reference's answer.
output_bytes expected_bytes(const top_k_case& what, const matrix_data& data);

/// A copy of a host array on a device; null where the host has none.
template <class T>
class device_copy {
 public:
  device_copy(const stream& s, const std::vector<T>& host)
      : copy_(s.where(), static_cast<std::int64_t>(host.size() * sizeof(T))), is_there_(!host.empty()) {
    upload(s, host);
  }
  T* data() { return is_there_ ? static_cast<T*>(copy_.data()) : nullptr; }
  void upload(const stream& s, const std::vector<T>& host) {
    if (is_there_) copy_.upload(s, host.data());
  }
  void download(const stream& s, std::vector<T>& host) const {
    if (is_there_) copy_.download(s, host.data());
  }

 private:
  buffer copy_;
  bool is_there_;
};

/// A case's arrays on a device, between whose upload and download the op may be queued as often as wanted.
class device_arrays {
 public:
  device_arrays(const top_k_case& what, const matrix_data& data, const stream& s);
  /// Other data for the same case, beginning at the same `first`; the outputs become unwritten again.
  void upload(const matrix_data& data);
  /// Asynchronous.
  void queue();
  /// The outputs, once the stream is done.
  output_bytes download() const;

 private:
  top_k_case what_;
  stream stream_;
  device_copy<std::byte> bytes_;
  device_copy<std::int64_t> begins_;
  device_copy<std::int64_t> ends_;
  output_bytes unwritten_;
  device_copy<std::byte> values_;
  device_copy<std::byte> indices_;
  device_copy<std::byte> mask_;
  value_matrix matrix_;
};

/// The answer of a device, with whatever algorithm and instruction set are forced now. All arrays go to the device and
/// come back; on the CPU they are used where they lie.
output_bytes run_on_device(const top_k_case& what, const matrix_data& data, device where);

/// Empty if both are equal, else the first difference: array, row, position and both values as bits.
std::string first_difference(const top_k_case& what, const output_bytes& found, const output_bytes& expected);

/// Forces a way's instruction set and algorithm for as long as it lives.
class forced_way {
 public:
  explicit forced_way(const top_k_way& how)
      : isa_(how.isa), algorithm_("SHORTLIST_FORCE_TOP_K", how.algorithm == "plan" ? nullptr : how.algorithm.c_str()) {}

 private:
  forced_isa isa_;
  test::environment_value algorithm_;
};

/// Empty if the answer is the expected one, else what differs, with the line to replay it.
std::string run_way(const top_k_case& what, const top_k_way& how, const matrix_data& data,
                    const output_bytes& expected);

/// The plan of a GPU, and each algorithm but warp_rows and block_rows, which the plan chooses for most of what they can
/// take. One that cannot take a shape leaves it to the plan.
inline constexpr const char* kGpuWays[] = {"plan",        "stop_rows",    "resident_rows", "filter_rows",
                                           "stream_rows", "cluster_rows", "bracket_rows",  "radix_rows"};
/// On the CPU every algorithm with every instruction set, and the plan; on a GPU those above.
std::vector<top_k_way> ways_of(device where);
/// Of those the ones that can take a case.
std::vector<top_k_way> ways_for(const top_k_case& what, device where);

/// Which algorithm a case gets, of what is forced now or else planned.
std::string algorithm_of(const top_k_case& what, device where);
/// Whether a case gets the algorithm that a way forces, if it forces one. The CPU's take all.
bool takes(const top_k_way& how, const top_k_case& what);

}  // namespace shortlist::conformance
