#pragma once

#include <string>
#include <string_view>

namespace weft {

/// Now, as headers spell it.
std::string http_date();
/// A client's name for its request, such that it may go into headers and the log as it is: shortened, printable ASCII without
/// spaces.
std::string clean_id(std::string_view id);
/// The path of a request's target, also of one with the server's name before it, without its query and with its %-codes read.
std::string path_of(std::string_view target);

}  // namespace weft
