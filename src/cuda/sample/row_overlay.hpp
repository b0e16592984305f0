// What a mask and penalties change of rows of logits, beside the rows as they are stored.
#pragma once

#include <cstdint>

namespace shortlist::cuda {

/// A token and how often it was generated: 0, if it was in the prompt alone.
struct penalized_token {
  std::uint32_t token;
  std::uint32_t times;
};

/// Lies over [rows, vocab] logits. Of each row, bits of tokens, the least significant one of a word first: those whose
/// logits count as they are stored, and those that are penalized. Tokens of neither are masked. Each block that draws
/// from a row has a piece of its words, whose penalized tokens are listed as far as the list has room; the times of the
/// others stand where the tokens do.
struct row_overlay {
  int pieces = 1;  ///< of a row: a power of two
  const std::uint32_t* plain = nullptr;
  std::int64_t plain_stride = 0;             ///< words from one row to the next; 0: all rows share one
  const std::uint32_t* penalized = nullptr;  ///< null: no token of any row, and none of the below
  std::int64_t penalized_stride = 0;         ///< words
  std::uint32_t* times = nullptr;            ///< [rows, times_stride]
  std::int64_t times_stride = 0;
  std::uint32_t piece_words = 0;
  const penalized_token* lists = nullptr;  ///< [rows, pieces, list_room], in any order
  std::uint32_t list_room = 0;
  const std::uint32_t* counts = nullptr;  ///< [rows, pieces]: penalized tokens
};

}  // namespace shortlist::cuda
