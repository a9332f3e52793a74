#include "server/open_requests.h"

namespace weft {

OpenRequests::Handle OpenRequests::enter(std::vector<std::string> names, std::string owner, std::vector<uint64_t> engine_ids) {
  auto request = std::make_unique<Request>();
  request->names = std::move(names);
  request->owner = std::move(owner);
  request->engine_ids = std::move(engine_ids);
  Handle handle(request.get(), [this](Request* closed) {
    const std::unique_ptr<Request> owned(closed);
    const std::lock_guard lock(mutex_);
    for (const std::string& name : closed->names) {
      const auto [begin, end] = by_name_.equal_range(name);
      for (auto it = begin; it != end; ++it) {
        if (it->second != closed) continue;
        by_name_.erase(it);
        break;
      }
    }
  });
  request.release();  // The handle's from here on.
  const std::lock_guard lock(mutex_);
  for (const std::string& name : handle->names) by_name_.emplace(name, handle.get());
  return handle;
}

std::vector<uint64_t> OpenRequests::abort(const std::string& name, const std::string& owner, bool any_owner) {
  std::vector<uint64_t> out;
  const std::lock_guard lock(mutex_);
  const auto [begin, end] = by_name_.equal_range(name);
  for (auto it = begin; it != end; ++it) {
    Request& request = *it->second;
    if (!any_owner && request.owner != owner) continue;
    request.aborted = true;
    out.insert(out.end(), request.engine_ids.begin(), request.engine_ids.end());
  }
  return out;
}

std::vector<uint64_t> OpenRequests::abort_all() {
  std::vector<uint64_t> out;
  const std::lock_guard lock(mutex_);
  for (const auto& [name, request] : by_name_) {
    if (request->aborted.exchange(true)) continue;  // It has several names.
    out.insert(out.end(), request->engine_ids.begin(), request->engine_ids.end());
  }
  return out;
}

size_t OpenRequests::size() const {
  const std::lock_guard lock(mutex_);
  return by_name_.size();
}

}  // namespace weft
