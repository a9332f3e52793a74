#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace weft::check_detail {

// NOLINTNEXTLINE(performance-unnecessary-value-param)
Failure::Failure(const char* file, int line, std::string what) { text_ << file << ":" << line << ": " << what; }

Failure::~Failure() {
  std::fprintf(stderr, "%s\n", text_.str().c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace weft::check_detail
