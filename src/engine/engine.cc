#include "engine/engine.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "base/queue.h"
#include "engine/config_text.h"
#include "engine/engine_loop.h"
#include "engine/flight_recorder.h"
#include "engine/model_team.h"
#include "engine/plan_builder.h"
#include "engine/sizes.h"
#include "ops/make_ops.h"

namespace weft {
namespace {

ResolvedConfig resolve_on_cpu(const ModelConfig& model, const EngineConfig& config) {
  const auto ops = make_cpu_ops(1);
  ResolvedConfig resolved = resolve(model, config, *ops);
  require_memory(resolved);
  return resolved;
}

/// Names everything that the KV of a token depends on beside the tokens before it.
std::string fingerprint_of(const ModelConfig& model, const EngineConfig& config, const ResolvedConfig& resolved) {
  return fmt::format("{} {} layers {} seed {} {} kv {} scale {} W {} S {} B {}", config.model_dir.string(),
                     to_string(model.architecture), model.layers, config.seed, to_string(resolved.sizes.dtype),
                     resolved.sizes.kv_dtype, config.kv_cache_scale, resolved.grid.dcp(), resolved.grid.shard().interleave,
                     resolved.shape.layout.block_tokens);
}

/// Keys the prefix hash: whoever sends prompts cannot make two of them collide.
std::array<uint8_t, 16> make_secret() {
  std::random_device random;
  std::array<uint8_t, 16> secret;
  for (uint8_t& byte : secret) byte = static_cast<uint8_t>(random());
  return secret;
}

EngineLoop::Options loop_options(const ModelConfig& model, const EngineConfig& config, const ResolvedConfig& resolved) {
  EngineLoop::Options options;
  options.layout = resolved.shape.layout;
  options.blocks = resolved.sizes.capacity.blocks;
  options.limits.tokens = resolved.limits.rows;
  options.limits.sequences = resolved.limits.sequences;
  options.max_model_len = resolved.sizes.max_model_len;
  options.vocab = static_cast<int32_t>(model.vocab);
  options.end_tokens = model.eos_ids;
  options.prefix_caching = config.enable_prefix_caching;
  options.batch_invariant = config.batch_invariant;
  options.tpot_target_ms = config.tpot_target_ms;
  options.seed = config.seed;
  options.fingerprint = fingerprint_of(model, config, resolved);
  options.secret = make_secret();
  return options;
}

FlightRecorder::Options recorder_options(const EngineConfig& config, const ResolvedConfig& resolved) {
  // 256 steps of 256 decoding sequences on four context ranks take 6 MiB; of long prompts fewer steps are kept.
  constexpr size_t kBytes = size_t{16} << 20;
  // A replay has the same pool, however much memory is free then.
  EngineConfig fixed = config;
  fixed.num_gpu_blocks_override = resolved.sizes.capacity.blocks;
  return {.sizes = {.virtual_tokens = resolved.shape.layout.virtual_tokens(),
                    .blocks = resolved.sizes.capacity.blocks,
                    .sequences = resolved.limits.sequences,
                    .blocks_per_sequence = resolved.limits.blocks_per_sequence},
          .bytes = kBytes,
          .config = to_text(fixed)};
}

std::string counted(int64_t n, const char* noun) { return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s"); }

}  // namespace

struct Engine::Parts {
  /// A request on its way to the loop.
  struct New {
    EngineLoop::SubmissionPtr submission;
    std::shared_ptr<RequestStream> stream;
    bool counted = true;  ///< towards the bounds of the queue
  };
  struct Command {
    enum class Kind : uint8_t { add, cancel, cancel_all, reset_prefix_cache, write_flight, fail } kind = Kind::add;
    std::vector<New> added = {};
    uint64_t id = 0;       ///< to cancel
    std::string why = {};  ///< to fail
  };
  /// A request in the loop.
  struct Open {
    std::shared_ptr<RequestStream> stream;
    bool queued = false;  ///< counts towards the bounds of the queue
  };

  Parts(const EngineConfig& config_in, Hooks hooks_in, const MakeRanks& make_ranks);
  ~Parts();

  // Any thread.
  New make(Request request, bool counted);
  Refusal enter(std::span<const New> added);
  /// Under the mutex.
  void show_queue();

