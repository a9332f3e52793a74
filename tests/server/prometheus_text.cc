#include "server/prometheus_text.h"

#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>

namespace weft::test {
namespace {

using Sample = PrometheusText::Sample;
using Family = PrometheusText::Family;
using Labels = PrometheusText::Labels;

[[noreturn]] void fail(const std::string& what, const std::string& where) { throw std::runtime_error(what + ": " + where); }

bool is_name(const std::string& name, bool colons) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  for (const char c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    if (!letter && !(c >= '0' && c <= '9') && !(colons && c == ':')) return false;
  }
  return true;
}

double number(const std::string& text, const std::string& line) {
  if (text == "+Inf") return std::numeric_limits<double>::infinity();
  size_t read = 0;
  double value = 0;
  try {
    value = std::stod(text, &read);
  } catch (const std::exception&) {
    fail("not a number", line);
  }
  if (read != text.size() || std::isnan(value)) fail("not a number", line);
  return value;
}

/// {a="b",c="d"} from its first character on; `at` is then behind it.
Labels read_labels(const std::string& line, size_t& at) {
  Labels out;
  ++at;
  while (line.at(at) != '}') {
    const size_t equals = line.find("=\"", at);
    if (equals == std::string::npos) fail("a label without a value", line);
    const std::string name = line.substr(at, equals - at);
    if (!is_name(name, false)) fail("a label's name is not one", line);
    std::string value;
    for (at = equals + 2; line.at(at) != '"'; ++at) {
      if (line[at] == '\\') {
        const char escaped = line.at(++at);
        if (escaped != '\\' && escaped != '"' && escaped != 'n') fail("an escape that there is not", line);
        value += escaped == 'n' ? '\n' : escaped;
      } else {
        value += line[at];
      }
    }
    if (!out.emplace(name, value).second) fail("a label twice", line);
    if (line.at(++at) == ',') ++at;
  }
  ++at;
  return out;
}

Sample read_sample(const std::string& line) {
  size_t at = line.find_first_of("{ ");
  if (at == std::string::npos) fail("not a sample", line);
  Sample out{.name = line.substr(0, at), .labels = {}, .value = 0};
  if (!is_name(out.name, true)) fail("a name that is not one", line);
  if (line[at] == '{') out.labels = read_labels(line, at);
  if (line.at(at) != ' ') fail("no space before the value", line);
  out.value = number(line.substr(at + 1), line);
  return out;
}

std::string suffix_of(const std::string& name, const std::string& family) {
  return name.starts_with(family) ? name.substr(family.size()) : "?";
}

void check_histogram(const std::string& name, const Family& family) {
  struct One {
    std::vector<std::pair<double, double>> buckets;
    double sum = -1, count = -1;
  };
  std::map<Labels, One> all;
  for (const Sample& sample : family.samples) {
    Labels labels = sample.labels;
    labels.erase("le");
    One& one = all[labels];
    const std::string suffix = suffix_of(sample.name, name);
    if (suffix == "_sum") one.sum = sample.value;
    if (suffix == "_count") one.count = sample.value;
    if (suffix == "_bucket") one.buckets.emplace_back(number(sample.labels.at("le"), name), sample.value);
  }
  for (const auto& [labels, one] : all) {
    if (one.buckets.empty() || !std::isinf(one.buckets.back().first)) fail("a histogram without a last bucket", name);
    if (one.buckets.back().second != one.count) fail("a histogram whose last bucket is not its count", name);
    if (one.sum < 0) fail("a histogram without a sum, or with a negative one", name);
    for (size_t i = 1; i < one.buckets.size(); ++i) {
      if (one.buckets[i].first <= one.buckets[i - 1].first) fail("bounds that do not ascend", name);
      if (one.buckets[i].second < one.buckets[i - 1].second) fail("buckets that are not cumulative", name);
    }
  }
}

void check_family(const std::string& name, const Family& family) {
  if (family.help.empty()) fail("no help", name);
  if (family.samples.empty()) fail("no samples", name);
  std::set<std::pair<std::string, Labels>> seen;
  for (const Sample& sample : family.samples) {
    const std::string suffix = suffix_of(sample.name, name);
    const bool fits =
        family.type == "histogram" ? suffix == "_bucket" || suffix == "_sum" || suffix == "_count" : suffix.empty();
    if (!fits) fail("a sample in the wrong family " + name, sample.name);
    if ((suffix == "_bucket") != sample.labels.contains("le")) fail("le where it is not a bucket's, or missing", sample.name);
    if (!seen.emplace(sample.name, sample.labels).second) fail("a sample twice", sample.name);
    if (family.type == "counter" && sample.value < 0) fail("a negative counter", sample.name);
  }
  if (family.type == "counter" && !name.ends_with("_total")) fail("a counter that does not end in _total", name);
  if (family.type == "gauge" && name.ends_with("_total")) fail("a gauge that ends in _total", name);
  if (family.type == "histogram") check_histogram(name, family);
}

}  // namespace

