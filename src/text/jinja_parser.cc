#include "text/jinja_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "text/jinja_names.h"
#include "text/python_text.h"
#include "text/utf8.h"

namespace weft::jinja {
namespace {

using namespace ast;
using Kind = Token::Kind;

// Of brackets in brackets and blocks in blocks. An inner bracket takes the parser through twelve functions, about 2 KiB of
// stack.
constexpr int kMaxNesting = 80;

class Parser {
 public:
  Parser(std::string_view source, Sandbox& box) : box_(box), tokens_(tokenize(source)) {}

  Body run() { return parse_body({}); }

 private:
  // ---- Tokens

  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take() {
    const Token& token = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool is_name(std::string_view name) const { return now().kind == Kind::kName && now().text == name; }
  bool is_operator(std::string_view text) const { return now().kind == Kind::kOperator && now().text == text; }
  bool skip_name(std::string_view name) { return is_name(name) && (take(), true); }
  bool skip_operator(std::string_view text) { return is_operator(text) && (take(), true); }

  static std::string described(const Token& token) {
    switch (token.kind) {
      case Kind::kData:
        return "template data";
      case Kind::kOutputBegin:
        return "begin of print statement";
      case Kind::kOutputEnd:
        return "end of print statement";
      case Kind::kBlockBegin:
        return "begin of statement block";
      case Kind::kBlockEnd:
        return "end of statement block";
      case Kind::kEnd:
        return "end of template";
      default:
        return token.text.substr(0, 80);
    }
  }
  [[noreturn]] void fail(const std::string& message) const { throw TemplateError(now().line, message); }
  void expect_operator(std::string_view text) {
    if (!skip_operator(text)) fail(fmt::format("expected token '{}', got '{}'", text, described(now())));
  }
  void expect(Kind kind, std::string_view what) {
    if (now().kind != kind) fail(fmt::format("expected token '{}', got '{}'", what, described(now())));
    take();
  }
  std::string expect_identifier() {
    if (now().kind != Kind::kName) fail(fmt::format("expected token 'name', got '{}'", described(now())));
    return take().text;
  }

  /// One bracket or block inside another.
  class Nested {
   public:
    explicit Nested(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMaxNesting)
        parser_.fail(fmt::format("the template nests too deeply: more than {} levels", kMaxNesting));
    }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;
    ~Nested() { --parser_.nesting_; }

   private:
    Parser& parser_;
  };

  // ---- The tree

  static int depth_of(const ExpressionPtr& one) { return one ? one->depth : 0; }
  static int depth_of(const Expressions& many) {
    int depth = 0;
    for (const auto& one : many) depth = std::max(depth, one->depth);
    return depth;
  }
  static int depth_of(const CallArguments& arguments) {
    int depth = std::max({depth_of(arguments.positional), depth_of(arguments.more_positional), depth_of(arguments.more_named)});
    for (const auto& [name, value] : arguments.named) depth = std::max(depth, value->depth);
    return depth;
  }

  /// `below` is the depth of the deepest part.
  template <typename Node>
  ExpressionPtr make(int line, int below, Node node) const {
    if (below >= kMaxDepth)
      throw TemplateError(line, fmt::format("an expression nests too deeply: more than {} levels", kMaxDepth));
    return std::make_unique<Expression>(Expression{line, below + 1, std::move(node)});
  }

  // ---- Statements

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

  /// What a macro takes beside its parameters shows in the names that it uses.
  struct Extras {
    bool positional = false, named = false, caller = false;
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

  // ---- Expressions, the loosest first

  bool at_tuple_end(std::string_view end_name) const {
    return now().kind == Kind::kOutputEnd || now().kind == Kind::kBlockEnd || is_operator(")") ||
           (!end_name.empty() && is_name(end_name));
  }

  /// One expression, or several with commas, which are a tuple.
  ExpressionPtr parse_tuple(bool with_conditional = true, std::string_view end_name = {}, bool in_brackets = false) {
    const int line = now().line;
    Expressions items;
    bool is_tuple = false;
    while (true) {
      if (at_tuple_end(end_name)) break;
      items.push_back(with_conditional ? parse_expression() : parse_or());
      if (!skip_operator(",")) break;
      is_tuple = true;
    }
    if (!is_tuple && !items.empty()) return std::move(items.front());
    if (!is_tuple && !in_brackets) fail(fmt::format("Expected an expression, got '{}'", described(now())));
    const int below = depth_of(items);
    return make(line, below, TupleLiteral{std::move(items)});
  }

