#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "server/backend.h"
#include "text/tokenizer.h"

namespace weft::test {

/// Answers without a model: token k of choice c is (last prompt token + 1 + k + c) modulo the vocabulary, the last token of
/// which ends an answer. A thread makes a token of every request per step; with `manual`, step() does. Its metrics count
/// requests and tokens.
class FakeBackend : public Backend {
 public:
  static constexpr int kVocab = 300, kEnd = kVocab - 1;
  static constexpr int64_t kMaxLen = 1000;

  explicit FakeBackend(std::function<void()> progress = {}, bool manual = false, std::chrono::microseconds pause = {});
  ~FakeBackend() override;

  const BackendInfo& info() const override { return info_; }
  const EngineMetrics& metrics() const override { return metrics_; }
  std::vector<int64_t> tokens_per_rank(int64_t tokens) const override { return {(tokens + 1) / 2, tokens / 2}; }
  Engine::Submitted submit(Request request) override;
  void cancel(uint64_t id) override;
  bool drain(int64_t timeout_ms) override;
  std::string failure() const override;
  void write_flight() override { ++flights_; }
  void reset_prefix_cache() override { ++resets_; }

  /// One token for every choice that runs.
  void step();
  /// As if the engine had failed.
  void fail(const std::string& why);
  void set_queue_bound(size_t bound) { bound_ = bound; }
  void set_pause(std::chrono::microseconds pause) { pause_us_ = pause.count(); }
  size_t running() const;
  int64_t cancelled() const { return cancelled_; }
  int64_t flights() const { return flights_; }
  int64_t resets() const { return resets_; }
  /// The last request submitted.
  Request last() const;
  /// What choice 0 of a prompt with this last token answers.
  static std::vector<int32_t> answer(int32_t last, int64_t tokens);

 private:
  struct Live {
    Request request;
    std::shared_ptr<RequestStream> stream;
    std::vector<int64_t> made;  ///< per choice
    std::vector<bool> over;
  };
  void end(Live& live, FinishReason reason, const std::string& error);

  BackendInfo info_;
  EngineMetrics metrics_;
  std::function<void()> progress_;
  mutable std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  std::map<uint64_t, Live> live_;
  Request last_;
  std::string failure_;
  uint64_t ids_ = 0;
  size_t bound_ = 1000000;
  bool draining_ = false, stop_ = false;
  std::atomic<int64_t> cancelled_{0}, pause_us_{0}, flights_{0}, resets_{0};
  std::thread thread_;
};

/// A byte-level tokenizer: id b is byte b, 256 is "he", 257 "the", 258 the special "<|end|>".
std::unique_ptr<Tokenizer> byte_tokenizer();

}  // namespace weft::test
