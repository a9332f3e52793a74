// weft_text_oracle TOKENIZER_JSON: the ids of every text on standard input, for comparison with another library.
//
// In: for each text its length as four bytes, the lowest first, and its bytes. Out: for each text the number of ids and the
// ids, four bytes each, likewise; on standard error, at the end, the microseconds of processor time spent encoding and
// decoding.

#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace {

bool read(void* into, size_t bytes) { return std::fread(into, 1, bytes, stdin) == bytes; }
void write(const void* from, size_t bytes) { std::fwrite(from, 1, bytes, stdout); }

/// Of processor time, which other programs on the machine disturb least.
int64_t microseconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000 + time.tv_nsec / 1000;
}

int run(const char* path) {
  const int64_t began = microseconds();
  const auto tokenizer = weft::Tokenizer::load(path);
  const int64_t loaded = microseconds();
  int64_t encoding = 0, decoding = 0;
  uint32_t bytes = 0;
  std::string text;
  while (read(&bytes, sizeof bytes)) {
    text.resize(bytes);
    if (!read(text.data(), bytes)) return 1;
    const int64_t start = microseconds();
    const std::vector<int32_t> ids = tokenizer->encode(text, {.add_special_tokens = true});
    const int64_t encoded = microseconds();
    const std::string decoded = tokenizer->decode(ids, false);
    decoding += microseconds() - encoded;
    encoding += encoded - start;
    const uint32_t sizes[] = {static_cast<uint32_t>(ids.size()), static_cast<uint32_t>(decoded.size())};
    write(sizes, sizeof sizes);
    write(ids.data(), ids.size() * sizeof(int32_t));
    write(decoded.data(), decoded.size());
  }
  std::fprintf(stderr, "{\"load_us\": %ld, \"encode_us\": %ld, \"decode_us\": %ld}\n", loaded - began, encoding, decoding);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    return run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
