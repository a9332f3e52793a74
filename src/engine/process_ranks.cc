#include "engine/process_ranks.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/links.h"
#include "comm/thread_group.h"
#include "ops/make_ops.h"

namespace weft {
namespace {

std::string current_error() {
  try {
    std::rethrow_exception(std::current_exception());
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "unknown error";
  }
}

/// Where MPI binds processes to cores of their own, only the ranks of this one compute on what it sees.
bool shares_cores() { return static_cast<long>(std::thread::hardware_concurrency()) >= ::sysconf(_SC_NPROCESSORS_ONLN); }

/// What an order to run a step says: the checksum of the tokens that process 0 chose in the step before, then the plan.
class RunMessage {
 public:
  /// Valid until the next call.
  std::span<const std::byte> write(const StepPlan& plan, uint64_t tokens_before) {
    bytes_.resize(sizeof(tokens_before) + plan.bytes().size());
    std::memcpy(bytes_.data(), &tokens_before, sizeof(tokens_before));
    std::memcpy(bytes_.data() + sizeof(tokens_before), plan.bytes().data(), plan.bytes().size());
    return bytes_;
  }
  /// Fills `plan`. Throws SystemError where it is damaged, or process 0 has chosen other tokens than `own_tokens`.
  static void read(std::span<const std::byte> bytes, uint64_t own_tokens, StepPlan& plan) {
    uint64_t tokens = 0;
    if (bytes.size() < sizeof(tokens)) throw SystemError("an order to run a step is too short: {} bytes", bytes.size());
    std::memcpy(&tokens, bytes.data(), sizeof(tokens));
    plan.receive(bytes.subspan(sizeof(tokens)));
    if (tokens != own_tokens)
      throw SystemError("processes disagree on the tokens of the step before step {}: the machine or the build is broken",
                        plan->step);
  }

 private:
  std::vector<std::byte> bytes_;
};

/// The groups of a run, as far as this process is in them.
class Session {
 public:
  Session(Processes& processes, const RankGrid& grid)
      : processes_(processes),
        grid_(grid),
        per_process_(grid.tp() / processes.count()),
        tp_(processes, {.first = 0, .size = grid.tp(), .per_process = per_process_}),
        link_(processes) {
    for (int group = 0; group < grid.groups(); ++group) {
      const int begin = group * grid.dcp(), end = begin + grid.dcp();
      DcpGroup made;
      if (begin / per_process_ != (end - 1) / per_process_) {
        made.spread = std::make_unique<MpiGroup>(
            processes, MpiGroup::Members{.first = begin, .size = grid.dcp(), .per_process = per_process_});
      } else if (begin / per_process_ == processes.index()) {
        made.local = std::make_unique<ThreadGroup>(grid.dcp());
      }
      dcp_.push_back(std::move(made));
    }
  }
  ~Session() {
    if (processes_.index() != 0 || is_dead_) return;
    try {
      link_.broadcast(PlanLink::Order::stop);
    } catch (const std::exception&) {
      // A process is lost, and those that live have heard it.
    }
  }

  LocalRanks ranks(const std::shared_ptr<Session>& self) {
    LocalRanks local;
    local.first = processes_.index() * per_process_;
    local.count = per_process_;
    local.on_same_cores = shares_cores() ? grid_.tp() : per_process_;
    local.make_tp = [self](int rank) { return self->tp_.join(rank); };
    local.make_dcp = [self](int rank) { return self->join_dcp(rank); };
    local.abort = [self] { self->abort(); };
    if (processes_.index() == 0)
      local.announce = [self](const StepPlan& plan, uint64_t tokens_before) {
        self->link_.broadcast(PlanLink::Order::run, self->run_message_.write(plan, tokens_before));
      };
    local.on_loss = [self](std::function<void(const std::string&)> call) { self->processes_.on_loss(std::move(call)); };
    return local;
  }

 private:
  /// One of the two, or neither where all of its ranks are in another process.
  struct DcpGroup {
    std::unique_ptr<MpiGroup> spread;
    std::unique_ptr<ThreadGroup> local;
  };

