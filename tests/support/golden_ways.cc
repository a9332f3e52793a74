#include "support/golden_ways.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "engine/engine.h"
#include "support/golden_check.h"

namespace weft::test {
namespace {

/// Tokens and nothing else: captures would keep a prompt from using the cache.
Request plain_request(const GoldenPrompt& known) {
  Request request;
  request.label = known.name;
  request.prompt = known.input_ids;
  request.sampling.temperature = 0;
  request.ignore_eos = true;
  request.max_tokens = static_cast<int64_t>(known.gen_ids.size());
  return request;
}

std::vector<Request> plain_requests(const std::vector<GoldenPrompt>& prompts) {
  std::vector<Request> requests;
  for (const GoldenPrompt& known : prompts) requests.push_back(plain_request(known));
  return requests;
}

int64_t blocks_for(int64_t tokens, const GridPoint& point) {
  const int64_t block = int64_t{point.block_size} * point.dcp;
  return (tokens + block - 1) / block;
}

using Streams = std::vector<std::shared_ptr<RequestStream>>;

/// The requests of one engine, and what is wrong with what came of them.
class WayRun {
 public:
  WayRun(const Golden& golden, const GridPoint& point) : golden_(golden), point_(point), prompts_(golden.prompts) {}

  std::vector<std::string> run(Way way) {
    switch (way) {
      case Way::cold:
        check(start(pool_for_all())->run(plain_requests(prompts_)));
        break;
      case Way::replayed:
        replayed();
        break;
      case Way::joined:
        joined();
        break;
      case Way::crowded:
        crowded();
        break;
      case Way::smallest:
        check(start(blocks_of_longest())->run(plain_requests(prompts_)));
        break;
    }
    return failures_;
  }

 private:
  std::unique_ptr<Engine> start(int64_t blocks, Engine::Hooks hooks = {}) {
    EngineConfig config = engine_config(point_, golden_.dir, ComputeDType::f32, plain_requests(prompts_));
    config.num_gpu_blocks_override = blocks;
    return std::make_unique<Engine>(config, std::move(hooks));
  }

  static int64_t length(const GoldenPrompt& prompt) {
    return static_cast<int64_t>(prompt.input_ids.size() + prompt.gen_ids.size());
  }
  int64_t blocks_of_longest() const { return blocks_for(length(prompts_.back()), point_); }
  /// With a block more for each: what is cached of a prompt is copied before
  /// its answer is written behind it.
  int64_t pool_for_all() const {
    int64_t blocks = 0;
    for (const GoldenPrompt& prompt : prompts_) blocks += blocks_for(length(prompt), point_) + 1;
    return blocks;
  }

  void replayed() {
    const auto engine = start(pool_for_all());
    check(engine->run(plain_requests(prompts_)));
    const Streams again = engine->run(plain_requests(prompts_));
    check(again);
    for (const auto& stream : again) {
      if (stream->cached_tokens() != stream->prompt_tokens() - 1)
        fail(fmt::format("{} of {} prompt tokens were cached", stream->cached_tokens(), stream->prompt_tokens()));
    }
  }

  void joined() {
    // The engine rests behind the step that gives the first prompt its third
    // token, until the long prompt is there.
    std::mutex mutex;
    std::condition_variable changed;
    std::shared_ptr<RequestStream> first;
    bool resting = false, go_on = false;
    const auto engine = start(pool_for_all(), {.progress = [&] {
                                std::unique_lock lock(mutex);
                                if (first == nullptr || go_on || first->events().size() < 3) return;
                                resting = true;
                                changed.notify_all();
                                changed.wait(lock, [&] { return go_on; });
                              }});
    Streams streams;
    for (size_t i = 0; i + 1 < prompts_.size(); ++i) {
      streams.push_back(engine->submit(plain_request(prompts_[i])).stream);
      const std::lock_guard lock(mutex);
      first = streams.front();
    }
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return resting; });
    streams.push_back(engine->submit(plain_request(prompts_.back())).stream);
    if (streams.front()->done()) fail("the first prompt had ended before the long one came");
    go_on = true;
    changed.notify_all();
    lock.unlock();
    engine->drain(INT32_MAX);
    check(streams);
  }

  void crowded() {
    // The longest prompt plays no part: the others are of the sizes that this
    // way wants, and quicker.
    if (prompts_.size() > 2) prompts_.pop_back();
    const GoldenPrompt &one = prompts_[prompts_.size() - 2], &two = prompts_.back();
    prompts_ = {one, two};
    const int64_t both = blocks_for(static_cast<int64_t>(one.input_ids.size()), point_) +
                         blocks_for(static_cast<int64_t>(two.input_ids.size()), point_);
    const auto engine = start(std::max(both, blocks_of_longest()));
    check(engine->run(plain_requests(prompts_)));
    if (engine->metrics().preemptions.value() == 0) fail("nobody gave way");
  }

  void check(const Streams& streams) {
    for (size_t i = 0; i < streams.size(); ++i) {
      const std::vector<int32_t> ids = result_of(*streams[i]).gen_ids, &golden = prompts_[i].gen_ids;
      if (ids == golden) continue;
      const auto at = std::mismatch(golden.begin(), golden.end(), ids.begin(), ids.end()).first - golden.begin();
      fail(fmt::format("{}: {} of {} tokens, the first wrong one is number {}", prompts_[i].name, ids.size(), golden.size(),
                       at));
    }
  }
  void fail(std::string what) { failures_.push_back(std::move(what)); }

  const Golden& golden_;
  const GridPoint& point_;
  std::vector<GoldenPrompt> prompts_;
  std::vector<std::string> failures_;
};

}  // namespace

const char* to_string(Way way) {
  switch (way) {
    case Way::cold:
      return "cold";
    case Way::replayed:
      return "replayed";
    case Way::joined:
      return "joined";
    case Way::crowded:
      return "crowded";
    case Way::smallest:
      return "smallest";
  }
  return "?";
}

std::vector<std::string> run_way(const Golden& golden, const GridPoint& point, Way way) {
  return WayRun(golden, point).run(way);
}

}  // namespace weft::test
