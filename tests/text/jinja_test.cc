#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "support/small_stack.h"
#include "text/jinja_json.h"
#include "text/jinja_template.h"

namespace weft::jinja {
namespace {

using ::testing::HasSubstr;

std::string render(std::string_view source, std::string_view variables = "{}", const Limits& limits = {}) {
  const Template parsed = Template::parse(source, limits);
  Sandbox box(limits);
  Template::Variables given;
  const Value all = from_json(box, variables);
  for (const auto& [name, value] : all.as_dict().entries()) given.emplace_back(name.as_string(), value);
  return parsed.render(box, given, 0);
}

std::string error_of(std::string_view source, std::string_view variables = "{}", const Limits& limits = {}) {
  try {
    return "no error, but " + render(source, variables, limits);
  } catch (const TemplateError& error) {
    return error.what();
  }
}

TEST(Jinja, TextStaysAndExpressionsAreShownAsPythonShowsThem) {
  EXPECT_EQ(render("a{{ 1 + 2 * 3 }}b"), "a7b");
  EXPECT_EQ(render("{{ [1, 2.0, 'x', none, true] }}"), "[1, 2.0, 'x', None, True]");
  EXPECT_EQ(render("{{ {'a': (1,)} }} {{ () }}"), "{'a': (1,)} ()");
  EXPECT_EQ(render("{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** 3 ** 2 }}"),
            "3 -4 2 3.5 1024 64");
  EXPECT_EQ(render("{{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ 0.1 + 0.2 }}"),
            "1e+16 1000000000000000.0 0.0001 1e-05 0.30000000000000004");
  EXPECT_EQ(render("{{ \"it's\" }} {{ [\"it's\", 'a\\nb'] }}"), "it's [\"it's\", 'a\\nb']");
  EXPECT_EQ(render("{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' in 'cat' }} {{ 3 not in [1, 2] }}"), "True False True True");
  EXPECT_EQ(render("{{ 'x' ~ 1 ~ none }} {{ 'y' if false }}|{{ 'y' if false else 'z' }}"), "x1None |z");
}

TEST(Jinja, DataKeepItsOrderAndItsNumbers) {
  EXPECT_EQ(render("{{ d|tojson }}", R"({"d": {"b": 1, "a": [1.0, 18446744073709551616, null], "b": 2}})"),
            R"({"b": 2, "a": [1.0, 18446744073709551616, null]})");
  EXPECT_EQ(render("{{ d|tojson }}", R"({"d": "<é & \"\u2028\">\n"})"), "\"<é & \\\"\u2028\\\">\\n\"") << "no escapes for HTML";
  EXPECT_EQ(render("{{ d|tojson(indent=2) }}", R"({"d": {"a": [1, {}], "b": []}})"),
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}");
}

TEST(Jinja, BlocksTakeTheirLinesWithThem) {
  EXPECT_EQ(render("a\n  {% if true %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc")
      << "trim_blocks, lstrip_blocks, the last line end";
  EXPECT_EQ(render("a \n {%- if true -%} \n b {%- endif %} \n"), "ab ");
  EXPECT_EQ(render("  {%+ if true +%}\nb{% endif %}"), "  \nb");
  EXPECT_EQ(render("a {{- 'b' -}} c"), "abc");
  EXPECT_EQ(render("a\r\nb\rc"), "a\nb\nc");
  EXPECT_EQ(render("x{# {{ no }} #}y{% raw %}{{ z }}{% endraw %}"), "xy{{ z }}");
}

TEST(Jinja, LoopsKnowWhereTheyAre) {
  EXPECT_EQ(render("{% for x in 'abc' %}{{ loop.index }}{{ x }}{{ loop.nextitem }}{{ ',' if not loop.last }}{% endfor %}"),
            "1ab,2bc,3c");
  EXPECT_EQ(render("{% for x in [3, 1, 2] if x > 1 %}{{ loop.length }}{{ loop.previtem }}{{ x }};{% else %}none{% endfor %}"),
            "23;232;");
  EXPECT_EQ(render("{% for x in [] %}{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(render("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i "
                   "}}{% endfor %}"),
            "023");
  EXPECT_EQ(render("{% for x in [1, [2, [3]]] recursive %}{{ loop.depth }}{{ '(' ~ loop(x) ~ ')' if x is iterable else x }}{% "
                   "endfor %}"),
            "111(222(33))");
}

TEST(Jinja, WhatALoopSetsEndsWithItAndNamespacesDoNot) {
  EXPECT_EQ(render("{% set x = 1 %}{% for i in [5, 6] %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}"), "6 7 1");
  EXPECT_EQ(render("{% set n = namespace(x=1) %}{% for i in [5, 6] %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}"), "12");
  EXPECT_EQ(render("{% if true %}{% set x = 1 %}{% endif %}{{ x }}"), "1");
  EXPECT_EQ(render("{% set x %}<{{ 1 }}>{% endset %}{{ x|length }}"), "3");
}

TEST(Jinja, MacrosTakeArgumentsByPlaceByNameAndByDefault) {
  EXPECT_EQ(render("{% macro f(a, b='B') %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }} {{ f(1, 2) }} {{ f(b=3, a=4) }} {{ f() }}"),
            "1B 12 43 B");
  EXPECT_EQ(render("{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}"), "3210");
  EXPECT_EQ(render("{% macro f() %}<{{ caller(2) }}>{% endmacro %}{% call(x) f() %}{{ x }}{% endcall %}"), "<2>");
  EXPECT_THAT(error_of("{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}"), HasSubstr("takes not more than 1 argument"));
}

TEST(Jinja, WhatIsNotThereIsEmptyUntilItIsUsed) {
  EXPECT_EQ(render("[{{ x }}{{ d.x }}{{ d['x'] }}] {{ x is defined }} {{ x|default('D') }} {{ x|length }}", R"({"d": {}})"),
            "[] False D 0");
  EXPECT_EQ(error_of("\n\n{{ x.y }}"), "chat template, line 3: 'x' is undefined");
  EXPECT_EQ(error_of("{{ d.x.y }}", R"({"d": {}})"), "chat template, line 1: 'dict object' has no attribute 'x'");
  EXPECT_EQ(error_of("{{ 'a' + none }}"), "chat template, line 1: can only concatenate str (not \"NoneType\") to str");
}

TEST(Jinja, ATemplateSpeaksForItself) {
  try {
    render("\n{% if roles|length > 1 %}{{ raise_exception('Roles must alternate: ' ~ roles) }}{% endif %}",
           R"({"roles": ["user", "user"]})");
    FAIL();
  } catch (const TemplateRaised& raised) {
    EXPECT_STREQ(raised.what(), "Roles must alternate: ['user', 'user']");
    EXPECT_EQ(raised.line, 2);
  }
}

TEST(Jinja, NothingLeadsOutOfTheData) {
  EXPECT_EQ(render("{{ ''.__class__ }}{{ d.__class__ }}{{ f.__globals__ }}", R"({"d": {"__class__": 1}, "f": "x"})"), "");
  EXPECT_THAT(error_of("{{ ''.__class__.__mro__ }}"), HasSubstr("has no attribute '__class__'"));
  EXPECT_THAT(error_of("{{ x.append(1) }}", R"({"x": []})"), HasSubstr("unsafe"));
  EXPECT_THAT(error_of("{% include 'secrets' %}"), HasSubstr("'include' is not supported"));
}

TEST(Jinja, MistakesAreNamedWithTheirLine) {
  EXPECT_THAT(error_of("a\n{% if x %}"), HasSubstr("line 2: Unexpected end of template"));
  EXPECT_THAT(error_of("{% nonsense %}"), HasSubstr("Encountered unknown tag 'nonsense'."));
  EXPECT_THAT(error_of("{{ 1 + }}"), HasSubstr("line 1: unexpected 'end of print statement'"));
  EXPECT_THAT(error_of("{{ (1 }}"), HasSubstr("unexpected '}', expected ')'"));
  EXPECT_THAT(error_of("{{ x|nofilter }}"), HasSubstr("No filter named 'nofilter'."));
  EXPECT_THAT(error_of("{# open"), HasSubstr("Missing end of comment tag"));
  EXPECT_THAT(error_of("ok\nbad \xFF"), HasSubstr("line 2: the template is not UTF-8 at byte 7"));
  EXPECT_THAT(error_of("{{ 9223372036854775807 + 1 }}"), HasSubstr("more than 64 bits"));
}

TEST(Jinja, ThreadsShareATemplate) {
  const Template parsed = Template::parse("{% for x in ['a', 'b'] %}{% set y %}{{ x }}{% endset %}{{ y ~ 'c' }}{% endfor %}");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 100; ++n) {
        Sandbox box{Limits{}};
        EXPECT_EQ(parsed.render(box, {}), "acbc");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- Bounds

// The stack that threads of the server may have. What AddressSanitizer adds to each frame is no part of the promise.
#ifdef __SANITIZE_ADDRESS__
constexpr size_t kStackBytes = 4 << 20;
#else
constexpr size_t kStackBytes = 512 << 10;
#endif

TEST(Jinja, ATemplateThatNeverEndsIsEnded) {
  const Limits few{.max_steps = 100'000};
  EXPECT_THAT(error_of("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "{}", few),
              HasSubstr("takes too long"));
  EXPECT_THAT(error_of("{% for a in range(9999) %}{{ s.upper() is string }}{% endfor %}",
                       "{\"s\": \"" + std::string(100'000, 'x') + "\"}", few),
              HasSubstr("takes too long"));
  const Limits short_time{.max_time = std::chrono::milliseconds(0)};
  EXPECT_THAT(error_of("{% for a in range(99999) %}{% endfor %}", "{}", short_time), HasSubstr("more than 0 ms"));
}

TEST(Jinja, ATemplateThatGrowsIsStopped) {
  const Limits small{.max_output_bytes = 1000, .max_memory_bytes = 1 << 20};
  EXPECT_EQ(render("{{ 'x' * 1000 }}", "{}", small).size(), 1000u);
  EXPECT_THAT(error_of("{{ 'x' * 1001 }}", "{}", small), HasSubstr("writes too much: more than 1000 bytes"));
  EXPECT_THAT(error_of("{{ 'x' * 99999999999 }}", "{}", small), HasSubstr("too much memory"));
  EXPECT_THAT(error_of("{{ [0] * 99999999999 }}", "{}", small), HasSubstr("too much memory"));
  const std::string doubling = "{% set n = namespace(x='xx') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}";
  EXPECT_THAT(error_of(doubling, "{}", small), HasSubstr("too much memory: more than 1048576 bytes"));
  const Limits tiny{.max_memory_bytes = 1 << 16};
  const std::string hoarding = "{% set n = namespace(x=[]) %}{% for i in range(99999) %}{% set n.x = n.x + [i] %}{% endfor %}";
  EXPECT_THAT(error_of(hoarding, "{}", tiny), HasSubstr("too much memory"));
  EXPECT_THAT(error_of("{{ '%9999d' % 1 }}", "{}", small), HasSubstr("asks for too much"));
}

void expect_bounded_depth() {
  EXPECT_THAT(error_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), HasSubstr("nests too deeply: more than 200 levels"));
  EXPECT_THAT(error_of("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}"), HasSubstr("nests too deeply"));
  EXPECT_THAT(error_of("{{ " + std::string(5000, '-') + "1 }}"), HasSubstr("nests too deeply"));
  std::string sum = "{{ 1", blocks;
  for (int i = 0; i < 5000; ++i) sum += " + 1", blocks += "{% if true %}";
  EXPECT_THAT(error_of(sum + " }}"), HasSubstr("nests too deeply"));
  EXPECT_THAT(error_of(blocks), HasSubstr("nests too deeply"));
  EXPECT_THAT(error_of("{% set n = namespace(x=[]) %}{% for i in range(999) %}{% set n.x = [n.x] %}{% endfor %}"),
              HasSubstr("values nest too deeply"));
  EXPECT_THAT(
      error_of(
          "{% set n = namespace() %}{% for i in range(999) %}{% for l in [n.l] %}{% set n.l = loop %}{% endfor %}{% endfor %}"),
      HasSubstr("values nest too deeply"));
  const std::string nested = std::string(60, '[') + std::string(60, ']');
  EXPECT_EQ(render("{{ x|tojson }}{{ x == x }}{{ x }}", "{\"x\": " + nested + "}"), nested + "True" + nested);
}

TEST(Jinja, DepthIsBoundedOnASmallStack) { test::with_stack_of(kStackBytes, expect_bounded_depth); }

TEST(Jinja, ARenderingReturnsAllItsMemory) {
  const Template parsed = Template::parse(
      "{% set n = namespace() %}{% set n.me = n %}{% macro f(x) %}{{ x }}{{ n }}{% endmacro %}{% set n.f = f %}"
      "{% for i in [1, 2] %}{% set n.loop = loop %}{% macro g() %}{{ loop.index }}{{ g }}{% endmacro %}{% set n.g = g %}{{ "
      "f(i) }}{% endfor %}{{ n.g() }}");
  Sandbox box{Limits{}};
  EXPECT_THAT(parsed.render(box, {}), HasSubstr("<Namespace {'me': <Namespace {...}>"));
  EXPECT_EQ(box.taken(), 0u);
}

TEST(Jinja, TheTimeIsThatOfTheRendering) {
  const Template parsed = Template::parse("{{ strftime_now('%Y-%j') }}");
  Sandbox box{Limits{}};
  EXPECT_EQ(parsed.render(box, {}, 86400 * 40), "1970-041");
}

}  // namespace
}  // namespace weft::jinja
