#pragma once

#include <string>

namespace weft {

/// Tells systemd, where it waits for that (Type=notify), how the process is: "READY=1", "STOPPING=1", "STATUS=...". Without a
/// supervisor, or where it does not listen, nothing happens.
void tell_supervisor(const std::string& state);

}  // namespace weft
