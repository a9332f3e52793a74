#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/counters.h"

namespace weft {

/// Collects families of metrics. Calls for one family follow one another.
/// Thread: one.
class MetricFamilies {
 public:
  using Labels = std::vector<prometheus::ClientMetric::Label>;

  /// The labels that everything has from here on.
  void set_base(Labels labels) { base_ = std::move(labels); }

  void counter(const std::string& name, const std::string& help, double value, const Labels& labels = {});
  void counter(const std::string& name, const std::string& help, const Counter& from, const Labels& labels = {}) {
    counter(name, help, static_cast<double>(from.value()), labels);
  }
  void gauge(const std::string& name, const std::string& help, double value, const Labels& labels = {});
  /// Without the bounds above `highest`, where nothing can have been observed.
  void histogram(const std::string& name, const std::string& help, const Histogram& from);
  void histogram(const std::string& name, const std::string& help, const Histogram& from, double highest);

  /// The text that Prometheus reads.
  std::string text() const;

 private:
  prometheus::ClientMetric& add(const std::string& name, const std::string& help, prometheus::MetricType type,
                                const Labels& labels);

  Labels base_;
  std::vector<prometheus::MetricFamily> all_;
};

struct BackendInfo;
struct EngineMetrics;

/// The engine's numbers under vLLM's names, with its labels and units; blocks are virtual blocks.
void add_vllm_metrics(const EngineMetrics& m, const BackendInfo& info, MetricFamilies& out);
/// What vLLM has no name for: capacity, ranks, exchanges, what had to be done another way.
void add_weft_metrics(const EngineMetrics& m, const BackendInfo& info, MetricFamilies& out);
/// This process: memory, processor time, open files. Of the system's numbers those that it gives.
void add_process_metrics(MetricFamilies& out);

}  // namespace weft
