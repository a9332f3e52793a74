#include "exchange/exchange.h"

#include "exchange/buffer_sizes.h"

namespace weft {

size_t ExchangeLimits::bytes(int ranks) const {
  const ExchangeBufferSizes sizes(*this, ranks);
  return sizes.queries + 2 * sizes.partials + sizes.context_sent + sizes.context_received;
}

}  // namespace weft
