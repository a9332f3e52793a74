#include "server/wake.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace weft {

Wake::Wake() : descriptor_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (descriptor_ < 0) throw SystemError("cannot make an eventfd: {}", std::strerror(errno));
}
Wake::~Wake() { ::close(descriptor_); }

void Wake::ring() const noexcept {
  const uint64_t one = 1;
  // It fails only when the counter is full: then the io thread is awake anyway.
  [[maybe_unused]] const auto written = ::write(descriptor_, &one, sizeof one);
}

void Wake::clear() const noexcept {
  uint64_t rings = 0;
  [[maybe_unused]] const auto got = ::read(descriptor_, &rings, sizeof rings);
}

}  // namespace weft
