#pragma once

#include <functional>
#include <string>

#include "comm/mpi_group.h"
#include "engine/engine.h"
#include "engine/model_team.h"

namespace weft {

/// Engine flags as lines of "--name value" and whatever else must be the same in all processes of a run.
using Agreement = std::string;

/// For the Engine of process 0: the ranks are spread over all processes, in equal runs. When the engine starts the others load
/// their ranks, then run each plan of the engine, and give the ranks back when it ends. `config` is the engine's; its number of
/// KV blocks must be fixed (num_gpu_blocks_override), because the others might find another amount of free memory. `processes`
/// outlives the engine.
Engine::MakeRanks lead(Processes& processes, const EngineConfig& config, const Agreement& agreement);

/// The life of the other processes: does what process 0 says until it has left. `config` is this process's own, `agreement` is
/// asked for when process 0 starts the ranks. Throws UserError where this process was not started as process 0 was, SystemError
/// once a process is lost.
void follow(Processes& processes, const EngineConfig& config, const std::function<Agreement()>& agreement);

/// Throws UserError where the ranks cannot be dealt evenly.
void require_even_processes(int tensor_parallel_size, int processes);

}  // namespace weft
