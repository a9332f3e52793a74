#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "comm/mpi_group.h"
#include "engine/process_ranks.h"
#include "tools/command_line.h"
#include "tools/commands.h"

namespace {

constexpr int kFailed = 1, kRefused = 2;

/// The names of this process's variables that begin with WEFT_.
std::vector<std::string> weft_variables() {
  std::vector<std::string> names;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (text.starts_with("WEFT_")) names.emplace_back(text.substr(0, text.find('=')));
  }
  return names;
}

void run(const weft::Invocation& invocation) {
  const std::string& command = invocation.command;
  if (command == "generate") return weft::run_generate(invocation);
  if (command == "eval") return weft::run_eval(invocation);
  if (command == "serve") return weft::run_serve(invocation);
  if (command == "bench serve") return weft::run_bench_serve(invocation);
  if (command == "inspect") return weft::run_inspect(invocation);
  if (command == "replay") return weft::run_replay(invocation);
  const std::string text = command == "version"         ? "weft " WEFT_VERSION "\n"
                           : command == "help"          ? weft::help_text(invocation.about)
                           : invocation.has("markdown") ? weft::flags_markdown()
                                                        : weft::flags_help();
  std::fputs(text.c_str(), stdout);
}

/// All that the processes of a run must have in common.
weft::Agreement agreement_of(const weft::Invocation& invocation) {
  std::string lines = "weft " WEFT_VERSION " " + invocation.command + "\n";
  lines += "MODEL " + invocation.engine.model_dir.string() + "\n";
  for (const weft::Flag& flag : weft::engine_flags()) lines += "--" + flag.name + " " + flag.text_in(invocation.engine) + "\n";
  return lines;
}

/// Process 0 of several: its engine has ranks in all of them.
void spread(weft::Processes& processes, weft::Invocation& invocation) {
  weft::require_even_processes(invocation.engine.tensor_parallel_size, processes.count());
  const weft::Agreement agreement = agreement_of(invocation);
  const weft::ModelConfig model = weft::load_config(invocation.engine.model_dir, invocation.engine.num_layers);
  invocation.engine.num_gpu_blocks_override = weft::engine_sizes(model, invocation.engine).capacity.blocks;
  invocation.make_ranks = weft::lead(processes, invocation.engine, agreement);
}

/// Another process than 0. What it cannot read, process 0 most likely cannot read either, and says so: the error counts only
/// when process 0 starts the ranks.
void follow(weft::Processes& processes, const std::function<weft::Invocation()>& parse) {
  weft::Invocation invocation;
  std::exception_ptr error;
  try {
    invocation = parse();
  } catch (...) {
    error = std::current_exception();
  }
  weft::follow(processes, invocation.engine, [&] {
    if (error != nullptr) std::rethrow_exception(error);
    return agreement_of(invocation);
  });
}

void work(weft::Processes* processes, const std::function<weft::Invocation()>& parse) {
  if (processes != nullptr && processes->index() > 0) return follow(*processes, parse);
  weft::Invocation invocation = parse();
  if (processes != nullptr && invocation.needs_engine()) spread(*processes, invocation);
  run(invocation);
  // A full disk shows here at the latest: results that nobody got are no success.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw weft::SystemError("cannot write to standard output");
}

/// How this process ends, and why if that is not well.
struct End {
  int status = 0;
  std::string why = {};
};

template <typename Body>
End end_of(Body body) {
  try {
    body();
    return {};
  } catch (const std::bad_alloc&) {
    return {kFailed, "out of host memory"};
  } catch (const weft::UserError& error) {
    return {kRefused, error.what()};
  } catch (const std::exception& error) {
    return {kFailed, error.what()};
  }
}

}  // namespace

int main(int argc, char** argv) {
  weft::log::start();
  std::signal(SIGUSR2, SIG_IGN);  // A server writes a flight; nobody else dies of it.
  const auto parse = [&] {
    return weft::parse_command_line(
        std::vector<std::string>(argv + 1, argv + argc), [](const char* name) { return std::getenv(name); }, weft_variables());
  };
  std::unique_ptr<weft::Processes> processes;
  End end = end_of([&] {
    processes = weft::Processes::join_launched();
    work(processes.get(), parse);
  });
  const bool is_follower = processes != nullptr && processes->index() > 0;
  // Process 0 has said what went wrong with it, and the log why another process was lost.
  if (const auto first = processes == nullptr ? std::nullopt : processes->farewell(); first && first->status != 0) {
    end.status = first->status;
  } else if (end.status != 0 && !(is_follower && end.why == processes->loss())) {
    std::fprintf(stderr, "weft: %s\n", end.why.c_str());
  }
  if (processes != nullptr) processes->leave(end.status, end.why);
  return end.status;
}
