#include "text/jinja_filter_parts.h"

namespace weft::jinja {

FilterFunction find_filter(std::string_view name) {
  for (const FilterTable* const table : {&text_filters(), &value_filters(), &sequence_filters()}) {
    if (const auto found = table->find(name); found != table->end()) return found->second;
  }
  return nullptr;
}

}  // namespace weft::jinja
