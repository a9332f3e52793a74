#include "cache/prefix_index.h"

#include <sodium/crypto_shorthash_siphash24.h>

#include <algorithm>
#include <boost/intrusive/set.hpp>
#include <cstring>
#include <utility>

namespace weft {

namespace {

namespace intrusive = boost::intrusive;
using Tokens = std::span<const int32_t>;
using Secret = std::array<uint8_t, crypto_shorthash_siphashx24_KEYBYTES>;

/// SipHash-2-4 with 128 bits: who does not know the secret can neither predict a key nor find two prefixes with one.
PrefixKey hash(const Secret& secret, std::span<const std::byte> bytes) {
  std::array<uint8_t, crypto_shorthash_siphashx24_BYTES> out;
  crypto_shorthash_siphashx24(out.data(), reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), secret.data());
  PrefixKey key;
  std::memcpy(&key.high, out.data(), sizeof key.high);
  std::memcpy(&key.low, out.data() + sizeof key.high, sizeof key.low);
  return key;
}
PrefixKey hash(const Secret& secret, std::string_view text) { return hash(secret, std::as_bytes(std::span(text))); }

/// A secret of its own for each kind of input, so that no input of one kind can stand for one of another.
Secret derive(const Secret& secret, std::string_view kind) {
  const PrefixKey key = hash(secret, kind);
  Secret derived;
  std::memcpy(derived.data(), &key.high, sizeof key.high);
  std::memcpy(derived.data() + sizeof key.high, &key.low, sizeof key.low);
  return derived;
}

/// Length of the common beginning.
size_t common(Tokens a, Tokens b) { return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin()); }
bool begins_with(Tokens tokens, Tokens beginning) { return common(tokens, beginning) == beginning.size(); }

/// One cached block; its number in the list of nodes is the block's id. Linked while it names something.
struct Node : intrusive::set_base_hook<> {
  PrefixKey parent, key;
  Tokens tokens;  ///< in the index's memory
};

/// Where tokens are in the order of nodes. Siblings are neighbours, and so are those with a common beginning.
struct Place {
  PrefixKey parent;
  Tokens tokens;
  explicit Place(const Node& node) : parent(node.parent), tokens(node.tokens) {}
  Place(PrefixKey p, Tokens t) : parent(p), tokens(t) {}
};
struct PlaceOf {
  using type = Place;
  Place operator()(const Node& node) const { return Place(node); }
};
struct Before {
  bool operator()(const Place& a, const Place& b) const {
    const auto parents = a.parent <=> b.parent;
    return parents != 0 ? parents < 0 : std::ranges::lexicographical_compare(a.tokens, b.tokens);
  }
};
using Order = intrusive::set<Node, intrusive::key_of_value<PlaceOf>, intrusive::compare<Before>>;

}  // namespace

struct PrefixIndex::Parts {
  Parts(BlockPool& pool_in, int virtual_tokens_in, const Secret& secret, Listener listener_in)
      : pool(pool_in),
        virtual_tokens(static_cast<size_t>(virtual_tokens_in)),
        fingerprint_secret(derive(secret, "fingerprint")),
        salt_secret(derive(secret, "salt")),
        root_secret(derive(secret, "root")),
        child_secret(derive(secret, "child")),
        listener(std::move(listener_in)),
        memory(static_cast<size_t>(pool.size()) * virtual_tokens),
        scratch(sizeof(PrefixKey) + virtual_tokens * sizeof(int32_t)),
        nodes(static_cast<size_t>(pool.size())) {}

  BlockId block_of(const Node& node) const { return BlockId{static_cast<int32_t>(&node - nodes.data())}; }
  Node& node_of(BlockId block) { return nodes[static_cast<size_t>(static_cast<int32_t>(block))]; }

  /// Makes a node, linked or about to be, name these tokens.
  void write(Node& node, PrefixKey parent, PrefixKey key, Tokens tokens) {
    int32_t* at = memory.data() + static_cast<size_t>(&node - nodes.data()) * virtual_tokens;
    std::ranges::copy(tokens, at);
    node.parent = parent;
    node.key = key;
    node.tokens = {at, tokens.size()};
  }
  void tell(PrefixEvent::Kind kind, const Node& node) const {
    if (!listener) return;
    listener({.kind = kind, .block = block_of(node), .parent = node.parent, .key = node.key, .tokens = node.tokens});
  }
  void drop(Node& node) {
    order.erase(order.iterator_to(node));
    pool.unmark(block_of(node));
    tell(PrefixEvent::Kind::evicted, node);
  }

  BlockPool& pool;
  const size_t virtual_tokens;
  const Secret fingerprint_secret, salt_secret, root_secret, child_secret;
  const Listener listener;
  std::vector<int32_t> memory;     ///< [blocks, virtual_tokens]
  std::vector<std::byte> scratch;  ///< input of the hash
  std::vector<Node> nodes;         ///< one per block
  Order order;                     ///< the linked ones
};

PrefixIndex::PrefixIndex(BlockPool& pool, int virtual_tokens, const std::array<uint8_t, 16>& secret, Listener listener) {
  WEFT_CHECK_GE(virtual_tokens, 1);
  parts_ = std::make_unique<Parts>(pool, virtual_tokens, secret, std::move(listener));
}
PrefixIndex::~PrefixIndex() = default;

PrefixKey PrefixIndex::root(std::string_view fingerprint, std::string_view salt) const {
  const std::array both{hash(parts_->fingerprint_secret, fingerprint), hash(parts_->salt_secret, salt)};
  return hash(parts_->root_secret, std::as_bytes(std::span(both)));
}

