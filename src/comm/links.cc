#include "comm/links.h"

namespace weft {

void PlanLink::broadcast(Order order, std::span<const std::byte> bytes) {
  processes_.broadcast(static_cast<int>(order), bytes);
}

PlanLink::Received PlanLink::receive() {
  const int kind = processes_.receive(buffer_);
  if (kind < 0) return {.order = Order::leave, .bytes = {}};
  return {.order = static_cast<Order>(kind), .bytes = buffer_};
}

}  // namespace weft
