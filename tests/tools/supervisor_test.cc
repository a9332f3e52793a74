#include "tools/supervisor.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

namespace weft {
namespace {

/// Listens at `name`, "@" for the abstract namespace, and returns what it is told.
std::string told(const std::string& name, const std::string& state) {
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, name.data(), name.size());
  if (name[0] == '@') address.sun_path[0] = '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  EXPECT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), size), 0) << std::strerror(errno);
  ::setenv("NOTIFY_SOCKET", name.c_str(), 1);
  tell_supervisor(state);
  ::unsetenv("NOTIFY_SOCKET");
  char text[64];
  const auto n = ::recv(socket, text, sizeof text, MSG_DONTWAIT);
  ::close(socket);
  return n < 0 ? "nothing" : std::string(text, static_cast<size_t>(n));
}

TEST(Supervisor, IsToldWhereItListens) {
  const std::string unique = "weft_notify_" + std::to_string(::getpid());
  EXPECT_EQ(told("@" + unique, "READY=1"), "READY=1");
  const std::string path = ::testing::TempDir() + unique;
  EXPECT_EQ(told(path, "STOPPING=1"), "STOPPING=1");
  ::unlink(path.c_str());
}

TEST(Supervisor, ThatIsNotThereIsNoError) {
  ::unsetenv("NOTIFY_SOCKET");
  tell_supervisor("READY=1");
  for (const std::string& name : {std::string("/nowhere/at/all"), std::string("x"), std::string(), std::string(500, '/')}) {
    ::setenv("NOTIFY_SOCKET", name.c_str(), 1);
    tell_supervisor("READY=1");
  }
  ::unsetenv("NOTIFY_SOCKET");
}

}  // namespace
}  // namespace weft
