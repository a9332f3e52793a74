// In place of mpi_group.cc where MPI is not installed.

#include <cstdlib>

#include "base/check.h"
#include "comm/mpi_group.h"

namespace weft {

struct Processes::Parts {};
class MpiGroup::Shared {};

namespace {
[[noreturn]] void refuse() { throw UserError("several processes need MPI, and this program was built without MPI"); }
}  // namespace

std::unique_ptr<Processes> Processes::join_launched() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const char* size = std::getenv(name);
    if (size != nullptr && std::atoi(size) > 1) refuse();
  }
  return nullptr;
}

Processes::Processes() = default;
Processes::~Processes() = default;
int Processes::index() const { return 0; }
int Processes::count() const { return 1; }
void Processes::broadcast(int, std::span<const std::byte>) { refuse(); }
int Processes::receive(std::vector<std::byte>&) { refuse(); }
void Processes::abort(const std::string&) noexcept {}
std::string Processes::loss() const { return ""; }
void Processes::on_loss(std::function<void(const std::string&)> /*told*/) {}  // NOLINT(performance-unnecessary-value-param)
void Processes::leave(int, const std::string&) {}
std::optional<PeerWatch::Farewell> Processes::farewell() const { return std::nullopt; }

MpiGroup::MpiGroup(Processes&, const Members&) { refuse(); }
MpiGroup::~MpiGroup() = default;
std::unique_ptr<Communicator> MpiGroup::join(int) { refuse(); }
void MpiGroup::abort() noexcept {}

}  // namespace weft
