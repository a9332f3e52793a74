#include "server/fake_backend.h"

#include <cmath>

#include "server/byte_tokenizer.h"

namespace weft::test {

FakeBackend::FakeBackend(std::function<void()> progress, bool manual, std::chrono::microseconds pause)
    : progress_(std::move(progress)), pause_us_(pause.count()) {
  info_ = {.architecture = "FakeForCausalLM",
           .dtype = "float32",
           .kv_dtype = "float32",
           .vocab = kVocab,
           .max_model_len = kMaxLen,
           .capacity_tokens = 2048,
           .blocks = 64,
           .block_tokens = 32,
           .tp = 2,
           .dcp = 2};
  if (manual) return;
  thread_ = std::thread([this] {
    while (true) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stop_ || !live_.empty(); });
        if (stop_) return;
      }
      step();
      std::this_thread::sleep_for(std::chrono::microseconds(pause_us_.load()));
    }
  });
}

FakeBackend::~FakeBackend() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Engine::Submitted FakeBackend::submit(Request request) {
  if (static_cast<int64_t>(request.prompt.size()) + request.max_tokens > kMaxLen) throw UserError("the request is too long");
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return {nullptr, Engine::Refusal::failed};
  if (draining_) return {nullptr, Engine::Refusal::draining};
  if (live_.size() >= bound_) {
    metrics_.refused_queue_requests.add();
    return {nullptr, Engine::Refusal::queue_full};
  }
  const uint64_t id = ++ids_;
  const auto stream = std::make_shared<RequestStream>(id, request);
  const auto choices = static_cast<size_t>(request.choices);
  last_ = request;
  live_.emplace(id, Live{std::move(request), stream, std::vector<int64_t>(choices), std::vector<bool>(choices)});
  metrics_.running.set(static_cast<double>(live_.size()));
  changed_.notify_all();
  return {stream, Engine::Refusal::none};
}

void FakeBackend::end(Live& live, FinishReason reason, const std::string& error) {
  for (size_t c = 0; c < live.over.size(); ++c) {
    if (live.over[c]) continue;
    live.over[c] = true;
    (reason == FinishReason::abort ? metrics_.finished_abort : metrics_.finished_error).add();
    live.stream->append({static_cast<int32_t>(c), -1, 0, reason}, {}, {});
  }
  live.stream->finish(error);
}

void FakeBackend::cancel(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto it = live_.find(id);
  if (it == live_.end()) return;
  end(it->second, FinishReason::abort, "");
  live_.erase(it);
  ++cancelled_;
  metrics_.running.set(static_cast<double>(live_.size()));
  changed_.notify_all();
}

bool FakeBackend::drain(int64_t timeout_ms) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  const bool empty = changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [this] { return live_.empty(); });
  for (auto& [id, live] : live_) end(live, FinishReason::abort, "");
  live_.clear();
  lock.unlock();
  if (progress_) progress_();
  return empty;
}

std::string FakeBackend::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void FakeBackend::fail(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    failure_ = why;
    for (auto& [id, live] : live_) end(live, FinishReason::error, why);
    live_.clear();
  }
  if (progress_) progress_();
}

void FakeBackend::step() {
  {
    const std::lock_guard lock(mutex_);
    for (auto it = live_.begin(); it != live_.end();) {
      Live& live = it->second;
      const Request& request = live.request;
      bool all_over = true;
      for (size_t c = 0; c < live.made.size(); ++c) {
        if (live.over[c]) continue;
        if (live.made[c] == 0 && c == 0) {
          live.stream->set_cached_tokens(1);
          for (size_t row = 0; request.prompt_log_probs >= 0 && row + 1 < request.prompt.size(); ++row) {
            const int32_t id = request.prompt[row + 1], other = (id + 1) % kVocab;
            const std::vector<int32_t> ids{other, id};
            const std::vector<float> values{-0.25f, -1.1f};
            const auto n = static_cast<size_t>(std::min(2, request.prompt_log_probs));
            live.stream->set_prompt_log_prob(static_cast<int64_t>(row), -1.1f, std::span(ids).first(n),
                                             std::span(values).first(n));
          }
        }
        const auto token = static_cast<int32_t>((request.prompt.back() + 1 + live.made[c] + static_cast<int64_t>(c)) % kVocab);
        ++live.made[c];
        const bool stop = token == kEnd || std::count(request.stop_tokens.begin(), request.stop_tokens.end(), token) > 0;
        const bool nothing = request.max_tokens == 0;
        const FinishReason finish = stop && !nothing                     ? FinishReason::stop
                                    : live.made[c] >= request.max_tokens ? FinishReason::length
                                                                         : FinishReason::none;
        live.over[c] = finish != FinishReason::none;
        metrics_.generated_tokens.add();
        if (c == 0 && live.made[c] == 1) metrics_.prompt_tokens.add(static_cast<int64_t>(request.prompt.size()));
        if (live.over[c]) (finish == FinishReason::stop ? metrics_.finished_stop : metrics_.finished_length).add();
        all_over = all_over && live.over[c];
        const std::vector<int32_t> ids{token};
        const std::vector<float> values{-0.3f};
        const size_t n = request.log_probs > 0 ? 1 : 0;
        live.stream->append({static_cast<int32_t>(c), nothing ? -1 : token, -0.3f, finish}, std::span(ids).first(n),
                            std::span(values).first(n));
      }
      if (all_over) {
        live.stream->finish();
        it = live_.erase(it);
      } else {
        ++it;
      }
    }
    metrics_.running.set(static_cast<double>(live_.size()));
    changed_.notify_all();
  }
  if (progress_) progress_();
}

size_t FakeBackend::running() const {
  const std::lock_guard lock(mutex_);
  return live_.size();
}

Request FakeBackend::last() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

std::vector<int32_t> FakeBackend::answer(int32_t last, int64_t tokens) {
  std::vector<int32_t> out;
  for (int64_t k = 0; k < tokens; ++k) {
    out.push_back(static_cast<int32_t>((last + 1 + k) % kVocab));
    if (out.back() == kEnd) break;
  }
  return out;
}

std::unique_ptr<Tokenizer> byte_tokenizer() { return Tokenizer::parse(byte_tokenizer_json({"h e", "t he"}).dump()); }

}  // namespace weft::test
