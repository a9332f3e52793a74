#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja_operators.h"

/// A template as a tree. Immutable once parsed.
namespace weft::jinja::ast {

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<Expression>;
using Expressions = std::vector<ExpressionPtr>;
using Body = std::vector<Statement>;

struct CallArguments {
  Expressions positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional, more_named;  ///< *these and **these, if any
};

// ---- Expressions

struct Constant {
  Value value;
};
struct Name {
  std::string name;
};
struct ListLiteral {
  Expressions items;
};
struct TupleLiteral {
  Expressions items;
};
struct DictLiteral {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> items;
};
struct Attribute {
  ExpressionPtr object;
  std::string name;
};
struct Item {
  ExpressionPtr object, key;
};
/// Stands as the key of an Item; a missing part is null.
struct Slice {
  ExpressionPtr start, stop, step;
};
struct Call {
  ExpressionPtr function;
  CallArguments arguments;
};
struct Filter {
  ExpressionPtr input;  ///< null in {% filter %} and {% set x | ... %}: the text of the block
  std::string name;
  CallArguments arguments;
};
struct Test {
  ExpressionPtr input;
  std::string name;
  CallArguments arguments;
};
struct Unary {
  enum class Operator { kNot, kNegative, kPositive } op;
  ExpressionPtr operand;
};
struct Binary {
  BinaryOperator op;
  ExpressionPtr left, right;
};
/// Gives one of its operands, as in Python.
struct Logical {
  bool is_and;
  ExpressionPtr left, right;
};
struct Comparison {
  enum class Operator { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };
  ExpressionPtr first;
  std::vector<std::pair<Operator, ExpressionPtr>> rest;
};
struct Concatenation {
  Expressions parts;
};
struct Conditional {
  ExpressionPtr condition, then, otherwise;  ///< otherwise may be null
};

struct Expression {
  int line;
  int depth;  ///< of the tree below, at most kMaxDepth
  std::variant<Constant, Name, ListLiteral, TupleLiteral, DictLiteral, Attribute, Item, Slice, Call, Filter, Test, Unary,
               Binary, Logical, Comparison, Concatenation, Conditional>
      node;
};

// ---- What can be assigned to

struct Target;
struct TargetName {
  std::string name;
};
struct TargetAttribute {
  std::string name, attribute;  ///< of a namespace
};
struct TargetTuple {
  std::vector<Target> items;
};
struct Target {
  std::variant<TargetName, TargetAttribute, TargetTuple> node;
};

// ---- Statements

/// A body with variables of its own.
struct Frame {
  Body body;
  /// Names that are undefined until the frame sets them, even if they are something around it: Python's Jinja knows the
  /// variables of a frame before it runs. A name is one of them if its first mention in the frame sets it, outside of any `if`,
  /// and the frames around never mention it.
  std::vector<std::pair<std::string_view, Value>> unset;
};

struct Data {
  std::string text;
};
struct Output {
  ExpressionPtr expression;
};
struct If {
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  Body otherwise;
};
struct For {
  Target target;
  ExpressionPtr iterable, filter;  ///< filter may be null
  bool is_recursive;
  Frame body, otherwise;
};
struct Set {
  Target target;
  ExpressionPtr value;
};
struct SetBlock {
  Target target;
  ExpressionPtr filter;  ///< may be null
  Frame body;
};
struct Macro {
  std::string name;
  std::vector<std::string> parameters;
  Expressions defaults;  ///< of the last parameters
  bool takes_positional, takes_named, takes_caller;
  Frame body;
};
/// {% call(...) f(...) %}: the body is a macro that f gets as `caller`.
struct CallBlock {
  std::unique_ptr<Macro> caller;
  ExpressionPtr call;
};
struct FilterBlock {
  ExpressionPtr filter;
  Frame body;
};
struct With {
  std::vector<std::pair<Target, ExpressionPtr>> assignments;
  Frame body;
};
/// {% generation %}, {% block %}.
struct Scope {
  Frame body;
};
struct Break {};
struct Continue {};

struct Statement {
  int line;
  std::variant<Data, Output, If, For, Set, SetBlock, Macro, CallBlock, FilterBlock, With, Scope, Break, Continue> node;
};

}  // namespace weft::jinja::ast
