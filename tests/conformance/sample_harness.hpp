// One case of sampling's tests: the ways to run it, and the comparison with the reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/harness.hpp"
#include "conformance/sample_cases.hpp"
#include "conformance/sample_data.hpp"
#include "conformance/top_k_harness.hpp"
#include "unit/core_environment.hpp"

namespace shortlist::conformance {

/// Holds a line that a failure printed: EqualsTheReferenceToTheBit then runs that case alone.
inline constexpr const char* kReplaySample = "SHORTLIST_REPLAY_SAMPLE";

/// The arrays that a call writes.
namespace output {
enum array : std::size_t { tokens, status, logprobs, kept, top_tokens, top_logprobs, kCount };
inline constexpr std::string_view kNames[kCount] = {"tokens", "status",     "logprobs",
                                                    "kept",   "top_tokens", "top_logprobs"};
}  // namespace output

/// The outputs of a call, each array between two guards; those that a case does not ask for are empty.
using sample_answer = byte_arrays<output::kCount>;

/// The reference's answer.
sample_answer expected_answer(const sample_case& what, const sample_data& data);

/// Entries that each row has in an array, and the bytes of one.
std::int64_t entries_of(const sample_case& what, output::array array);
std::int64_t entry_bytes(const sample_case& what, output::array array);
/// The bytes of a row's entries in an array that is given.
std::vector<std::byte> row_bytes(const sample_case& what, const sample_answer& answer, output::array array,
                                 std::int64_t row);

/// A case's arrays on a device, between whose upload and download the op may be queued as often as wanted.
class sample_on_device {
 public:
  sample_on_device(const sample_case& what, const sample_data& data, const stream& s);
  /// Other data for the same case, of arrays as large as before; the outputs become unwritten again.
  void upload(const sample_data& data);
  /// Asynchronous.
  void queue();
  /// The outputs, once the stream is done.
  sample_answer download() const;
  /// The name of an input that is no longer what was uploaded; empty if all are.
  std::string changed_input() const;

 private:
  using copy = device_copy<std::byte>;

  sample_case what_;
  sample_data data_;
  stream stream_;
  std::vector<std::unique_ptr<copy>> inputs_;
  std::vector<std::unique_ptr<copy>> outputs_;
};

/// The answer of a device, with whatever algorithm and instruction set are forced now. All arrays go to the device and
/// come back; on the CPU they are used where they lie. @throws std::logic_error if an input was changed.
sample_answer run_on_device(const sample_case& what, const sample_data& data, device where);

/// Empty if both are equal, else the first difference: array, row, position and both values with their bits.
std::string first_difference(const sample_case& what, const sample_answer& found, const sample_answer& expected);

/// Forces a way's instruction set and algorithm for as long as it lives.
class forced_sample_way {
 public:
  explicit forced_sample_way(const sample_way& how)
      : isa_(how.isa),
        algorithm_("SHORTLIST_FORCE_SAMPLE", how.algorithm == "plan" ? nullptr : how.algorithm.c_str()) {}

 private:
  forced_isa isa_;
  test::environment_value algorithm_;
};

/// Empty if the answer is the expected one, else what differs, with the line to replay it.
std::string run_way(const sample_case& what, const sample_way& how, const sample_data& data,
                    const sample_answer& expected);

/// On the CPU every instruction set; on a GPU what is planned, and every algorithm.
std::vector<sample_way> sample_ways_of(device where);

}  // namespace shortlist::conformance