PrefixKey PrefixIndex::child(PrefixKey parent, std::span<const int32_t> tokens) const {
  WEFT_CHECK_LE(tokens.size(), parts_->virtual_tokens);
  std::memcpy(parts_->scratch.data(), &parent, sizeof parent);
  std::ranges::copy(std::as_bytes(tokens), parts_->scratch.data() + sizeof parent);
  return hash(parts_->child_secret, std::span(parts_->scratch).first(sizeof parent + tokens.size_bytes()));
}

PrefixIndex::Hit PrefixIndex::find(PrefixKey root, std::span<const int32_t> tokens, int64_t limit,
                                   std::vector<BlockId>& blocks) const {
  const Order& order = parts_->order;
  Hit hit;
  hit.key = root;
  tokens = tokens.first(static_cast<size_t>(std::clamp<int64_t>(limit, 0, static_cast<int64_t>(tokens.size()))));
  while (!tokens.empty()) {
    const Tokens wanted = tokens.first(std::min(tokens.size(), parts_->virtual_tokens));
    // Of all siblings, one of the two between which the wanted tokens belong has the longest beginning in common with them.
    const auto after = order.lower_bound(Place(hit.key, wanted));
    const Node* best = nullptr;
    size_t longest = 0;
    const auto consider = [&](const Node& node) {
      const size_t n = node.parent == hit.key ? common(node.tokens, wanted) : 0;
      if (n > longest) best = &node, longest = n;
    };
    if (after != order.end()) consider(*after);
    if (after != order.begin()) consider(*std::prev(after));
    if (best == nullptr) break;
    hit.tokens += static_cast<int64_t>(longest);
    if (longest < parts_->virtual_tokens) {
      hit.partial = parts_->block_of(*best);
      hit.partial_tokens = static_cast<int>(longest);
      break;
    }
    blocks.push_back(parts_->block_of(*best));
    ++hit.whole_blocks;
    hit.key = best->key;
    tokens = tokens.subspan(longest);
  }
  return hit;
}

void PrefixIndex::publish(PrefixKey parent, std::span<const int32_t> tokens, BlockId block) {
  Parts& p = *parts_;
  WEFT_CHECK(!tokens.empty() && tokens.size() <= p.virtual_tokens)
      << tokens.size() << " tokens in block " << static_cast<int32_t>(block);
  WEFT_CHECK(p.pool.state(block) == BlockState::held) << "publish of block " << static_cast<int32_t>(block);
  Node& node = p.node_of(block);
  if (node.is_linked()) {
    WEFT_CHECK(node.parent == parent && common(node.tokens, tokens) == std::min(node.tokens.size(), tokens.size()))
        << "block " << static_cast<int32_t>(block) << " was overwritten while its content could be found";
    if (tokens.size() <= node.tokens.size()) return;
    // Longer tokens have the same place: no sibling shares the whole of the shorter ones.
    p.tell(PrefixEvent::Kind::evicted, node);
    p.write(node, parent, child(parent, tokens), tokens);
    p.tell(PrefixEvent::Kind::stored, node);
    return;
  }
  const Place place(parent, tokens);
  auto after = p.order.lower_bound(place);
  if (after != p.order.end() && after->parent == parent && begins_with(after->tokens, tokens)) return;
  if (after != p.order.begin()) {
    Node& before = *std::prev(after);
    if (before.parent == parent && begins_with(tokens, before.tokens)) p.drop(before);
  }
  p.write(node, parent, child(parent, tokens), tokens);
  p.order.insert_before(after, node);
  p.pool.mark(block);
  p.tell(PrefixEvent::Kind::stored, node);
}

void PrefixIndex::forget(BlockId block) {
  Node& node = parts_->node_of(block);
  if (node.is_linked()) parts_->drop(node);
}

void PrefixIndex::clear() {
  for (Node& node : parts_->nodes) {
    if (!node.is_linked()) continue;
    parts_->order.erase(parts_->order.iterator_to(node));
    parts_->pool.unmark(parts_->block_of(node));
  }
  if (parts_->listener) parts_->listener(PrefixEvent{PrefixEvent::Kind::cleared, {}, {}, {}, {}});
}

int64_t PrefixIndex::nodes() const { return static_cast<int64_t>(parts_->order.size()); }

void PrefixIndex::check_invariants() const {
  const Node* previous = nullptr;
  for (const Node& node : parts_->order) {
    const BlockId block = parts_->block_of(node);
    const auto id = static_cast<int32_t>(block);
    WEFT_CHECK(parts_->pool.state(block) != BlockState::free && parts_->pool.is_marked(block)) << "node of block " << id;
    WEFT_CHECK(!node.tokens.empty() && node.tokens.size() <= parts_->virtual_tokens) << "node of block " << id;
    WEFT_CHECK(node.key == child(node.parent, node.tokens)) << "key of block " << id;
    if (previous != nullptr) {
      WEFT_CHECK(Before()(Place(*previous), Place(node))) << "order at block " << id;
      WEFT_CHECK(previous->parent != node.parent || !begins_with(node.tokens, previous->tokens))
          << "block " << id << " goes on from a sibling";
    }
    previous = &node;
  }
  for (int32_t id = 0; id < parts_->pool.size(); ++id)
    WEFT_CHECK_EQ(parts_->pool.is_marked(BlockId{id}), parts_->node_of(BlockId{id}).is_linked()) << "mark of block " << id;
}

}  // namespace weft
