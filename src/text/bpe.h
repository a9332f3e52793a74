#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace weft {

/// Byte pair encoding: a word begins as one token per byte, or per character; then, again and again, the neighbours whose merge
/// has the lowest rank become one token, the leftmost first.
///
/// Immutable: any number of threads may use one object. A word of n bytes takes time n log n and little stack.
class Bpe {
 public:
  struct Merge {
    int32_t left, right, merged;
  };
  struct Vocabulary {
    std::vector<std::pair<std::string, int32_t>> tokens;  ///< the bytes of each token; all different
    /// If not empty, words begin as one token per character, and a character that is none as these 256 tokens of its bytes.
    std::vector<int32_t> byte_fallback;
    std::vector<Merge> merges;  ///< by rank
    bool whole_words = false;   ///< a word that is a token becomes that token, whatever the merges say
    int32_t unknown = -1;       ///< for a byte that is no token; -1: such bytes are left out
    bool fuse_unknown = false;  ///< several such bytes in a row become one
  };
  explicit Bpe(Vocabulary vocabulary);

  /// Whether every byte is a token, so that nothing is unknown.
  bool knows_all_bytes() const;

  /// Appends the tokens of a word.
  void encode(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  struct Join {
    uint32_t rank;
    int32_t merged;
  };
  struct Slot {
    uint64_t pair;
    Join join;
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  /// Where the join of two tokens is, or would be.
  size_t slot_of(int32_t left, int32_t right) const;
  Join join_of(int32_t left, int32_t right) const { return slots_[slot_of(left, right)].join; }
  /// Appends one token per byte.
  void split(std::string_view word, std::vector<int32_t>& tokens) const;
  /// Appends one token per character, or several. Requires: valid UTF-8.
  void split_characters(std::string_view word, std::vector<int32_t>& tokens) const;
  /// Merges tokens[first, end) in place and cuts the list to what remains.
  void merge_short(std::vector<int32_t>& tokens, size_t first) const;
  void merge_long(std::vector<int32_t>& tokens, size_t first) const;
  void merge(std::string_view word, std::vector<int32_t>& ids) const;

  int32_t byte_tokens_[256];
  std::vector<int32_t> characters_;  ///< by code, -1: none; empty where words begin as bytes
  int32_t unknown_;
  bool fuse_unknown_;
  std::vector<Slot> slots_;                                                ///< open addressing, a power of two
  int hash_shift_;                                                         ///< 64 - log2 of its size
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> words_;  ///< those that become one token
};

}  // namespace weft