  // Engine thread.
  void work();
  void carry_out(Command command);
  void after_step();
  void look_after_open();
  void write_flight() const;
  void fail(const std::string& why);
  void end_with_error(const New& added, const std::string& why);
  int64_t now() const;

  const EngineConfig config;
  const Hooks hooks;
  const ModelConfig model;
  const ResolvedConfig resolved;
  const EngineLoop::Options options;
  EngineMetrics metrics;
  PlanBuilder builder;
  ModelTeam team;
  FlightRecorder recorder;
  EngineLoop loop;
  Queue<Command> inbox;
  std::atomic<uint64_t> next_id{1};

  mutable std::mutex mutex;       ///< guards the four below
  std::condition_variable ended;  ///< open_requests became 0, or the engine has failed
  bool draining = false;
  std::string failure;
  int64_t queued_requests = 0, queued_tokens = 0, open_requests = 0;

  std::atomic<uint32_t> progress{0};  ///< changes whenever a stream may have
  std::vector<Open> open;             ///< engine thread only
  bool cancels_all = false;           ///< engine thread only: the drain is over
  std::vector<int64_t> shares;        ///< scratch of the shares hook
  std::thread thread;
};

Engine::Parts::Parts(const EngineConfig& config_in, Hooks hooks_in, const MakeRanks& make_ranks)
    : config(config_in),
      hooks(std::move(hooks_in)),
      model(load_config(config_in.model_dir, config_in.num_layers)),
      resolved(resolve_on_cpu(model, config)),
      options(loop_options(model, config, resolved)),
      builder(model, resolved.grid, plan_options(model, config, resolved)),
      team(model, config, resolved, make_ranks ? make_ranks(resolved.grid) : thread_ranks(resolved.grid)),
      recorder(recorder_options(config, resolved), team),
      loop(options, builder, recorder, metrics),
      // All that can be open may be added and cancelled between two steps, and nobody waits.
      inbox(2 * static_cast<size_t>(config.max_queued_requests + resolved.limits.sequences) + 64),
      shares(static_cast<size_t>(resolved.grid.dcp())) {
  open.reserve(inbox.capacity() + static_cast<size_t>(resolved.limits.sequences));
  metrics.exchange = team.exchange_counters();
  metrics.first_rank = team.first_rank();
  const EngineSizes& sizes = resolved.sizes;
  log::info(
      "{} on {}, {} to a DCP group: {} KV tokens in {} of {}, longest request {}; per rank {} weights, {} workspaces, {} "
      "exchange, {} KV; {}, KV {}, {} a rank",
      to_string(model.architecture), counted(resolved.grid.tp(), "rank"), resolved.grid.dcp(), sizes.capacity.tokens,
      counted(sizes.capacity.blocks, "block"), resolved.shape.layout.virtual_tokens(), sizes.max_model_len,
      readable_bytes(sizes.weight_bytes), readable_bytes(sizes.workspace_bytes), readable_bytes(sizes.exchange_bytes),
      readable_bytes(sizes.kv_bytes), to_string(sizes.dtype), sizes.kv_dtype, counted(team.threads_per_rank(), "thread"));
  thread = std::thread([this] { work(); });
  // A step that is running fails by itself; an engine that waits for requests would not notice.
  team.on_loss([this](const std::string& why) {
    Command command{.kind = Command::Kind::fail, .why = why};
    inbox.try_push(command);
  });
}

Engine::Parts::~Parts() {
  team.on_loss({});
  inbox.push({.kind = Command::Kind::cancel_all});
  inbox.close();
  thread.join();
}

int64_t Engine::Parts::now() const {
  if (hooks.clock) return hooks.clock();
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Engine::Parts::New Engine::Parts::make(Request request, bool counted) {
  const auto stream = std::make_shared<RequestStream>(next_id.fetch_add(1), request);
  stream->edit_times().submitted = now();
  return {.submission = EngineLoop::prepare(std::move(request), stream, options), .stream = stream, .counted = counted};
}

/// Takes places in the queue, or says why there are none.
Engine::Refusal Engine::Parts::enter(std::span<const New> added) {
  const std::lock_guard lock(mutex);
  if (!failure.empty()) return Refusal::failed;
  if (draining) return Refusal::draining;
  for (const New& one : added) {
    if (!one.counted || queued_requests == 0) continue;
    const bool tokens_full =
        config.max_queued_tokens > 0 && queued_tokens + one.stream->prompt_tokens() > config.max_queued_tokens;
    const bool requests_full = queued_requests >= config.max_queued_requests;
    if (!requests_full && !tokens_full) continue;
    (requests_full ? metrics.refused_queue_requests : metrics.refused_queue_tokens).add();
    return Refusal::queue_full;
  }
  for (const New& one : added) {
    ++open_requests;
    if (!one.counted) continue;
    ++queued_requests;
    queued_tokens += one.stream->prompt_tokens();
  }
  show_queue();
  return Refusal::none;
}

void Engine::Parts::show_queue() {
  metrics.queued_requests.set(static_cast<double>(queued_requests));
  metrics.queued_tokens.set(static_cast<double>(queued_tokens));
}

void Engine::Parts::work() {
  try {
    while (true) {
      while (std::optional<Command> command = inbox.try_pop()) carry_out(std::move(*command));
      const bool worked = loop.step(now());
      after_step();
      if (worked) continue;
      std::optional<Command> command = inbox.pop();
      if (!command) return;
      carry_out(std::move(*command));
    }
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

void Engine::Parts::carry_out(Command command) {
  switch (command.kind) {
    case Command::Kind::add:
      for (New& one : command.added) {
        const uint64_t id = one.stream->id();
        open.push_back({.stream = std::move(one.stream), .queued = one.counted});
        loop.add(std::move(one.submission), now());
        if (cancels_all) loop.cancel(id, now());
      }
      break;
    case Command::Kind::cancel:
      loop.cancel(command.id, now());
      break;
    case Command::Kind::cancel_all:
      // Also those that took their place before the drain and come after it.
      cancels_all = true;
      for (const Open& one : open) loop.cancel(one.stream->id(), now());
      break;
    case Command::Kind::reset_prefix_cache:
      loop.reset_prefix_cache();
      break;
    case Command::Kind::write_flight:
      write_flight();
      break;
    case Command::Kind::fail:
      throw SystemError("{}", command.why);
  }
}

void Engine::Parts::after_step() {
  if (hooks.shares) {
    const ShardLayout shard = options.layout.shard;
    loop.each_running([&](uint64_t id, int64_t tokens) {
      for (int rank = 0; rank < shard.ranks; ++rank) shares[static_cast<size_t>(rank)] = shard.local_count(tokens, rank);
      hooks.shares(id, shares);
    });
  }
  look_after_open();
  progress.fetch_add(1, std::memory_order_acq_rel);
  progress.notify_all();
  if (hooks.progress) hooks.progress();
}

/// Gives back the places of requests that were admitted or have ended.
void Engine::Parts::look_after_open() {
  int64_t requests = 0, tokens = 0, over = 0;
  for (size_t i = 0; i < open.size();) {
    RequestStream& stream = *open[i].stream;
    const bool done = stream.done();
    if (open[i].queued && (done || stream.edit_times().admitted != 0)) {
      open[i].queued = false;
      ++requests;
      tokens += stream.prompt_tokens();
    }
    if (done) {
      ++over;
      std::swap(open[i], open.back());
      open.pop_back();
    } else {
      ++i;
    }
  }
  if (requests == 0 && over == 0) return;
  const std::lock_guard lock(mutex);
  queued_requests -= requests;
  queued_tokens -= tokens;
  show_queue();
  open_requests -= over;
  if (open_requests == 0) ended.notify_all();
}

void Engine::Parts::write_flight() const {
  const std::filesystem::path folder = std::filesystem::temp_directory_path();
  const std::string name = fmt::format("weft-flight-{}-{}", ::getpid(), metrics.steps.value());
  try {
    std::filesystem::path path = folder / name;
    for (int more = 2; std::filesystem::exists(path); ++more) path = folder / fmt::format("{}-{}", name, more);
    recorder.write(path);
    log::info("the last {} are in {}: weft replay runs them again", counted(recorder.kept(), "step"), path.string());
  } catch (const std::exception& error) {
    log::error("cannot keep the last steps: {}", error.what());
  }
}

/// The end of the engine: all that is open, and all that still comes, ends with an error.
void Engine::Parts::fail(const std::string& why) {
  log::error("the engine stops: {}", why);
  if (recorder.kept() > 0) write_flight();
  {
    const std::lock_guard lock(mutex);
    failure = why.empty() ? "unknown error" : why;
    ended.notify_all();
  }
  inbox.close();
  loop.fail_all(why, now());
  while (std::optional<Command> command = inbox.try_pop()) {
    for (New& one : command->added) {
      end_with_error(one, why);
      open.push_back({.stream = std::move(one.stream), .queued = one.counted});
    }
  }
  after_step();
}

void Engine::Parts::end_with_error(const New& added, const std::string& why) {
  RequestStream& stream = *added.stream;
  for (int choice = 0; choice < stream.choices(); ++choice)
    stream.append({.choice = choice, .token = -1, .log_prob = 0, .finish = FinishReason::error}, {}, {});
  metrics.finished_error.add(stream.choices());
  stream.edit_times().finished = now();
  stream.finish(why);
}

Engine::Engine(const EngineConfig& config, Hooks hooks, const MakeRanks& make_ranks)
    : parts_(std::make_unique<Parts>(config, std::move(hooks), make_ranks)) {}
Engine::Engine(const EngineConfig& config) : Engine(config, {}) {}
Engine::~Engine() = default;

const ModelConfig& Engine::model() const { return parts_->model; }
const RankGrid& Engine::grid() const { return parts_->resolved.grid; }
const EngineSizes& Engine::sizes() const { return parts_->resolved.sizes; }
const EngineConfig& Engine::config() const { return parts_->config; }
const EngineMetrics& Engine::metrics() const { return parts_->metrics; }

Engine::Submitted Engine::submit(Request request) {
  Parts& p = *parts_;
  check_request(request, p.model, p.resolved.sizes);
  std::vector<Parts::New> added;
  added.push_back(p.make(std::move(request), /*counted=*/true));
  const std::shared_ptr<RequestStream> stream = added.front().stream;
  if (const Refusal refusal = p.enter(added); refusal != Refusal::none) return {.stream = nullptr, .refusal = refusal};
  if (!p.inbox.push({.kind = Parts::Command::Kind::add, .added = std::move(added)}))
    return {.stream = nullptr, .refusal = Refusal::failed};
  return {.stream = stream};
}

void Engine::cancel(uint64_t id) { parts_->inbox.push({.kind = Parts::Command::Kind::cancel, .id = id}); }

bool Engine::drain(int64_t timeout_ms) {
  Parts& p = *parts_;
  std::unique_lock lock(p.mutex);
  p.draining = true;
  const auto all_ended = [&] { return p.open_requests == 0 || !p.failure.empty(); };
  if (p.ended.wait_for(lock, std::chrono::milliseconds(timeout_ms), all_ended)) return true;
  lock.unlock();
  p.inbox.push({.kind = Parts::Command::Kind::cancel_all});
  lock.lock();
  p.ended.wait(lock, all_ended);
  return false;
}

std::string Engine::failure() const {
  const std::lock_guard lock(parts_->mutex);
  return parts_->failure;
}

void Engine::write_flight() { parts_->inbox.push({.kind = Parts::Command::Kind::write_flight}); }

void Engine::reset_prefix_cache() { parts_->inbox.push({.kind = Parts::Command::Kind::reset_prefix_cache}); }

std::vector<std::shared_ptr<RequestStream>> Engine::run(std::vector<Request> requests) {
  Parts& p = *parts_;
  for (const Request& request : requests) check_request(request, p.model, p.resolved.sizes);
  std::vector<Parts::New> added;
  std::vector<std::shared_ptr<RequestStream>> streams;
  for (Request& request : requests) {
    added.push_back(p.make(std::move(request), /*counted=*/false));
    streams.push_back(added.back().stream);
  }
  const Refusal refusal = p.enter(added);
  const bool taken = refusal == Refusal::none && p.inbox.push({.kind = Parts::Command::Kind::add, .added = std::move(added)});
  if (refusal == Refusal::draining) throw SystemError("the engine drains and takes no more requests");
  for (const auto& stream : streams) {
    for (uint32_t seen = p.progress.load(); taken && !stream->done(); seen = p.progress.load()) p.progress.wait(seen);
  }
  if (const std::string why = failure(); !why.empty()) throw SystemError("{}", why);
  return streams;
}

}  // namespace weft
