#include "bench_client/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace weft::bench {
namespace {

constexpr double kWidth = 960, kHeight = 340;
constexpr double kPanelWidth = 250, kPanelHeight = 190, kPanelTop = 96, kFirstPanel = 58, kPanelStep = 310;
constexpr double kLabelWidth = 26;  // between the labels of the load, so that they do not touch
constexpr double kLogSpan = 20;     // times: from here on an axis is logarithmic
constexpr double kLegendStep = 120;
constexpr double kMostDecades = 6;  // that are labelled
constexpr const char* kStyle = R"(
  text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #57606a; }
  .title { font-size: 17px; font-weight: 600; fill: #1f2328; }
  .panel { font-size: 13px; font-weight: 600; fill: #1f2328; }
  .page { fill: #ffffff; }
  .grid { stroke: #d8dee4; stroke-width: 1; }
  .line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
  .blue { stroke: #0969da; } .blue-dot { fill: #0969da; }
  .orange { stroke: #bc4c00; } .orange-dot { fill: #bc4c00; }
  .green { stroke: #1a7f37; } .green-dot { fill: #1a7f37; }
  .band { fill: #0969da; opacity: 0.1; }
  @media (prefers-color-scheme: dark) {
    text { fill: #9198a1; }
    .title, .panel { fill: #f0f6fc; }
    .page { fill: #0d1117; }
    .grid { stroke: #30363d; }
    .blue { stroke: #58a6ff; } .blue-dot { fill: #58a6ff; }
    .orange { stroke: #f0883e; } .orange-dot { fill: #f0883e; }
    .green { stroke: #3fb950; } .green-dot { fill: #3fb950; }
    .band { fill: #58a6ff; opacity: 0.15; }
  }
)";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c >= 0 && c < ' ' ? ' ' : c;  // Others have no place in XML.
    }
  }
  return out;
}

std::string number(double value) {
  if (std::isinf(value)) return "inf";
  if (value >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:g}k", value / 1e3);
  return fmt::format("{:.4g}", value);
}

/// Where the loads are: logarithmic, and an infinite one a step behind the last.
class LoadAxis {
 public:
  explicit LoadAxis(const std::vector<PlotPoint>& points) {
    std::vector<double> logs;
    for (const PlotPoint& point : points) {
      WEFT_CHECK_GT(point.load, 0.0);
      if (std::isfinite(point.load)) logs.push_back(std::log(point.load));
    }
    if (!logs.empty()) {
      low_ = *std::min_element(logs.begin(), logs.end());
      last_ = *std::max_element(logs.begin(), logs.end());
    }
    const double step = logs.size() > 1 && last_ > low_ ? (last_ - low_) / static_cast<double>(logs.size() - 1) : 1;
    high_ = logs.size() < points.size() ? last_ + step : last_;
  }
  /// 0 to 1; in the middle if there is one load only.
  double at(double load) const {
    if (high_ == low_) return 0.5;
    return ((std::isfinite(load) ? std::log(load) : high_) - low_) / (high_ - low_);
  }

 private:
  double low_ = 0, last_ = 0, high_ = 0;
};

/// The values of a panel: from 0 in even steps, or logarithmic.
class ValueAxis {
 public:
  ValueAxis(const std::vector<double>& values, bool may_be_logarithmic) {
    double low = 0, high = 0;
    for (const double value : values) {
      high = std::max(high, value);
      if (value > 0) low = low == 0 ? value : std::min(low, value);
    }
    if (high <= 0) high = 1;
    if (may_be_logarithmic && low > 0 && high / low > kLogSpan) {
      logarithmic_ = true;
      low_ = std::floor(std::log10(low));
      high_ = std::max(std::ceil(std::log10(high)), low_ + 1);
      const double step = std::ceil((high_ - low_) / kMostDecades);
      for (double power = low_; power <= high_; power += step) ticks_.push_back(std::pow(10, power));
      return;
    }
    const double step = nice_step(high / 4);
    high_ = std::ceil(high / step - 1e-9) * step;
    for (int i = 0; i * step <= high_ + step / 2; ++i) ticks_.push_back(i * step);
  }
  double at(double value) const {
    const double place = logarithmic_ ? std::log10(std::max(value, std::pow(10, low_))) : value;
    return (place - low_) / (high_ - low_);
  }
  const std::vector<double>& ticks() const { return ticks_; }

 private:
  /// 1, 2 or 5 times a power of ten, at least `least`.
  static double nice_step(double least) {
    const double power = std::pow(10, std::floor(std::log10(least)));
    for (const double factor : {1.0, 2.0, 5.0})
      if (factor * power >= least * (1 - 1e-9)) return factor * power;
    return 10 * power;
  }

  bool logarithmic_ = false;
  double low_ = 0, high_ = 1;
  std::vector<double> ticks_;
};

/// One line of a panel.
struct Curve {
  const char* color;
  std::string name;
  double PlotPoint::*value;
};

/// The points in order of their load.
std::vector<PlotPoint> in_order(std::vector<PlotPoint> points) {
  std::stable_sort(points.begin(), points.end(), [](const PlotPoint& a, const PlotPoint& b) { return a.load < b.load; });
  return points;
}

class Panel {
 public:
  Panel(const LatencyPlot& plot, double left, bool may_be_logarithmic, std::vector<Curve> curves)
      : plot_(plot), left_(left), curves_(std::move(curves)), loads_(plot.points), values_(all_values(), may_be_logarithmic) {}

  std::string svg(const std::string& title) const {
    std::string out =
        fmt::format("<text class=\"panel\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", left_, kPanelTop - 14, escaped(title));
    return out + grid() + load_labels() + (curves_.size() > 1 ? band() : "") + lines();
  }

 private:
  std::vector<double> all_values() const {
    std::vector<double> out;
    for (const Curve& curve : curves_)
      for (const PlotPoint& point : plot_.points) out.push_back(point.*curve.value);
    return out;
  }
  double x(const PlotPoint& point) const { return left_ + loads_.at(point.load) * kPanelWidth; }
  double y(double value) const { return kPanelTop + (1 - values_.at(value)) * kPanelHeight; }

  std::string grid() const {
    std::string out;
    for (const double tick : values_.ticks()) {
      out += fmt::format("<line class=\"grid\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", left_, y(tick),
                         left_ + kPanelWidth, y(tick));
      out +=
          fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", left_ - 8, y(tick) + 4, number(tick));
    }
    return out;
  }
  std::string load_labels() const {
    std::string out;
    double free_from = -1e9;
    for (const PlotPoint& point : plot_.points) {
      if (x(point) < free_from) continue;
      free_from = x(point) + kLabelWidth;
      out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", x(point),
                         kPanelTop + kPanelHeight + 18, number(point.load));
    }
    return out + fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", left_ + kPanelWidth / 2,
                             kPanelTop + kPanelHeight + 38, escaped(plot_.load_name));
  }
  /// Between the first two curves.
  std::string band() const {
    std::string corners;
    for (const PlotPoint& point : plot_.points) corners += fmt::format("{:.1f},{:.1f} ", x(point), y(point.*curves_[0].value));
    for (auto point = plot_.points.rbegin(); point != plot_.points.rend(); ++point)
      corners += fmt::format("{:.1f},{:.1f} ", x(*point), y((*point).*curves_[1].value));
    return fmt::format("<polygon class=\"band\" points=\"{}\"/>\n", corners);
  }
  std::string lines() const {
    std::string out;
    for (const Curve& curve : curves_) {
      std::string places;
      for (const PlotPoint& point : plot_.points) places += fmt::format("{:.1f},{:.1f} ", x(point), y(point.*curve.value));
      out += fmt::format("<polyline class=\"line {}\" points=\"{}\"/>\n", curve.color, places);
      for (const PlotPoint& point : plot_.points)
        out += fmt::format("<circle class=\"{}-dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"><title>{}: {} {}</title></circle>\n",
                           curve.color, x(point), y(point.*curve.value), number(point.load), escaped(curve.name),
                           fmt::format("{:.2f}", point.*curve.value));
    }
    return out;
  }

  const LatencyPlot& plot_;
  const double left_;
  const std::vector<Curve> curves_;
  const LoadAxis loads_;
  const ValueAxis values_;
};

/// What the colours of latencies mean, below the title.
std::string legend(const std::vector<std::pair<std::string, std::string>>& colors) {
  std::string out;
  double x = kWidth - 24 - kLegendStep * static_cast<double>(colors.size());
  for (const auto& [color, name] : colors) {
    out += fmt::format("<circle class=\"{}-dot\" cx=\"{:.1f}\" cy=\"50\" r=\"4\"/>\n", color, x);
    out += fmt::format("<text x=\"{:.1f}\" y=\"54\">{}</text>\n", x + 10, escaped(name));
    x += kLegendStep;
  }
  return out;
}

}  // namespace

std::string plot_svg(const LatencyPlot& given) {
  WEFT_CHECK(!given.points.empty()) << "a plot without points";
  LatencyPlot plot = given;
  plot.points = in_order(plot.points);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" role=\"img\">\n"
      "<title>{2}</title>\n<style>{3}</style>\n<rect class=\"page\" width=\"{0}\" height=\"{1}\" rx=\"8\"/>\n"
      "<text class=\"title\" x=\"24\" y=\"34\">{2}</text>\n<text x=\"24\" y=\"54\">{4}</text>\n",
      kWidth, kHeight, escaped(plot.title), kStyle, escaped(plot.subtitle));
  out += legend({{"blue", "median"}, {"orange", "99th percentile"}});
  out += Panel(plot, kFirstPanel, true,
               {{"orange", "p99", &PlotPoint::ttft_p99_ms}, {"blue", "median", &PlotPoint::ttft_median_ms}})
             .svg("Time to first token, ms");
  out += Panel(plot, kFirstPanel + kPanelStep, true,
               {{"orange", "p99", &PlotPoint::tpot_p99_ms}, {"blue", "median", &PlotPoint::tpot_median_ms}})
             .svg("Time per token, ms");
  out += Panel(plot, kFirstPanel + 2 * kPanelStep, false, {{"green", "tokens/s", &PlotPoint::output_throughput}})
             .svg("Output tokens per second");
  return out + "</svg>\n";
}

}  // namespace weft::bench
