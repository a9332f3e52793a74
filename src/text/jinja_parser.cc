#include "text/jinja_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "text/jinja_expressions.h"
#include "text/jinja_names.h"
#include "text/utf8.h"

namespace weft::jinja {
namespace {

using namespace ast;

class Parser : private ExpressionParser {
 public:
  Parser(std::string_view source, Sandbox& box) : ExpressionParser(source, box) {}

  Body run() { return parse_body({}); }

 private:
  /// Up to a block that begins with one of the `ends`, whose name is the current token then; up to the end of the template if
  /// there are none.
  Body parse_body(std::initializer_list<std::string_view> ends) {
    const Nested nested(*this);
    Body body;
    while (true) {
      const int line = now().line;
      switch (now().kind) {
        case Kind::kEnd:
          if (ends.size() != 0)
            fail(fmt::format("Unexpected end of template. Jinja was looking for the following tags: {}.", joined(ends)));
          return body;
        case Kind::kData:
          body.push_back({line, Data{take().text}});
          break;
        case Kind::kOutputBegin:
          take();
          body.push_back({line, Output{parse_tuple()}});
          expect(Kind::kOutputEnd, "end of print statement");
          break;
        case Kind::kBlockBegin:
          take();
          if (now().kind == Kind::kName && std::find(ends.begin(), ends.end(), now().text) != ends.end()) return body;
          parse_statement(body);
          expect(Kind::kBlockEnd, "end of statement block");
          break;
        default:
          fail(fmt::format("unexpected '{}'", described(now())));
      }
    }
  }

  static std::string joined(std::initializer_list<std::string_view> names) {
    std::string out;
    for (const auto name : names) out += fmt::format("{}'{}'", out.empty() ? "" : " or ", name);
    return out;
  }

  /// The body of the statement whose beginning was just read.
  Body parse_block(std::initializer_list<std::string_view> ends) {
    skip_operator(":");
    expect(Kind::kBlockEnd, "end of statement block");
    return parse_body(ends);
  }
  Body parse_last_block(std::string_view end) {
    Body body = parse_block({end});
    take();
    return body;
  }

  Frame parse_last_frame(std::string_view end) { return {parse_last_block(end), {}}; }

  void parse_statement(Body& body) {
    if (now().kind != Kind::kName) fail("tag name expected");
    const int line = now().line;
    const std::string tag = take().text;
    if (tag == "if") {
      body.push_back({line, parse_if()});
    } else if (tag == "for") {
      body.push_back({line, parse_for()});
    } else if (tag == "set") {
      parse_set(line, body);
    } else if (tag == "macro") {
      body.push_back({line, parse_macro()});
    } else if (tag == "call") {
      body.push_back({line, parse_call_block()});
    } else if (tag == "filter") {
      ExpressionPtr filter = parse_filters(parse_filter(nullptr));
      body.push_back({line, FilterBlock{std::move(filter), parse_last_frame("endfilter")}});
    } else if (tag == "with") {
      body.push_back({line, parse_with()});
    } else if (tag == "print") {
      parse_print(body);
    } else if (tag == "generation") {
      body.push_back({line, Scope{parse_last_frame("endgeneration")}});
    } else if (tag == "block") {
      body.push_back({line, parse_named_block()});
    } else if (tag == "break" || tag == "continue") {
      if (loops_ == 0) throw TemplateError(line, fmt::format("'{}' outside of a loop", tag));
      if (tag == "break") {
        body.push_back({line, Break{}});
      } else {
        body.push_back({line, Continue{}});
      }
    } else if (tag == "include" || tag == "import" || tag == "from" || tag == "extends" || tag == "autoescape") {
      throw TemplateError(line, fmt::format("'{}' is not supported: a chat template is one file of plain text", tag));
    } else {
      throw TemplateError(line, fmt::format("Encountered unknown tag '{}'.", tag.substr(0, 80)));
    }
  }

  If parse_if() {
    If node;
    while (true) {
      ExpressionPtr condition = parse_tuple(/*with_conditional=*/false);
      node.branches.emplace_back(std::move(condition), parse_block({"elif", "else", "endif"}));
      const std::string end = take().text;
      if (end == "elif") continue;
      if (end == "else") node.otherwise = parse_last_block("endif");
      return node;
    }
  }

  For parse_for() {
    For node;
    node.target = parse_target();
    if (!skip_name("in")) fail(fmt::format("expected token 'in', got '{}'", described(now())));
    node.iterable = parse_tuple(/*with_conditional=*/false, "recursive");
    if (skip_name("if")) node.filter = parse_expression();
    node.is_recursive = skip_name("recursive");
    ++loops_;
    node.body.body = parse_block({"endfor", "else"});
    --loops_;
    if (take().text == "else") node.otherwise = parse_last_frame("endfor");
    return node;
  }

  void parse_set(int line, Body& body) {
    Target target = parse_target(/*with_attributes=*/true);
    if (skip_operator("=")) {
      body.push_back({line, Set{std::move(target), parse_tuple()}});
      return;
    }
    ExpressionPtr filter;
    if (is_operator("|")) filter = parse_filters(nullptr);
    const OutsideOfLoops outside(*this);
    body.push_back({line, SetBlock{std::move(target), std::move(filter), parse_last_frame("endset")}});
  }

