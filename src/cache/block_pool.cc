#include "cache/block_pool.h"

#include <utility>

namespace weft {

BlockPool::BlockPool(int64_t blocks, std::function<void(BlockId)> on_evict) : on_evict_(std::move(on_evict)) {
  WEFT_CHECK(blocks >= 0 && blocks <= INT32_MAX) << "blocks " << blocks;
  blocks_.resize(static_cast<size_t>(blocks));
  // From the last to the first, so that the first block is taken first.
  for (auto id = static_cast<int32_t>(blocks); id-- > 0;) list(BlockId{id});
}

BlockState BlockPool::state(BlockId block) const {
  const Block& b = at(block);
  if (b.refs > 0) return BlockState::held;
  if (b.pins > 0) return BlockState::pinned;
  return b.marked ? BlockState::cached : BlockState::free;
}

std::optional<BlockId> BlockPool::allocate() {
  if (first_ == kNone) return std::nullopt;
  const BlockId block{first_};
  Block& b = at(block);
  unlist(block);
  b.refs = 1;
  if (std::exchange(b.marked, false) && on_evict_) on_evict_(block);
  return block;
}

void BlockPool::share(BlockId block) {
  Block& b = at(block);
  WEFT_CHECK(b.refs > 0 || b.marked) << "share of a block whose content is lost, block " << static_cast<int32_t>(block);
  if (b.listed) unlist(block);
  ++b.refs;
}

void BlockPool::release(BlockId block) {
  Block& b = at(block);
  WEFT_CHECK_GT(b.refs, 0) << "release of block " << static_cast<int32_t>(block);
  if (--b.refs == 0 && b.pins == 0) list(block);
}

void BlockPool::mark(BlockId block) {
  Block& b = at(block);
  WEFT_CHECK_GT(b.refs, 0) << "mark of block " << static_cast<int32_t>(block);
  b.marked = true;
}

void BlockPool::unmark(BlockId block) {
  Block& b = at(block);
  if (!b.marked) return;
  const bool listed = b.listed;
  if (listed) unlist(block);
  b.marked = false;
  if (listed) list(block);
}

void BlockPool::pin(BlockId block) {
  Block& b = at(block);
  WEFT_CHECK(state(block) != BlockState::free) << "pin of a free block, block " << static_cast<int32_t>(block);
  if (b.listed) unlist(block);
  ++b.pins;
}

void BlockPool::unpin(BlockId block) {
  Block& b = at(block);
  WEFT_CHECK_GT(b.pins, 0) << "unpin of block " << static_cast<int32_t>(block);
  if (--b.pins == 0 && b.refs == 0) list(block);
}

const BlockPool::Block& BlockPool::at(BlockId block) const {
  const auto id = static_cast<int32_t>(block);
  WEFT_CHECK(id >= 0 && id < size()) << "block " << id << " of " << size();
  return blocks_[static_cast<size_t>(id)];
}

void BlockPool::list(BlockId block) {
  const auto id = static_cast<int32_t>(block);
  Block& b = at(block);
  b.listed = true;
  b.previous = b.marked ? last_ : kNone;
  b.next = b.marked ? kNone : first_;
  (b.previous == kNone ? first_ : at(BlockId{b.previous}).next) = id;
  (b.next == kNone ? last_ : at(BlockId{b.next}).previous) = id;
  ++available_;
  if (b.marked) ++cached_;
}

void BlockPool::unlist(BlockId block) {
  Block& b = at(block);
  (b.previous == kNone ? first_ : at(BlockId{b.previous}).next) = b.next;
  (b.next == kNone ? last_ : at(BlockId{b.next}).previous) = b.previous;
  b.previous = b.next = kNone;
  b.listed = false;
  --available_;
  if (b.marked) --cached_;
}

void BlockPool::check_invariants() const {
  int64_t listed = 0, cached = 0;
  int32_t previous = kNone;
  for (int32_t id = first_; id != kNone; previous = std::exchange(id, at(BlockId{id}).next)) {
    const Block& b = at(BlockId{id});
    WEFT_CHECK(b.listed && b.refs == 0 && b.pins == 0) << "block " << id << " is on the free list";
    WEFT_CHECK_EQ(b.previous, previous) << "before block " << id;
    WEFT_CHECK(previous == kNone || b.marked || !at(BlockId{previous}).marked) << "free block " << id << " after a cached one";
    WEFT_CHECK_LE(++listed, size()) << "the free list is a ring";
    if (b.marked) ++cached;
  }
  WEFT_CHECK_EQ(last_, previous);
  WEFT_CHECK_EQ(listed, available_);
  WEFT_CHECK_EQ(cached, cached_);
  for (int32_t id = 0; id < size(); ++id) {
    const Block& b = at(BlockId{id});
    WEFT_CHECK(b.refs >= 0 && b.pins >= 0) << "block " << id;
    WEFT_CHECK_EQ(b.listed, b.refs == 0 && b.pins == 0) << "block " << id;
  }
}

}  // namespace weft
