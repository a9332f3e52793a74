// Whatever the bytes of a file are, its header is either refused with a UserError, or describes tensors that lie in the file.

#include <cstdlib>

#include "base/check.h"
#include "model/safetensors.h"

namespace {

void check(const weft::SafetensorsHeader& header, uint64_t file_bytes) {
  uint64_t covered = header.data_offset;
  for (const auto& [name, tensor] : header.tensors) {
    if (tensor.begin > tensor.end || tensor.end > file_bytes - header.data_offset) std::abort();
    covered += tensor.end - tensor.begin;
    if (!tensor.dtype) continue;
    uint64_t bytes = weft::size_of(*tensor.dtype);
    for (const int64_t size : tensor.shape) bytes *= static_cast<uint64_t>(size);
    if (bytes != tensor.end - tensor.begin) std::abort();
  }
  if (covered != file_bytes) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The first byte says how much longer the file is than the bytes at hand, so that short inputs may describe large data.
  const uint64_t beyond = size == 0 ? 0 : uint64_t{data[0]} * data[0];
  const auto head = std::as_bytes(std::span(data, size)).subspan(size == 0 ? 0 : 1);
  // A header must be at hand as a whole: claim more than that only where the length stays inside.
  uint64_t length = 0;
  for (size_t i = 0; head.size() >= 8 && i < 8; ++i) length |= static_cast<uint64_t>(head[i]) << 8 * i;
  const bool whole = head.size() >= 8 && length <= head.size() - 8;
  const uint64_t file_bytes = head.size() + (whole ? beyond : 0);
  try {
    check(weft::parse_safetensors_header(head, file_bytes, "fuzz"), file_bytes);
  } catch (const weft::UserError&) {
  }
  return 0;
}
