#include "text/jinja_expressions.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/python_text.h"

namespace weft::jinja {

using namespace ast;

namespace {

// Of brackets in brackets and blocks in blocks. An inner bracket takes the parser through twelve functions, about 2 KiB of
// stack.
constexpr int kMaxNesting = 80;

int depth_of(const ExpressionPtr& one) { return one ? one->depth : 0; }
int depth_of(const Expressions& many) {
  int depth = 0;
  for (const auto& one : many) depth = std::max(depth, one->depth);
  return depth;
}
int depth_of(const CallArguments& arguments) {
  int depth = std::max({depth_of(arguments.positional), depth_of(arguments.more_positional), depth_of(arguments.more_named)});
  for (const auto& [name, value] : arguments.named) depth = std::max(depth, value->depth);
  return depth;
}

}  // namespace

// ---- Tokens

std::string ExpressionParser::described(const Token& token) {
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

void ExpressionParser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) fail(fmt::format("expected token '{}', got '{}'", text, described(now())));
}

void ExpressionParser::expect(Kind kind, std::string_view what) {
  if (now().kind != kind) fail(fmt::format("expected token '{}', got '{}'", what, described(now())));
  take();
}

std::string ExpressionParser::expect_identifier() {
  if (now().kind != Kind::kName) fail(fmt::format("expected token 'name', got '{}'", described(now())));
  return take().text;
}

ExpressionParser::Nested::Nested(ExpressionParser& parser) : parser_(parser) {
  if (++parser_.nesting_ > kMaxNesting)
    parser_.fail(fmt::format("the template nests too deeply: more than {} levels", kMaxNesting));
}

template <typename Node>
ExpressionPtr ExpressionParser::make(int line, int below, Node node) const {
  if (below >= kMaxDepth)
    throw TemplateError(line, fmt::format("an expression nests too deeply: more than {} levels", kMaxDepth));
  return std::make_unique<Expression>(Expression{line, below + 1, std::move(node)});
}

// ---- Expressions, the loosest first

bool ExpressionParser::at_tuple_end(std::string_view end_name) const {
  return now().kind == Kind::kOutputEnd || now().kind == Kind::kBlockEnd || is_operator(")") ||
         (!end_name.empty() && is_name(end_name));
}