  ExpressionPtr parse_expression() {
    const Nested nested(*this);
    ExpressionPtr value = parse_or();
    while (is_name("if")) {
      const int line = take().line;
      ExpressionPtr condition = parse_or(), otherwise;
      if (skip_name("else")) otherwise = parse_expression();
      const int below = std::max({depth_of(value), depth_of(condition), depth_of(otherwise)});
      value = make(line, below, Conditional{std::move(condition), std::move(value), std::move(otherwise)});
    }
    return value;
  }

  ExpressionPtr parse_or() {
    ExpressionPtr left = parse_and();
    while (is_name("or")) {
      const int line = take().line;
      left = logical(line, false, std::move(left), parse_and());
    }
    return left;
  }

  ExpressionPtr parse_and() {
    ExpressionPtr left = parse_not();
    while (is_name("and")) {
      const int line = take().line;
      left = logical(line, true, std::move(left), parse_not());
    }
    return left;
  }

  ExpressionPtr logical(int line, bool is_and, ExpressionPtr left, ExpressionPtr right) const {
    const int below = std::max(depth_of(left), depth_of(right));
    return make(line, below, Logical{is_and, std::move(left), std::move(right)});
  }

  ExpressionPtr parse_not() {
    if (!is_name("not")) return parse_comparison();
    const Nested nested(*this);
    const int line = take().line;
    ExpressionPtr operand = parse_not();
    const int below = depth_of(operand);
    return make(line, below, Unary{Unary::Operator::kNot, std::move(operand)});
  }

  std::optional<Comparison::Operator> skip_comparison() {
    using Operator = Comparison::Operator;
    if (skip_name("in")) return Operator::kIn;
    if (is_name("not") && ahead().kind == Kind::kName && ahead().text == "in") {
      take(), take();
      return Operator::kNotIn;
    }
    static constexpr std::pair<std::string_view, Operator> kOperators[] = {
        {"==", Operator::kEqual},     {"!=", Operator::kNotEqual}, {"<", Operator::kLess},
        {"<=", Operator::kLessEqual}, {">", Operator::kGreater},   {">=", Operator::kGreaterEqual}};
    for (const auto& [text, op] : kOperators) {
      if (skip_operator(text)) return op;
    }
    return {};
  }

  ExpressionPtr parse_comparison() {
    ExpressionPtr first = parse_sum();
    const int line = now().line;
    int below = depth_of(first);
    std::vector<std::pair<Comparison::Operator, ExpressionPtr>> rest;
    while (const auto op = skip_comparison()) {
      rest.emplace_back(*op, parse_sum());
      below = std::max(below, depth_of(rest.back().second));
    }
    if (rest.empty()) return first;
    return make(line, below, Comparison{std::move(first), std::move(rest)});
  }

  ExpressionPtr binary(int line, BinaryOperator op, ExpressionPtr left, ExpressionPtr right) const {
    const int below = std::max(depth_of(left), depth_of(right));
    return make(line, below, Binary{op, std::move(left), std::move(right)});
  }

  ExpressionPtr parse_sum() {
    ExpressionPtr left = parse_concatenation();
    while (is_operator("+") || is_operator("-")) {
      const Token& token = take();
      const auto op = token.text == "+" ? BinaryOperator::kAdd : BinaryOperator::kSubtract;
      const int line = token.line;
      left = binary(line, op, std::move(left), parse_concatenation());
    }
    return left;
  }

  ExpressionPtr parse_concatenation() {
    const int line = now().line;
    Expressions parts;
    parts.push_back(parse_product());
    while (skip_operator("~")) parts.push_back(parse_product());
    if (parts.size() == 1) return std::move(parts.front());
    const int below = depth_of(parts);
    return make(line, below, Concatenation{std::move(parts)});
  }

  std::optional<BinaryOperator> skip_product_operator() {
    static constexpr std::pair<std::string_view, BinaryOperator> kOperators[] = {{"*", BinaryOperator::kMultiply},
                                                                                 {"/", BinaryOperator::kDivide},
                                                                                 {"//", BinaryOperator::kFloorDivide},
                                                                                 {"%", BinaryOperator::kModulo}};
    for (const auto& [text, op] : kOperators) {
      if (skip_operator(text)) return op;
    }
    return {};
  }

  ExpressionPtr parse_product() {
    ExpressionPtr left = parse_power();
    while (true) {
      const int line = now().line;
      const auto op = skip_product_operator();
      if (!op) return left;
      left = binary(line, *op, std::move(left), parse_power());
    }
  }

  ExpressionPtr parse_power() {
    ExpressionPtr left = parse_unary();
    while (is_operator("**")) {
      const int line = take().line;
      left = binary(line, BinaryOperator::kPower, std::move(left), parse_unary());
    }
    return left;
  }

