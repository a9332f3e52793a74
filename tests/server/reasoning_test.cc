#include "server/reasoning.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/fake_backend.h"
#include "text/detokenizer.h"

namespace weft {
namespace {

struct Parts {
  std::string reasoning, content;
  bool operator==(const Parts&) const = default;
};
void PrintTo(const Parts& parts, std::ostream* out) { *out << '[' << parts.reasoning << "] " << parts.content; }

Parts split(const std::string& text, size_t piece_bytes, bool inside) {
  ReasoningSplitter splitter(inside);
  Parts out;
  const auto take = [&](const ReasoningSplitter::Piece& piece) {
    out.reasoning += piece.reasoning;
    out.content += piece.content;
  };
  for (size_t at = 0; at < text.size(); at += piece_bytes) take(splitter.add(text.substr(at, piece_bytes)));
  take(splitter.finish());
  return out;
}

TEST(Reasoning, IsToldApartHoweverTheTextIsCut) {
  struct Case {
    std::string text;
    bool inside;
    Parts parts;
  };
  const std::vector<Case> cases = {
      {"<think>a < b</think>yes", false, {"a < b", "yes"}},
      {"\n <think>\nhm\n</think>\n\nyes\n", false, {"hm\n", "yes\n"}},
      {"hm</think>\n\nyes", true, {"hm", "yes"}},
      {"never ends </thin", true, {"never ends </thin", ""}},
      {"plain <think>x</think>", false, {"", "plain <think>x</think>"}},
      {"<thin", false, {"", "<thin"}},
      {"<think></think>", false, {"", ""}},
      {"<think>a</think>b</think>c", false, {"a", "b</think>c"}},
      {"  ", false, {"", "  "}},
      {"", true, {"", ""}},
  };
  for (const Case& one : cases) {
    for (const size_t piece : {1u, 2u, 3u, 7u, 1000u})
      EXPECT_EQ(split(one.text, piece, one.inside), one.parts) << one.text << piece;
  }
}

TEST(Reasoning, IsTheSameWhereTextIsHeldBackForAStopString) {
  const auto tokenizer = test::byte_tokenizer();
  const std::string text = "<think>a </thin b\n</think>\n\nyes</think>";
  const auto parts = [&](const StopTexts& stops) {
    Detokenizer detokenizer(*tokenizer, {.stops = stops});
    ReasoningSplitter splitter(false);
    Parts out;
    const auto take = [&](const ReasoningSplitter::Piece& piece) {
      out.reasoning += piece.reasoning;
      out.content += piece.content;
    };
    for (const char byte : text) take(splitter.add(detokenizer.append(static_cast<unsigned char>(byte))));
    take(splitter.add(detokenizer.finish()));
    take(splitter.finish());
    return out;
  };
  const Parts plain = parts({});
  EXPECT_EQ(plain, (Parts{"a </thin b\n", "yes</think>"}));
  // Beginnings of these are in the marks, so that parts of marks are held back and given later.
  EXPECT_EQ(parts({"<thinx", "k>\n\nno", "</think>x", "nk>a<", "/thi!"}), plain);
  EXPECT_EQ(parts({"</think>\n\ny"}), (Parts{"a </thin b\n", ""})) << "a stop that begins within the thoughts";
}

TEST(Reasoning, IsGivenAsSoonAsItIsCertain) {
  ReasoningSplitter splitter(true);
  EXPECT_EQ(splitter.add("abc<").reasoning, "abc");
  EXPECT_EQ(splitter.add("b").reasoning, "<b");
  EXPECT_EQ(splitter.add("</think>").reasoning, "");
  EXPECT_EQ(splitter.add("\nx").content, "x");
}

TEST(Reasoning, KnowsWhetherAPromptLeavesItOpen) {
  EXPECT_FALSE(ReasoningSplitter::leaves_open("hello"));
  EXPECT_TRUE(ReasoningSplitter::leaves_open("hello<think>\n"));
  EXPECT_FALSE(ReasoningSplitter::leaves_open("<think>a</think>"));
  EXPECT_TRUE(ReasoningSplitter::leaves_open("<think>a</think>b<think>"));
  EXPECT_FALSE(ReasoningSplitter::leaves_open("user: what is <think>? assistant:"));
  EXPECT_FALSE(ReasoningSplitter::leaves_open(" \n"));
}

}  // namespace
}  // namespace weft
