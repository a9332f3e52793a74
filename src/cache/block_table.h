#pragma once

#include <span>
#include <utility>
#include <vector>

#include "cache/block_pool.h"

namespace weft {

/// The blocks held by one sequence, in the order of its tokens: block i holds virtual block number i. Owns one reference to
/// each and drops them when it goes. Move-only. The pool outlives it. A table that is made without a pool is given one before
/// its first block.
///
/// Thread: engine thread only.
class BlockTable {
 public:
  BlockTable() = default;
  explicit BlockTable(BlockPool& pool) : pool_(&pool) {}
  ~BlockTable() { clear(); }
  BlockTable(BlockTable&& other) noexcept : pool_(other.pool_), blocks_(std::exchange(other.blocks_, {})) {}
  BlockTable& operator=(BlockTable&& other) noexcept {
    if (this == &other) return *this;
    clear();
    pool_ = other.pool_;
    blocks_ = std::exchange(other.blocks_, {});
    return *this;
  }

  void set_pool(BlockPool& pool) {
    WEFT_CHECK(blocks_.empty()) << "a table with " << blocks_.size() << " blocks changes its pool";
    pool_ = &pool;
  }

  std::span<const BlockId> blocks() const { return blocks_; }
  int64_t size() const { return static_cast<int64_t>(blocks_.size()); }

  /// Takes memory for this many entries, so that adding up to them allocates nothing.
  void reserve(int64_t blocks) { blocks_.reserve(static_cast<size_t>(blocks)); }
  /// Makes the table at least `blocks` long with blocks from the pool. False, and nothing changes, if it has too few.
  [[nodiscard]] bool grow_to(int64_t blocks) {
    if (blocks - size() > pool_->available()) return false;
    while (size() < blocks) blocks_.push_back(*pool_->allocate());
    return true;
  }
  /// Adds a reference to a block that is already there, and appends it.
  void append_shared(BlockId block) {
    pool_->share(block);
    blocks_.push_back(block);
  }
  /// Drops all references, the last block first: of cached blocks the end of a sequence is then evicted before its beginning,
  /// without which it could not be found.
  void clear() {
    while (!blocks_.empty()) {
      pool_->release(blocks_.back());
      blocks_.pop_back();
    }
  }

 private:
  BlockPool* pool_ = nullptr;
  std::vector<BlockId> blocks_;
};

}  // namespace weft