  ExpressionPtr parse_unary(bool with_filters = true) {
    ExpressionPtr node;
    if (is_operator("-") || is_operator("+")) {
      const Nested nested(*this);
      const Token& token = take();
      const auto op = token.text == "-" ? Unary::Operator::kNegative : Unary::Operator::kPositive;
      const int line = token.line;
      ExpressionPtr operand = parse_unary(false);
      const int below = depth_of(operand);
      node = make(line, below, Unary{op, std::move(operand)});
    } else {
      node = parse_primary();
    }
    node = parse_postfix(std::move(node));
    return with_filters ? parse_filters_and_tests(std::move(node)) : std::move(node);
  }

  ExpressionPtr parse_primary() {
    const Token& token = now();
    const int line = token.line;
    switch (token.kind) {
      case Kind::kName:
        return parse_name();
      case Kind::kString: {
        std::string text;
        while (now().kind == Kind::kString) text += take().text;
        return constant(line, Value::text(box_, std::move(text)));
      }
      case Kind::kInteger:
        return constant(line, integer(take().text));
      case Kind::kFloat:
        return constant(line, Value::number(*python::to_float(take().text)));
      case Kind::kOperator:
        if (token.text == "(") {
          const Nested nested(*this);
          take();
          ExpressionPtr inner = parse_tuple(true, {}, true);
          expect_operator(")");
          return inner;
        }
        if (token.text == "[") return parse_list();
        if (token.text == "{") return parse_dict();
        break;
      default:
        break;
    }
    fail(fmt::format("unexpected '{}'", described(token)));
  }

  ExpressionPtr constant(int line, Value value) const { return make(line, 0, Constant{std::move(value)}); }

  Value integer(const std::string& digits) {
    if (const auto value = python::to_integer(digits, digits.size() > 1 && digits[0] == '0' && digits[1] != '0' ? 0 : 10)) {
      return Value::integer(*value);
    }
    if (!std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      fail(fmt::format("integers of more than 64 bits are not supported: {}", digits.substr(0, 80)));
    }
    return Value::big_integer(box_, digits);
  }

  ExpressionPtr parse_name() {
    const Token& token = take();
    const int line = token.line;
    const std::string& name = token.text;
    if (name == "true" || name == "True") return constant(line, Value::boolean(true));
    if (name == "false" || name == "False") return constant(line, Value::boolean(false));
    if (name == "none" || name == "None") return constant(line, {});
    for (Extras& extras : extras_) {
      extras.positional |= name == "varargs";
      extras.named |= name == "kwargs";
      extras.caller |= name == "caller";
    }
    return make(line, 0, Name{name});
  }

  ExpressionPtr parse_list() {
    const int line = take().line;
    Expressions items;
    while (!is_operator("]")) {
      if (!items.empty()) expect_operator(",");
      if (is_operator("]")) break;
      items.push_back(parse_expression());
    }
    expect_operator("]");
    const int below = depth_of(items);
    return make(line, below, ListLiteral{std::move(items)});
  }

  ExpressionPtr parse_dict() {
    const int line = take().line;
    DictLiteral dict;
    int below = 0;
    while (!is_operator("}")) {
      if (!dict.items.empty()) expect_operator(",");
      if (is_operator("}")) break;
      ExpressionPtr key = parse_expression();
      expect_operator(":");
      ExpressionPtr value = parse_expression();
      below = std::max({below, depth_of(key), depth_of(value)});
      dict.items.emplace_back(std::move(key), std::move(value));
    }
    expect_operator("}");
    return make(line, below, std::move(dict));
  }

  ExpressionPtr parse_postfix(ExpressionPtr node) {
    while (true) {
      if (is_operator(".")) {
        node = parse_member(std::move(node));
      } else if (is_operator("[")) {
        node = parse_subscript(std::move(node));
      } else if (is_operator("(")) {
        node = parse_call(std::move(node));
      } else {
        return node;
      }
    }
  }

  ExpressionPtr parse_filters_and_tests(ExpressionPtr node) {
    while (true) {
      if (is_operator("|")) {
        node = parse_filters(std::move(node));
      } else if (is_name("is")) {
        node = parse_test(std::move(node));
      } else if (is_operator("(")) {
        node = parse_call(std::move(node));
      } else {
        return node;
      }
    }
  }

  ExpressionPtr parse_member(ExpressionPtr object) {
    const int line = take().line;
    const int below = depth_of(object);
    if (now().kind == Kind::kInteger) {
      ExpressionPtr key = constant(line, integer(take().text));
      return make(line, below, Item{std::move(object), std::move(key)});
    }
    if (now().kind != Kind::kName) fail("expected name or number");
    return make(line, below, Attribute{std::move(object), take().text});
  }

