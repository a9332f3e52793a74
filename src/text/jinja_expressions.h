#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace weft::jinja {

/// Reads expressions from the tokens of a template, one function a level of precedence. The parser of statements is built on
/// it. Throws TemplateError.
class ExpressionParser {
 protected:
  using Kind = Token::Kind;
  using Expressions = ast::Expressions;
  using ExpressionPtr = ast::ExpressionPtr;

  ExpressionParser(std::string_view source, Sandbox& box) : box_(box), tokens_(tokenize(source)) {}

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

  static std::string described(const Token& token);
  [[noreturn]] void fail(const std::string& message) const { throw TemplateError(now().line, message); }
  void expect_operator(std::string_view text);
  void expect(Kind kind, std::string_view what);
  std::string expect_identifier();

  /// One bracket or block inside another.
  class Nested {
   public:
    explicit Nested(ExpressionParser& parser);
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;
    ~Nested() { --parser_.nesting_; }

   private:
    ExpressionParser& parser_;
  };

  // ---- What statements need

  /// One expression, or several with commas, which are a tuple.
  ExpressionPtr parse_tuple(bool with_conditional = true, std::string_view end_name = {}, bool in_brackets = false);
  ExpressionPtr parse_expression();
  ExpressionPtr parse_filters(ExpressionPtr input);
  /// One filter, after the bar.
  ExpressionPtr parse_filter(ExpressionPtr input);

  /// What a macro takes beside its parameters shows in the names that it uses.
  struct Extras {
    bool positional = false, named = false, caller = false;
  };

  Sandbox& box_;
  std::vector<Extras> extras_;  ///< of the macros that are being read, the innermost last

 private:
  // ---- The levels, the loosest first

  bool at_tuple_end(std::string_view end_name) const;
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr logical(int line, bool is_and, ExpressionPtr left, ExpressionPtr right) const;
  ExpressionPtr parse_not();
  std::optional<ast::Comparison::Operator> skip_comparison();
  ExpressionPtr parse_comparison();
  ExpressionPtr binary(int line, BinaryOperator op, ExpressionPtr left, ExpressionPtr right) const;
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concatenation();
  std::optional<BinaryOperator> skip_product_operator();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filters = true);
  ExpressionPtr parse_primary();
  ExpressionPtr constant(int line, Value value) const;
  Value integer(const std::string& digits);
  ExpressionPtr parse_name();
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_postfix(ExpressionPtr node);
  ExpressionPtr parse_filters_and_tests(ExpressionPtr node);
  ExpressionPtr parse_member(ExpressionPtr object);
  ExpressionPtr parse_subscript(ExpressionPtr object);
  /// An expression or a slice.
  ExpressionPtr parse_subscript_part();
  ExpressionPtr parse_call(ExpressionPtr function);
  ast::CallArguments parse_arguments();
  std::string dotted_name();
  ExpressionPtr parse_test(ExpressionPtr input);
  bool begins_test_argument() const;

  /// `below` is the depth of the deepest part.
  template <typename Node>
  ExpressionPtr make(int line, int below, Node node) const;

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace weft::jinja
