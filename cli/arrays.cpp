// Arrays of an op between host memory and its device. See arrays.hpp.
#include "arrays.hpp"

#include <algorithm>

namespace shortlist::program {

input_array::input_array(const stream& s, const void* host, std::int64_t bytes) : host_(host) {
  if (s.where().kind() == device_kind::cpu) return;
  copy_.emplace(s.where(), bytes);
  copy_->upload(s, host);
}

void output_array::allocate(const stream& s, std::int64_t bytes) {
  bytes = std::max<std::int64_t>(bytes, 1);  // an output of no rows has an address too
  host_.resize(static_cast<std::size_t>(bytes));
  if (s.where().kind() != device_kind::cpu) copy_.emplace(s.where(), bytes);
}

void output_array::download(const stream& s) {
  if (copy_) copy_->download(s, host_.data());
}

}  // namespace shortlist::program
