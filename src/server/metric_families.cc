#include "server/metric_families.h"

#include <prometheus/text_serializer.h>

#include <limits>

namespace weft {

using prometheus::ClientMetric;
using prometheus::MetricType;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void MetricFamilies::counter(const std::string& name, const std::string& help, double value, const Labels& labels) {
  add(name, help, MetricType::Counter, labels).counter.value = value;
}

void MetricFamilies::gauge(const std::string& name, const std::string& help, double value, const Labels& labels) {
  add(name, help, MetricType::Gauge, labels).gauge.value = value;
}

void MetricFamilies::histogram(const std::string& name, const std::string& help, const Histogram& from) {
  histogram(name, help, from, kInfinity);
}

void MetricFamilies::histogram(const std::string& name, const std::string& help, const Histogram& from, double highest) {
  ClientMetric::Histogram& out = add(name, help, MetricType::Histogram, {}).histogram;
  uint64_t total = 0;
  for (size_t i = 0; i <= from.bounds().size(); ++i) {
    total += static_cast<uint64_t>(from.count(i));
    const double bound = i < from.bounds().size() ? from.bounds()[i] : kInfinity;
    if (bound <= highest || bound == kInfinity) out.bucket.push_back({total, bound});
  }
  out.sample_count = total;
  out.sample_sum = from.sum();
}

std::string MetricFamilies::text() const { return prometheus::TextSerializer().Serialize(all_); }

ClientMetric& MetricFamilies::add(const std::string& name, const std::string& help, MetricType type, const Labels& labels) {
  if (all_.empty() || all_.back().name != name) all_.push_back({name, help, type, {}});
  ClientMetric& metric = all_.back().metric.emplace_back();
  metric.label = base_;
  metric.label.insert(metric.label.end(), labels.begin(), labels.end());
  return metric;
}

}  // namespace weft
