#include "bench_client/plot.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <regex>

namespace weft::bench {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// What is wrong with `text` as XML, or nothing. Knows elements, attributes in double quotes and the five entities.
std::string objection(const std::string& text) {
  static const std::regex open_tag(R"re(^<([a-zA-Z]+)((?: [a-zA-Z0-9:-]+="[^"<]*")*)(/?)>)re"), close_tag("^</([a-zA-Z]+)>"),
      entity("^&(lt|gt|amp|quot|apos);");
  std::vector<std::string> open;
  bool had_root = false;
  for (size_t at = 0; at < text.size();) {
    std::smatch match;
    const std::string rest = text.substr(at, std::min<size_t>(20000, text.size() - at));
    if (std::regex_search(rest, match, open_tag)) {
      if (open.empty() && had_root) return "a second root";
      had_root = true;
      if (match[3].length() == 0) open.push_back(match[1]);
    } else if (std::regex_search(rest, match, close_tag)) {
      if (open.empty() || open.back() != match[1]) return "closes " + match[1].str();
      open.pop_back();
    } else if (text[at] == '<') {
      return "no tag: " + rest.substr(0, 60);
    } else if (text[at] == '&' && !std::regex_search(rest, match, entity)) {
      return "no entity: " + rest.substr(0, 20);
    } else {
      const size_t end = std::min(text.find_first_of("<&", at + 1), text.size());
      for (; at < end; ++at) {
        if (open.empty() && text[at] != '\n') return "text outside";
        if (static_cast<unsigned char>(text[at]) < ' ' && text[at] != '\n') return "a control character";
      }
      continue;
    }
    at += static_cast<size_t>(match.length());
  }
  return open.empty() ? "" : "not closed: " + open.back();
}

LatencyPlot plot(std::vector<PlotPoint> points) {
  return {.title = "t", .subtitle = "s", .load_name = "requests per second", .points = std::move(points)};
}
PlotPoint point(double load, double ms) {
  return {.load = load,
          .ttft_median_ms = ms,
          .ttft_p99_ms = 2 * ms,
          .tpot_median_ms = ms / 10,
          .tpot_p99_ms = ms / 5,
          .output_throughput = std::isfinite(load) ? 100 * load : 1e9};
}
std::vector<std::string> found(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::vector<std::string> out;
  for (auto it = std::sregex_iterator(text.begin(), text.end(), regex); it != std::sregex_iterator(); ++it)
    out.push_back((*it)[1]);
  return out;
}

TEST(Plot, TheCheckerOfThisTestFindsWhatIsWrong) {
  EXPECT_THAT(objection("<a b=\"c\"><d/>&lt;x</a>\n"), IsEmpty());
  for (const char* bad : {"<a>", "<a></b>", "<a b=c></a>", "<a>&x</a>", "<a/><b/>", "<a>\x01</a>", "x<a/>", "<a"})
    EXPECT_THAT(objection(bad), Not(IsEmpty())) << bad;
}

TEST(Plot, IsWellFormedWhateverTheFigures) {
  for (const auto& points : {std::vector{point(1, 10)},
                             {point(kInfinite, 10)},
                             {point(1, 0), point(2, 0)},
                             {point(1, 1), point(2, 1e9)},
                             {point(0.001, 1e-9), point(1e6, 1), point(kInfinite, 1000)},
                             {point(3, 5), point(3, 6)}}) {
    const std::string svg = plot_svg(plot(points));
    EXPECT_THAT(objection(svg), IsEmpty());
    EXPECT_THAT(svg, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("=\"inf"))));
  }
}

TEST(Plot, ShowsWhatServersAndUsersSayAsText) {
  LatencyPlot out = plot({point(1, 10)});
  out.title = "a <b> & \"c\"\x01";
  const std::string svg = plot_svg(out);
  EXPECT_THAT(objection(svg), IsEmpty());
  EXPECT_THAT(svg, HasSubstr("a &lt;b&gt; &amp; &quot;c&quot; "));
}

TEST(Plot, HasEveryPointOfEveryCurveInOrderOfTheLoad) {
  const std::string svg = plot_svg(plot({point(8, 30), point(1, 10), point(kInfinite, 400), point(2, 12)}));
  EXPECT_THAT(found(svg, "<title>([^<:]*): median"), ::testing::ElementsAre("1", "2", "8", "inf", "1", "2", "8", "inf"));
  EXPECT_EQ(found(svg, "(<polyline)").size(), 5u);
  for (const std::string& points : found(svg, "<polyline[^>]* points=\"([^\"]*)\"")) {
    std::vector<double> xs;
    for (const std::string& x : found(points, "([0-9.]+),")) xs.push_back(std::stod(x));
    EXPECT_EQ(xs.size(), 4u);
    EXPECT_TRUE(std::is_sorted(xs.begin(), xs.end()));
  }
}

TEST(Plot, HigherIsFurtherUp) {
  const std::string svg = plot_svg(plot({point(1, 10), point(2, 20)}));
  for (const std::string& points : found(svg, "<polyline[^>]* points=\"([^\"]*)\"")) {
    const auto ys = found(points, ",([0-9.]+)");
    ASSERT_EQ(ys.size(), 2u);
    EXPECT_GT(std::stod(ys[0]), std::stod(ys[1]));
  }
}

TEST(Plot, IsReadableOnLightAndOnDarkPages) {
  EXPECT_THAT(plot_svg(plot({point(1, 1)})), HasSubstr("prefers-color-scheme: dark"));
}

}  // namespace
}  // namespace weft::bench