  /// Loops outside of a macro are none inside.
  class OutsideOfLoops {
   public:
    explicit OutsideOfLoops(Parser& parser) : parser_(parser), loops_(std::exchange(parser.loops_, 0)) {}
    OutsideOfLoops(const OutsideOfLoops&) = delete;
    OutsideOfLoops& operator=(const OutsideOfLoops&) = delete;
    ~OutsideOfLoops() { parser_.loops_ = loops_; }

   private:
    Parser& parser_;
    int loops_;
  };

  Macro parse_macro() {
    Macro macro{};
    macro.name = expect_identifier();
    parse_parameters(macro);
    parse_macro_body(macro, "endmacro");
    return macro;
  }

  void parse_macro_body(Macro& macro, std::string_view end) {
    const OutsideOfLoops outside(*this);
    extras_.push_back({});
    macro.body = parse_last_frame(end);
    const Extras used = extras_.back();
    extras_.pop_back();
    const auto is_parameter = [&](std::string_view name) {
      return std::find(macro.parameters.begin(), macro.parameters.end(), name) != macro.parameters.end();
    };
    macro.takes_positional = used.positional && !is_parameter("varargs");
    macro.takes_named = used.named && !is_parameter("kwargs");
    macro.takes_caller = used.caller && !is_parameter("caller");
  }

  void parse_parameters(Macro& macro) {
    expect_operator("(");
    while (!is_operator(")")) {
      if (!macro.parameters.empty()) expect_operator(",");
      macro.parameters.push_back(expect_identifier());
      if (skip_operator("=")) {
        macro.defaults.push_back(parse_expression());
      } else if (!macro.defaults.empty()) {
        fail("non-default argument follows default argument");
      }
    }
    expect_operator(")");
  }

  CallBlock parse_call_block() {
    CallBlock node;
    node.caller = std::make_unique<Macro>();
    node.caller->name = "caller";
    if (is_operator("(")) parse_parameters(*node.caller);
    node.call = parse_expression();
    if (!std::holds_alternative<Call>(node.call->node)) fail("expected call");
    parse_macro_body(*node.caller, "endcall");
    return node;
  }

  With parse_with() {
    With node;
    while (now().kind != Kind::kBlockEnd) {
      if (!node.assignments.empty()) expect_operator(",");
      Target target = parse_target();
      expect_operator("=");
      node.assignments.emplace_back(std::move(target), parse_expression());
    }
    node.body = parse_last_frame("endwith");
    return node;
  }

  void parse_print(Body& body) {
    for (bool first = true; now().kind != Kind::kBlockEnd; first = false) {
      if (!first) expect_operator(",");
      const int line = now().line;
      body.push_back({line, Output{parse_expression()}});
    }
  }

  Scope parse_named_block() {
    const std::string name = expect_identifier();
    skip_name("scoped");
    const OutsideOfLoops outside(*this);
    Scope node{parse_last_frame("endblock")};
    skip_name(name);
    return node;
  }

  Target parse_target(bool with_attributes = false) {
    std::vector<Target> items;
    bool is_tuple = false;
    while (true) {
      if (is_tuple && (now().kind == Kind::kBlockEnd || is_name("in") || is_operator("=") || is_operator(")"))) break;
      items.push_back(parse_one_target(with_attributes));
      if (!skip_operator(",")) break;
      is_tuple = true;
    }
    if (!is_tuple) return std::move(items.front());
    return {TargetTuple{std::move(items)}};
  }

  Target parse_one_target(bool with_attributes) {
    const Nested nested(*this);
    if (skip_operator("(")) {
      Target inner = parse_target(with_attributes);
      expect_operator(")");
      return inner;
    }
    const std::string name = expect_identifier();
    static constexpr std::string_view kConstants[] = {"true", "false", "none", "True", "False", "None"};
    if (std::find(std::begin(kConstants), std::end(kConstants), name) != std::end(kConstants)) fail("can't assign to 'const'");
    if (with_attributes && skip_operator(".")) return {TargetAttribute{name, expect_identifier()}};
    return {TargetName{name}};
  }

  int loops_ = 0;
};

}  // namespace

ParsedTemplate parse(std::string_view source, const Limits& limits) {
  if (source.size() > limits.max_template_bytes) {
    throw TemplateError(
        1, fmt::format("the template is too long: {} bytes, at most {}", source.size(), limits.max_template_bytes));
  }
  if (const size_t valid = valid_utf8_prefix(source); valid != source.size()) {
    const auto line = 1 + std::count(source.begin(), source.begin() + static_cast<ptrdiff_t>(valid), '\n');
    throw TemplateError(static_cast<int>(line), fmt::format("the template is not UTF-8 at byte {}", valid));
  }
  ParsedTemplate parsed;
  parsed.box = std::make_unique<Sandbox>(Limits{.max_steps = INT64_MAX / 2, .max_time = std::chrono::hours(1)});
  parsed.root.body = Parser(source, *parsed.box).run();
  find_unset_names(*parsed.box, parsed.root);
  return parsed;
}

}  // namespace weft::jinja
