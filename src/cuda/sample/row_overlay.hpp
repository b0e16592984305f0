// What a mask and penalties change of rows of logits, beside the rows as they are stored.
#pragma once

#include <cstdint>

namespace shortlist::cuda {

/// A token that has another logit than the one stored.
struct changed_logit {
  std::uint32_t token;
  float value;
};

/// Lies over [rows, vocab] logits. Of each row, bits of tokens, the least significant one of a word first: those whose
/// logits count as they are stored, and those that have another logit here. Tokens of neither are masked. Each block
/// that draws from a row has a piece of its words, whose changed tokens are listed; or have their values written where
/// they belong, if the list has no room for all of them.
struct row_overlay {
  int pieces = 1;  ///< of a row: a power of two
  const std::uint32_t* plain = nullptr;
  std::int64_t plain_stride = 0;           ///< words from one row to the next; 0: all rows share one
  const std::uint32_t* changed = nullptr;  ///< [rows, changed_stride]; null: nothing of any row, and none of the below
  std::int64_t changed_stride = 0;         ///< words
  std::uint32_t piece_words = 0;
  changed_logit* lists = nullptr;  ///< [rows, pieces, list_room], in any order
  std::uint32_t list_room = 0;
  std::uint32_t* counts = nullptr;  ///< [rows, pieces]: changed tokens
  float* values = nullptr;          ///< [rows, values_stride]
  std::int64_t values_stride = 0;
};

}  // namespace shortlist::cuda