PrometheusText::PrometheusText(const std::string& text) {
  if (!text.ends_with('\n')) fail("no end of the last line", text.substr(text.rfind('\n') + 1));
  std::istringstream lines(text);
  std::string name, described;  // of the family whose samples follow, and of the one whose TYPE is to come
  for (std::string line; std::getline(lines, line);) {
    const bool help = line.starts_with("# HELP "), type = line.starts_with("# TYPE ");
    if (help || type) {
      const size_t end = line.find(' ', 7);
      if (end == std::string::npos) fail("nothing said", line);
      const std::string of = line.substr(7, end - 7), said = line.substr(end + 1);
      if (!is_name(of, true)) fail("a name that is not one", line);
      if (help) {
        if (families_.contains(of)) fail("a family twice", line);
        families_[of].help = said;
        described = of;
        name.clear();
      } else {
        if (described != of) fail("a type without a help before it", line);
        if (said != "counter" && said != "gauge" && said != "histogram") fail("a type that we do not have", line);
        families_[of].type = said;
        name = of;
      }
    } else if (line.empty() || line.starts_with('#')) {
      fail("a line that says nothing", line);
    } else {
      if (name.empty()) fail("a sample without a type", line);
      try {
        families_[name].samples.push_back(read_sample(line));
      } catch (const std::out_of_range&) {
        fail("a line that ends too early", line);
      }
    }
  }
  for (const auto& [of, family] : families_) check_family(of, family);
}

std::set<std::string> PrometheusText::names() const {
  std::set<std::string> out;
  for (const auto& [name, family] : families_)
    for (const Sample& sample : family.samples) out.insert(sample.name);
  return out;
}

std::set<std::string> PrometheusText::label_names() const {
  std::set<std::string> out;
  for (const auto& [name, family] : families_)
    for (const Sample& sample : family.samples)
      for (const auto& [label, value] : sample.labels) out.insert(label);
  return out;
}

double PrometheusText::value(const std::string& name, const Labels& labels) const {
  double sum = 0;
  bool found = false;
  for (const auto& [of, family] : families_) {
    for (const Sample& sample : family.samples) {
      if (sample.name != name) continue;
      bool has_all = true;
      for (const auto& [label, value] : labels) {
        const auto it = sample.labels.find(label);
        has_all = has_all && it != sample.labels.end() && it->second == value;
      }
      if (!has_all) continue;
      sum += sample.value;
      found = true;
    }
  }
  if (!found) fail("no such metric", name);
  return sum;
}

std::vector<std::string> PrometheusText::bounds(const std::string& family) const {
  std::vector<std::string> out;
  for (const Sample& sample : families_.at(family).samples)
    if (sample.name.ends_with("_bucket")) out.push_back(sample.labels.at("le"));
  return out;
}

std::vector<std::string> PrometheusText::decreased_since(const PrometheusText& before) const {
  std::map<std::pair<std::string, Labels>, double> now;
  for (const auto& [name, family] : families_)
    for (const Sample& sample : family.samples) now[{sample.name, sample.labels}] = sample.value;
  std::vector<std::string> out;
  for (const auto& [name, family] : before.families_) {
    if (family.type == "gauge") continue;
    for (const Sample& sample : family.samples) {
      const auto it = now.find({sample.name, sample.labels});
      if (it == now.end() || it->second < sample.value) out.push_back(sample.name);
    }
  }
  return out;
}

}  // namespace weft::test
