#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "layout/block_layout.h"

namespace weft {

/// What a block is, seen from the pool.
enum class BlockState : uint8_t {
  free,    ///< nobody wants its content
  held,    ///< someone holds a reference
  cached,  ///< nobody holds it, but its content is worth finding again: it is reused last
  pinned,  ///< nobody holds it, but a transfer still reads or writes its bytes: it may not be reused
};

/// Reference-counted KV blocks of one DCP group. Ids only: the bytes live in each rank's KvRegion.
///
/// Thread: engine thread only. Allocates in the constructor and never after. Invariants (checked by check_invariants() in
/// tests):
///  1. A block is held (refs > 0), else pinned (pins > 0), else cached or free, and then on the free list exactly once.
///  2. The free list is in eviction order: free blocks first, the latest release first, as their rows are still in the
///     processor's caches; then cached blocks, the oldest release first.
///  3. A cached block keeps its content and its mark until allocate() returns it, having told `on_evict`.
class BlockPool {
 public:
  /// `on_evict` hears of each cached block just before it is reused, so that whoever finds blocks by content forgets it.
  explicit BlockPool(int64_t blocks, std::function<void(BlockId)> on_evict = {});

  int64_t size() const { return static_cast<int64_t>(blocks_.size()); }
  /// Blocks that allocate() can return: the free and the cached ones.
  int64_t available() const { return available_; }
  /// Those of them whose content is worth finding again.
  int64_t cached() const { return cached_; }
  BlockState state(BlockId block) const;

  /// Takes the block that is next to be evicted, with one reference and no mark, or nullopt if none is available: running out
  /// is normal, the scheduler preempts.
  std::optional<BlockId> allocate();
  /// Adds a reference. Requires: the block is held, or its content is marked.
  void share(BlockId block);
  /// Drops one reference. Requires: the caller holds one.
  void release(BlockId block);

  /// Marks the content as worth keeping when the last reference goes. Requires: the block is held.
  void mark(BlockId block);
  /// Drops the mark: nobody can find the content any more.
  void unmark(BlockId block);
  bool is_marked(BlockId block) const { return at(block).marked; }

  /// Keeps the block from being reused, whoever releases it, until as many calls of unpin. Requires: it is not free.
  void pin(BlockId block);
  void unpin(BlockId block);

  void check_invariants() const;

 private:
  static constexpr int32_t kNone = -1;
  /// A block, and its place on the free list where it is on it.
  struct Block {
    int32_t refs = 0, pins = 0;
    int32_t previous = kNone, next = kNone;
    bool marked = false, listed = false;
  };

  Block& at(BlockId block) { return const_cast<Block&>(std::as_const(*this).at(block)); }
  const Block& at(BlockId block) const;
  /// Puts a block that nobody holds or pins on its end of the free list.
  void list(BlockId block);
  void unlist(BlockId block);

  std::vector<Block> blocks_;
  std::function<void(BlockId)> on_evict_;
  int32_t first_ = kNone, last_ = kNone;
  int64_t available_ = 0, cached_ = 0;
};

}  // namespace weft