  std::unique_ptr<Communicator> join_dcp(int rank) {
    const DcpGroup& group = dcp_[static_cast<size_t>(grid_.group_of(rank))];
    const int member = grid_.dcp_rank_of(rank);
    return group.spread != nullptr ? group.spread->join(member) : group.local->join(member);
  }

  /// Called while the error of the rank that failed is handled.
  void abort() {
    is_dead_ = true;
    for (const DcpGroup& group : dcp_)
      if (group.local != nullptr) group.local->abort();
    // Where another process failed, this error only follows from that one.
    if (processes_.loss().empty()) processes_.abort(current_error());
  }

  Processes& processes_;
  const RankGrid grid_;
  const int per_process_;
  MpiGroup tp_;
  std::vector<DcpGroup> dcp_;
  PlanLink link_;
  RunMessage run_message_;
  std::atomic<bool> is_dead_{false};
};

LocalRanks process_ranks(Processes& processes, const RankGrid& grid) {
  const auto session = std::make_shared<Session>(processes, grid);
  return session->ranks(session);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

void require_agreement(int process, const Agreement& here, const Agreement& there) {
  if (here == there) return;
  const std::vector<std::string> own = lines_of(here), first = lines_of(there);
  std::string differences;
  for (size_t i = 0; i < std::max(own.size(), first.size()); ++i) {
    const std::string a = i < own.size() ? own[i] : "nothing", b = i < first.size() ? first[i] : "nothing";
    if (a != b)
      differences += fmt::format("{}{} in process {}, {} in process 0", differences.empty() ? "" : "; ", a, process, b);
  }
  throw UserError("all processes of a run must be started with the same flags: {}", differences);
}

EngineConfig with_blocks(EngineConfig config, int64_t blocks) {
  config.num_gpu_blocks_override = blocks;
  return config;
}

/// The life of this process's ranks, from start to stop. Returns the order after.
PlanLink::Received run_ranks(Processes& processes, PlanLink& link, const EngineConfig& config) {
  const ModelConfig model = load_config(config.model_dir, config.num_layers);
  // Process 0 has made sure that the ranks of all processes fit in the memory of this machine.
  const ResolvedConfig resolved = resolve(model, config, *make_cpu_ops(1));
  ModelTeam team(model, config, resolved, process_ranks(processes, resolved.grid));
  PlanLink::Received order = link.receive();
  for (StepPlan plan; order.order == PlanLink::Order::run; order = link.receive()) {
    RunMessage::read(order.bytes, team.last_tokens(), plan);
    team.run(plan);
  }
  return order;
}

}  // namespace

void require_even_processes(int tensor_parallel_size, int processes) {
  if (tensor_parallel_size % processes == 0) return;
  throw UserError(
      "--tensor-parallel-size must be a multiple of the number of processes, here {}, {}, ...: got {}, processes {}", processes,
      2 * processes, tensor_parallel_size, processes);
}

Engine::MakeRanks lead(Processes& processes, const EngineConfig& config, const Agreement& agreement) {
  require_even_processes(config.tensor_parallel_size, processes.count());
  WEFT_CHECK_GT(config.num_gpu_blocks_override, 0);
  const std::string message = fmt::format("{}\n{}", config.num_gpu_blocks_override, agreement);
  return [&processes, message](const RankGrid& grid) {
    PlanLink(processes).broadcast(PlanLink::Order::start, std::as_bytes(std::span(message)));
    return process_ranks(processes, grid);
  };
}

void follow(Processes& processes, const EngineConfig& config, const std::function<Agreement()>& agreement) {
  PlanLink link(processes);
  PlanLink::Received order = link.receive();
  while (order.order != PlanLink::Order::leave) {
    if (order.order == PlanLink::Order::start) {
      // The number of KV blocks on a line, then the agreement.
      const std::string text(reinterpret_cast<const char*>(order.bytes.data()), order.bytes.size());
      require_agreement(processes.index(), agreement(), text.substr(text.find('\n') + 1));
      order = run_ranks(processes, link, with_blocks(config, std::stoll(text)));
    } else {
      order = link.receive();
    }
  }
}

}  // namespace weft
