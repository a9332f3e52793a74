#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace weft::test {

/// What /metrics answers, read as Prometheus reads it (text format 0.0.4), and held to what it asks for: every family once,
/// HELP before TYPE before its samples, names and labels well-formed, no sample twice, counters that end in _total and are not
/// negative, histograms that are cumulative and whose last bucket, +Inf, is their count.
class PrometheusText {
 public:
  using Labels = std::map<std::string, std::string>;
  struct Sample {
    std::string name;
    Labels labels;
    double value = 0;
  };
  struct Family {
    std::string help, type;
    std::vector<Sample> samples;
  };

  /// Throws std::runtime_error with the line or the family that is wrong.
  explicit PrometheusText(const std::string& text);

  const std::map<std::string, Family>& families() const { return families_; }
  /// What a query may name: gauges and counters, and the _bucket, _sum and _count of histograms.
  std::set<std::string> names() const;
  /// Names of labels of any sample.
  std::set<std::string> label_names() const;
  /// The sum of the samples of this name that have all these labels. Throws std::runtime_error if there are none.
  double value(const std::string& name, const Labels& labels = {}) const;
  /// The `le` of a histogram's buckets, as they are written, ascending.
  std::vector<std::string> bounds(const std::string& family) const;
  /// The counters, and the counts and buckets of histograms, that were larger in `before`, or are gone.
  std::vector<std::string> decreased_since(const PrometheusText& before) const;

 private:
  std::map<std::string, Family> families_;
};

}  // namespace weft::test