  ExpressionPtr parse_subscript(ExpressionPtr object) {
    const int line = take().line;
    Expressions keys;
    while (!is_operator("]")) {
      if (!keys.empty()) expect_operator(",");
      keys.push_back(parse_subscript_part());
    }
    expect_operator("]");
    const int keys_depth = depth_of(keys);
    ExpressionPtr key = keys.size() == 1 ? std::move(keys.front()) : make(line, keys_depth, TupleLiteral{std::move(keys)});
    const int below = std::max(depth_of(object), depth_of(key));
    return make(line, below, Item{std::move(object), std::move(key)});
  }

  /// An expression or a slice.
  ExpressionPtr parse_subscript_part() {
    const int line = now().line;
    ExpressionPtr start, stop, step;
    if (!is_operator(":")) {
      start = parse_expression();
      if (!is_operator(":")) return start;
    }
    const auto at_end = [this] { return is_operator(":") || is_operator("]") || is_operator(","); };
    take();
    if (!at_end()) stop = parse_expression();
    if (skip_operator(":") && !at_end()) step = parse_expression();
    const int below = std::max({depth_of(start), depth_of(stop), depth_of(step)});
    return make(line, below, Slice{std::move(start), std::move(stop), std::move(step)});
  }

  ExpressionPtr parse_call(ExpressionPtr function) {
    const int line = now().line;
    CallArguments arguments = parse_arguments();
    const int below = std::max(depth_of(function), depth_of(arguments));
    return make(line, below, Call{std::move(function), std::move(arguments)});
  }

  CallArguments parse_arguments() {
    CallArguments arguments;
    expect_operator("(");
    const auto ensure = [this](bool good) {
      if (!good) fail("invalid syntax for function call expression");
    };
    for (bool first = true; !is_operator(")"); first = false) {
      if (!first) {
        expect_operator(",");
        if (is_operator(")")) break;
      }
      if (skip_operator("*")) {
        ensure(!arguments.more_positional && !arguments.more_named);
        arguments.more_positional = parse_expression();
      } else if (skip_operator("**")) {
        ensure(!arguments.more_named);
        arguments.more_named = parse_expression();
      } else if (now().kind == Kind::kName && ahead().kind == Kind::kOperator && ahead().text == "=") {
        ensure(!arguments.more_named);
        const std::string name = take().text;
        take();
        for (const auto& [known, value] : arguments.named) {
          if (known == name) fail(fmt::format("keyword argument repeated: {}", name.substr(0, 80)));
        }
        arguments.named.emplace_back(name, parse_expression());
      } else {
        ensure(!arguments.more_positional && !arguments.more_named && arguments.named.empty());
        arguments.positional.push_back(parse_expression());
      }
    }
    expect_operator(")");
    return arguments;
  }

  std::string dotted_name() {
    std::string name = expect_identifier();
    while (skip_operator(".")) name += "." + expect_identifier();
    return name;
  }

  ExpressionPtr parse_filters(ExpressionPtr input) {
    while (skip_operator("|")) input = parse_filter(std::move(input));
    return input;
  }

  /// One filter, after the bar.
  ExpressionPtr parse_filter(ExpressionPtr input) {
    const int line = now().line;
    std::string name = dotted_name();
    CallArguments arguments;
    if (is_operator("(")) arguments = parse_arguments();
    const int below = std::max(depth_of(input), depth_of(arguments));
    return make(line, below, Filter{std::move(input), std::move(name), std::move(arguments)});
  }

  ExpressionPtr parse_test(ExpressionPtr input) {
    const int line = take().line;
    const bool is_negated = skip_name("not");
    std::string name = dotted_name();
    CallArguments arguments;
    if (is_operator("(")) {
      arguments = parse_arguments();
    } else if (begins_test_argument()) {
      if (is_name("is")) fail("You cannot chain multiple tests with is");
      arguments.positional.push_back(parse_postfix(parse_primary()));
    }
    const int below = std::max(depth_of(input), depth_of(arguments));
    ExpressionPtr node = make(line, below, Test{std::move(input), std::move(name), std::move(arguments)});
    return is_negated ? make(line, below + 1, Unary{Unary::Operator::kNot, std::move(node)}) : std::move(node);
  }

  bool begins_test_argument() const {
    switch (now().kind) {
      case Kind::kName:
        return !is_name("else") && !is_name("or") && !is_name("and");
      case Kind::kString:
      case Kind::kInteger:
      case Kind::kFloat:
        return true;
      default:
        return is_operator("[") || is_operator("{");
    }
  }

  Sandbox& box_;
  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;
  std::vector<Extras> extras_;
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