ExpressionPtr ExpressionParser::parse_tuple(bool with_conditional, std::string_view end_name, bool in_brackets) {
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

ExpressionPtr ExpressionParser::parse_expression() {
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

ExpressionPtr ExpressionParser::parse_or() {
  ExpressionPtr left = parse_and();
  while (is_name("or")) {
    const int line = take().line;
    left = logical(line, false, std::move(left), parse_and());
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_and() {
  ExpressionPtr left = parse_not();
  while (is_name("and")) {
    const int line = take().line;
    left = logical(line, true, std::move(left), parse_not());
  }
  return left;
}

ExpressionPtr ExpressionParser::logical(int line, bool is_and, ExpressionPtr left, ExpressionPtr right) const {
  const int below = std::max(depth_of(left), depth_of(right));
  return make(line, below, Logical{is_and, std::move(left), std::move(right)});
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!is_name("not")) return parse_comparison();
  const Nested nested(*this);
  const int line = take().line;
  ExpressionPtr operand = parse_not();
  const int below = depth_of(operand);
  return make(line, below, Unary{Unary::Operator::kNot, std::move(operand)});
}

std::optional<Comparison::Operator> ExpressionParser::skip_comparison() {
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

ExpressionPtr ExpressionParser::parse_comparison() {
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

ExpressionPtr ExpressionParser::binary(int line, BinaryOperator op, ExpressionPtr left, ExpressionPtr right) const {
  const int below = std::max(depth_of(left), depth_of(right));
  return make(line, below, Binary{op, std::move(left), std::move(right)});
}

ExpressionPtr ExpressionParser::parse_sum() {
  ExpressionPtr left = parse_concatenation();
  while (is_operator("+") || is_operator("-")) {
    const Token& token = take();
    const auto op = token.text == "+" ? BinaryOperator::kAdd : BinaryOperator::kSubtract;
    const int line = token.line;
    left = binary(line, op, std::move(left), parse_concatenation());
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_concatenation() {
  const int line = now().line;
  Expressions parts;
  parts.push_back(parse_product());
  while (skip_operator("~")) parts.push_back(parse_product());
  if (parts.size() == 1) return std::move(parts.front());
  const int below = depth_of(parts);
  return make(line, below, Concatenation{std::move(parts)});
}

std::optional<BinaryOperator> ExpressionParser::skip_product_operator() {
  static constexpr std::pair<std::string_view, BinaryOperator> kOperators[] = {{"*", BinaryOperator::kMultiply},
                                                                               {"/", BinaryOperator::kDivide},
                                                                               {"//", BinaryOperator::kFloorDivide},
                                                                               {"%", BinaryOperator::kModulo}};
  for (const auto& [text, op] : kOperators) {
    if (skip_operator(text)) return op;
  }
  return {};
}

ExpressionPtr ExpressionParser::parse_product() {
  ExpressionPtr left = parse_power();
  while (true) {
    const int line = now().line;
    const auto op = skip_product_operator();
    if (!op) return left;
    left = binary(line, *op, std::move(left), parse_power());
  }
}

ExpressionPtr ExpressionParser::parse_power() {
  ExpressionPtr left = parse_unary();
  while (is_operator("**")) {
    const int line = take().line;
    left = binary(line, BinaryOperator::kPower, std::move(left), parse_unary());
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filters) {
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

ExpressionPtr ExpressionParser::parse_primary() {
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

ExpressionPtr ExpressionParser::constant(int line, Value value) const { return make(line, 0, Constant{std::move(value)}); }

Value ExpressionParser::integer(const std::string& digits) {
  if (const auto value = python::to_integer(digits, digits.size() > 1 && digits[0] == '0' && digits[1] != '0' ? 0 : 10)) {
    return Value::integer(*value);
  }
  if (!std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    fail(fmt::format("integers of more than 64 bits are not supported: {}", digits.substr(0, 80)));
  }
  return Value::big_integer(box_, digits);
}

ExpressionPtr ExpressionParser::parse_name() {
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

ExpressionPtr ExpressionParser::parse_list() {
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

ExpressionPtr ExpressionParser::parse_dict() {
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

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr node) {
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

ExpressionPtr ExpressionParser::parse_filters_and_tests(ExpressionPtr node) {
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

ExpressionPtr ExpressionParser::parse_member(ExpressionPtr object) {
  const int line = take().line;
  const int below = depth_of(object);
  if (now().kind == Kind::kInteger) {
    ExpressionPtr key = constant(line, integer(take().text));
    return make(line, below, Item{std::move(object), std::move(key)});
  }
  if (now().kind != Kind::kName) fail("expected name or number");
  return make(line, below, Attribute{std::move(object), take().text});
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr object) {
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

ExpressionPtr ExpressionParser::parse_subscript_part() {
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

ExpressionPtr ExpressionParser::parse_call(ExpressionPtr function) {
  const int line = now().line;
  CallArguments arguments = parse_arguments();
  const int below = std::max(depth_of(function), depth_of(arguments));
  return make(line, below, Call{std::move(function), std::move(arguments)});
}

CallArguments ExpressionParser::parse_arguments() {
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

std::string ExpressionParser::dotted_name() {
  std::string name = expect_identifier();
  while (skip_operator(".")) name += "." + expect_identifier();
  return name;
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr input) {
  while (skip_operator("|")) input = parse_filter(std::move(input));
  return input;
}

ExpressionPtr ExpressionParser::parse_filter(ExpressionPtr input) {
  const int line = now().line;
  std::string name = dotted_name();
  CallArguments arguments;
  if (is_operator("(")) arguments = parse_arguments();
  const int below = std::max(depth_of(input), depth_of(arguments));
  return make(line, below, Filter{std::move(input), std::move(name), std::move(arguments)});
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr input) {
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

bool ExpressionParser::begins_test_argument() const {
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

}  // namespace weft::jinja
