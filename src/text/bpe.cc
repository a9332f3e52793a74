#include "text/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <queue>

#include "text/utf8.h"

namespace weft {
namespace {

constexpr uint32_t kNever = UINT32_MAX;  // the rank of tokens that do not join

constexpr uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// Up to here, looking through all neighbours for the best merge is cheaper than a heap.
constexpr size_t kShortWord = 48;

}  // namespace

Bpe::Bpe(Vocabulary vocabulary) : unknown_(vocabulary.unknown), fuse_unknown_(vocabulary.fuse_unknown) {
  const size_t size = std::bit_ceil(vocabulary.merges.size() * 2 + 2);
  hash_shift_ = 64 - std::countr_zero(size);
  slots_.assign(size, {.pair = 0, .join = {.rank = kNever, .merged = -1}});
  for (uint32_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
    const auto [left, right, merged] = vocabulary.merges[rank];
    // Of a pair given twice the later rank counts.
    slots_[slot_of(left, right)] = {.pair = pair_of(left, right), .join = {.rank = rank, .merged = merged}};
  }

  std::fill(std::begin(byte_tokens_), std::end(byte_tokens_), -1);
  std::copy(vocabulary.byte_fallback.begin(), vocabulary.byte_fallback.end(), byte_tokens_);
  for (const auto& [bytes, id] : vocabulary.tokens) {
    if (bytes.empty()) continue;
    if (vocabulary.byte_fallback.empty()) {
      if (bytes.size() == 1) byte_tokens_[static_cast<uint8_t>(bytes[0])] = id;
    } else if (const auto [code, length] = character_at(bytes, 0); length == bytes.size()) {
      if (code >= characters_.size()) characters_.resize(code + 1, -1);
      characters_[code] = id;
    }
  }

  words_.reserve(vocabulary.tokens.size());
  std::vector<int32_t> merged;
  for (auto& [bytes, id] : vocabulary.tokens) {
    if (bytes.empty()) continue;
    merged.clear();
    if (!vocabulary.whole_words) merge(bytes, merged);
    if (vocabulary.whole_words || (merged.size() == 1 && merged[0] == id)) words_.emplace(std::move(bytes), id);
  }
}

bool Bpe::knows_all_bytes() const {
  return std::all_of(std::begin(byte_tokens_), std::end(byte_tokens_), [](int32_t token) { return token >= 0; });
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (const auto whole = words_.find(word); whole != words_.end()) {
    ids.push_back(whole->second);
  } else {
    merge(word, ids);
  }
}

size_t Bpe::slot_of(int32_t left, int32_t right) const {
  constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;
  const uint64_t pair = pair_of(left, right);
  size_t at = (pair * kGoldenRatio) >> hash_shift_;
  while (slots_[at].join.rank != kNever && slots_[at].pair != pair) at = (at + 1) & (slots_.size() - 1);
  return at;
}

void Bpe::merge(std::string_view word, std::vector<int32_t>& ids) const {
  const size_t first = ids.size();
  characters_.empty() ? split(word, ids) : split_characters(word, ids);
  if (ids.size() - first <= kShortWord) {
    merge_short(ids, first);
  } else {
    merge_long(ids, first);
  }
}

void Bpe::split(std::string_view word, std::vector<int32_t>& tokens) const {
  bool after_unknown = false;
  for (const char byte : word) {
    const int32_t token = byte_tokens_[static_cast<uint8_t>(byte)];
    if (token >= 0) {
      tokens.push_back(token);
    } else if (unknown_ >= 0 && !(fuse_unknown_ && after_unknown)) {
      tokens.push_back(unknown_);
    }
    after_unknown = token < 0;
  }
}

void Bpe::split_characters(std::string_view word, std::vector<int32_t>& tokens) const {
  for (size_t at = 0; at < word.size();) {
    const auto [code, length] = character_at(word, at);
    if (code < characters_.size() && characters_[code] >= 0) {
      tokens.push_back(characters_[code]);
    } else {
      for (size_t i = at; i < at + length; ++i) tokens.push_back(byte_tokens_[static_cast<uint8_t>(word[i])]);
    }
    at += length;
  }
}

void Bpe::merge_short(std::vector<int32_t>& tokens, size_t first) const {
  std::array<Join, kShortWord> joins;  // of each token with the next
  int32_t* const token = tokens.data() + first;
  size_t count = tokens.size() - first;
  for (size_t i = 0; i + 1 < count; ++i) joins[i] = join_of(token[i], token[i + 1]);
  while (count > 1) {
    const auto best = std::min_element(joins.begin(), joins.begin() + count - 1,
                                       [](const Join& a, const Join& b) { return a.rank < b.rank; });
    if (best->rank == kNever) break;
    const size_t at = best - joins.begin();
    token[at] = best->merged;
    std::copy(token + at + 2, token + count, token + at + 1);
    std::copy(joins.begin() + at + 1, joins.begin() + count - 1, joins.begin() + at);
    --count;
    if (at > 0) joins[at - 1] = join_of(token[at - 1], token[at]);
    if (at + 1 < count) joins[at] = join_of(token[at], token[at + 1]);
  }
  tokens.resize(first + count);
}

void Bpe::merge_long(std::vector<int32_t>& tokens, size_t first) const {
  struct Node {
    uint32_t before, after;
    Join join;  ///< with the next token
  };
  const auto count = static_cast<uint32_t>(tokens.size() - first);
  int32_t* const token = tokens.data() + first;
  std::vector<Node> nodes(count);
  std::vector<uint64_t> candidates;  // rank, then place: the order in which merges are done
  const auto candidate = [&](uint32_t at) { return static_cast<uint64_t>(nodes[at].join.rank) << 32 | at; };
  for (uint32_t at = 0; at < count; ++at) {
    nodes[at] = {.before = at - 1, .after = at + 1, .join = {kNever, -1}};
    if (at + 1 < count) nodes[at].join = join_of(token[at], token[at + 1]);
    if (nodes[at].join.rank != kNever) candidates.push_back(candidate(at));
  }
  std::priority_queue heap(std::greater<uint64_t>(), std::move(candidates));

  const auto join_anew = [&](uint32_t at) {
    nodes[at].join = nodes[at].after < count ? join_of(token[at], token[nodes[at].after]) : Join{kNever, -1};
    if (nodes[at].join.rank != kNever) heap.push(candidate(at));
  };
  while (!heap.empty()) {
    const auto at = static_cast<uint32_t>(heap.top());
    const bool outdated = candidate(at) != heap.top();  // one of the two tokens has been merged since
    heap.pop();
    if (outdated) continue;
    const uint32_t gone = nodes[at].after;
    token[at] = nodes[at].join.merged;
    nodes[gone].join.rank = kNever;
    nodes[at].after = nodes[gone].after;
    if (nodes[at].after < count) nodes[nodes[at].after].before = at;
    join_anew(at);
    if (at > 0) join_anew(nodes[at].before);
  }
  size_t kept = first;
  for (uint32_t at = 0; at < count; at = nodes[at].after) tokens[kept++] = token[at];
  tokens.resize(kept);
}

}  // namespace weft
