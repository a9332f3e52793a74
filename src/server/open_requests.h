#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace weft {

/// The requests that are being answered, by the names that clients know them by, so that they can be aborted.
///
/// Thread: any thread may call anything.
class OpenRequests {
 public:
  struct Request {
    std::vector<std::string> names;    ///< the answer's id, and the client's own id if it sent one
    std::string owner;                 ///< only the same owner may abort it
    std::vector<uint64_t> engine_ids;  ///< one a prompt
    std::atomic<bool> aborted{false};
  };
  /// The request is open until the handle is destroyed. The handle must not outlive this object.
  using Handle = std::unique_ptr<Request, std::function<void(Request*)>>;
  Handle enter(std::vector<std::string> names, std::string owner, std::vector<uint64_t> engine_ids);

  /// Marks the requests of this name as aborted and returns their engine ids. Of another owner only if `any_owner`. Names are
  /// the clients' own, so several requests may have one.
  std::vector<uint64_t> abort(const std::string& name, const std::string& owner, bool any_owner);
  std::vector<uint64_t> abort_all();
  size_t size() const;

 private:
  mutable std::mutex mutex_;  ///< guards what follows
  std::unordered_multimap<std::string, Request*> by_name_;
};

}  // namespace weft
