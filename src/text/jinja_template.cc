#include "text/jinja_template.h"

#include <fmt/format.h>

#include <functional>

#include "text/jinja_builtins.h"
#include "text/jinja_loop.h"
#include "text/jinja_operators.h"
#include "text/jinja_parser.h"

namespace weft::jinja {
namespace {

using namespace ast;

/// Names and their values in one block; names that it does not have are those of the block around it.
struct Variables {
  Variables(Sandbox& box, std::shared_ptr<Variables> around_in) : around(std::move(around_in)), charge(box, 128) {}
  std::shared_ptr<Variables> around;
  std::vector<std::pair<std::string_view, Value>> own;
  Charge charge;

  void add(std::string_view name, Value value) {
    charge.more(2 * sizeof(own[0]));
    own.emplace_back(name, std::move(value));
  }

  Value* find_own(std::string_view name) {
    for (auto& [known, value] : own) {
      if (known == name) return &value;
    }
    return nullptr;
  }
};
using VariablesPtr = std::shared_ptr<Variables>;

class Interpreter;

class MacroObject : public Object {
 public:
  MacroObject(Sandbox& box, Interpreter& interpreter, const Macro& macro, VariablesPtr around)
      : Object(box, 64), interpreter_(interpreter), macro_(macro), around_(std::move(around)) {}
  std::string type_name() const override { return "Macro"; }
  std::string repr(Sandbox&) const override { return fmt::format("<Macro '{}'>", macro_.name); }
  bool is_callable() const override { return true; }
  Value call(Sandbox& box, const Arguments& arguments) override;
  std::optional<Value> attribute(Sandbox& box, std::string_view name) override;
  /// At the end of a rendering: a macro and the block that it stands in keep each other alive.
  void let_go() { around_.reset(); }

 private:
  Interpreter& interpreter_;
  const Macro& macro_;
  VariablesPtr around_;
};

/// namespace() and strftime_now(), which belong to one rendering.
class BoundFunction : public Object {
 public:
  using Body = std::function<Value(const Arguments&)>;
  BoundFunction(Sandbox& box, Body body) : Object(box), body_(std::move(body)) {}
  std::string type_name() const override { return "function"; }
  bool is_callable() const override { return true; }
  Value call(Sandbox&, const Arguments& arguments) override { return body_(arguments); }

 private:
  Body body_;
};

/// One rendering.
class Interpreter {
 public:
  Interpreter(Sandbox& box, const Template::Variables& variables, std::optional<std::time_t> now)
      : box_(box),
        globals_(std::make_shared<Variables>(box, nullptr)),
        top_(std::make_shared<Variables>(box, globals_)),
        here_(top_) {
    for (const auto& [name, function] : global_functions())
      globals_->own.emplace_back(name, native_function(box, name, function));
    add_function("namespace", [this](const Arguments& arguments) { return make_namespace(arguments); });
    add_function("strftime_now", [this, now](const Arguments& arguments) {
      return formatted_time(box_, now ? *now : std::time(nullptr), arguments);
    });
    for (const auto& [name, value] : variables) globals_->own.emplace_back(name, value);
  }
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;
  ~Interpreter() {
    for (const auto& one : namespaces_) one->clear();
    for (const auto& one : macros_) one->let_go();
  }

  std::string render(const Frame& root) {
    try {
      for (const auto& [name, value] : root.unset) here_->add(name, value);
      return capture([&] { run(root.body); });
    } catch (const RaisedByTemplate& raised) {
      throw TemplateRaised(line_, raised.what());
    } catch (const OperationError& error) {
      throw TemplateError(line_, error.what());
    }
  }

  Value call_macro(const Macro& macro, const VariablesPtr& around, const Arguments& arguments) {
    const Sandbox::Level level(box_);
    const Inside inside(*this, macro.body, around);
    bind(macro, arguments);
    return Value::text(box_, capture([&] { run(macro.body.body); }));
  }

 private:
  enum class Flow { kNormal, kBreak, kContinue };

  void add_function(std::string_view name, BoundFunction::Body body) {
    globals_->own.emplace_back(name, Value::object(std::make_shared<BoundFunction>(box_, std::move(body))));
  }

  Value make_namespace(const Arguments& arguments) {
    auto made = std::make_shared<Namespace>(box_);
    namespaces_.push_back(made);
    if (arguments.positional.size() > 1) throw OperationError("namespace() takes at most 1 positional argument");
    if (!arguments.positional.empty()) {
      const Value& from = arguments.positional[0];
      if (!from.is_dict()) throw OperationError(fmt::format("namespace() takes a dict, not {}", from.type_name()));
      for (const auto& [key, value] : from.as_dict().entries()) made->set(box_, str(box_, key), value);
    }
    for (const auto& [name, value] : arguments.named) made->set(box_, name, value);
    return Value::object(std::move(made));
  }

  // ---- Blocks and variables

  /// A block with variables of its own, for as long as it lives.
  class Inside {
   public:
    Inside(Interpreter& interpreter, const VariablesPtr& around)
        : interpreter_(interpreter),
          outside_(std::exchange(interpreter.here_, std::make_shared<Variables>(interpreter.box_, around))) {}
    Inside(Interpreter& interpreter, const Frame& frame, const VariablesPtr& around) : Inside(interpreter, around) {
      for (const auto& [name, value] : frame.unset) interpreter.here_->add(name, value);
    }
    Inside(Interpreter& interpreter, const Frame& frame) : Inside(interpreter, frame, interpreter.here_) {}
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    ~Inside() { interpreter_.here_ = std::move(outside_); }

   private:
    Interpreter& interpreter_;
    VariablesPtr outside_;
  };

  void assign(std::string_view name, Value value) {
    if (Value* const known = here_->find_own(name); known != nullptr) {
      *known = std::move(value);
    } else {
      here_->add(name, std::move(value));
    }
  }

  void assign(const Target& target, Value value) {
    if (const auto* const name = std::get_if<TargetName>(&target.node)) {
      assign(name->name, std::move(value));
    } else if (const auto* const attribute = std::get_if<TargetAttribute>(&target.node)) {
      const Value object = lookup(attribute->name);
      auto* const space = object.is_object() ? dynamic_cast<Namespace*>(&object.as_object()) : nullptr;
      if (space == nullptr) throw OperationError("cannot assign attribute on non-namespace object");
      space->set(box_, attribute->attribute, std::move(value));
    } else {
      const auto& targets = std::get<TargetTuple>(target.node).items;
      require_defined(value);
      if (!is_iterable(value)) throw OperationError(fmt::format("cannot unpack non-iterable {} object", value.type_name()));
      const std::vector<Value> items = elements(box_, value);
      if (items.size() > targets.size())
        throw OperationError(fmt::format("too many values to unpack (expected {})", targets.size()));
      if (items.size() < targets.size()) {
        throw OperationError(fmt::format("not enough values to unpack (expected {}, got {})", targets.size(), items.size()));
      }
      for (size_t i = 0; i < items.size(); ++i) assign(targets[i], items[i]);
    }
  }

  Value lookup(std::string_view name) {
    for (Variables* block = here_.get(); block != nullptr; block = block->around.get()) {
      box_.step(1 + static_cast<int64_t>(block->own.size() / 16));
      if (const Value* const found = block->find_own(name); found != nullptr) return *found;
    }
    return Value::undefined(box_, fmt::format("'{}' is undefined", name.substr(0, 80)));
  }

  // ---- Output

  template <typename Run>
  std::string capture(Run run_it) {
    std::string text;
    Charge charge(box_, 0);
    std::string* const outer = std::exchange(out_, &text);
    Charge* const outer_charge = std::exchange(out_charge_, &charge);
    try {
      run_it();
    } catch (...) {
      out_ = outer;
      out_charge_ = outer_charge;
      throw;
    }
    out_ = outer;
    out_charge_ = outer_charge;
    return text;
  }

  void write(std::string_view text) {
    const size_t most = box_.limits().max_output_bytes;
    if (text.size() > most - std::min(most, out_->size())) {
      throw OperationError(fmt::format("the template writes too much: more than {} bytes", most));
    }
    box_.step_bytes(text.size());
    out_charge_->more(text.size());
    out_->append(text);
  }

  void write(const Value& value) {
    if (value.is_string()) {
      write(value.as_string());
    } else {
      write(str(box_, value));
    }
  }

  // ---- Statements

  Flow run(const ast::Body& body) {
    const Sandbox::Level level(box_);
    for (const Statement& statement : body) {
      box_.step();
      line_ = statement.line;
      const Flow flow = std::visit([this](const auto& node) { return run(node); }, statement.node);
      if (flow != Flow::kNormal) return flow;
    }
    return Flow::kNormal;
  }

  Flow run(const Data& node) {
    write(node.text);
    return Flow::kNormal;
  }
  Flow run(const Output& node) {
    write(evaluate(*node.expression));
    return Flow::kNormal;
  }
  Flow run(const Break&) { return Flow::kBreak; }
  Flow run(const Continue&) { return Flow::kContinue; }

  Flow run(const If& node) {
    for (const auto& [condition, body] : node.branches) {
      if (evaluate(*condition).truth()) return run(body);
    }
    return run(node.otherwise);
  }

  Flow run(const For& node) {
    loop_over(node, evaluate(*node.iterable), here_, 0);
    return Flow::kNormal;
  }

  /// Elements of a loop, without those that its filter leaves out.
  Loop::Source source(const For& node, const Value& iterable, const VariablesPtr& around) {
    auto walk = std::make_shared<Iterator>(box_, iterable);
    if (!node.filter) return [walk] { return walk->next(); };
    return [this, &node, walk, around]() -> std::optional<Value> {
      while (auto item = walk->next()) {
        const Inside inside(*this, around);
        assign(node.target, *item);
        if (evaluate(*node.filter).truth()) return item;
      }
      return {};
    };
  }

  void loop_over(const For& node, const Value& iterable, const VariablesPtr& around, int depth0) {
    if (!is_iterable(iterable)) throw OperationError(fmt::format("'{}' object is not iterable", iterable.type_name()));
    Loop::Recursion recursion;
    if (node.is_recursive) {
      recursion = [this, &node, around](const Value& inner, int inner_depth0) {
        const Sandbox::Level level(box_);
        return Value::text(box_, capture([&] { loop_over(node, inner, around, inner_depth0); }));
      };
    }
    const auto loop = std::make_shared<Loop>(box_, iterable, source(node, iterable, around), std::move(recursion), depth0);
    if (node.filter) loop->forget_length();
    const Value loop_value = Value::object(loop);
    // As in Python's Jinja, an iteration that `break` or `continue` leaves is none for the `else`.
    bool is_done = false;
    while (loop->advance()) {
      const Inside inside(*this, node.body, around);
      assign("loop", loop_value);
      assign(node.target, loop->current());
      const Flow flow = run(node.body.body);
      if (flow == Flow::kBreak) break;
      is_done = is_done || flow == Flow::kNormal;
    }
    if (!is_done) {
      const Inside inside(*this, node.otherwise, around);
      run(node.otherwise.body);
    }
  }

  Flow run(const Set& node) {
    assign(node.target, evaluate(*node.value));
    return Flow::kNormal;
  }

  Flow run(const SetBlock& node) {
    Value text = captured(node.body);
    if (node.filter) text = with_input(std::move(text), *node.filter);
    assign(node.target, std::move(text));
    return Flow::kNormal;
  }

  Flow run(const FilterBlock& node) {
    write(with_input(captured(node.body), *node.filter));
    return Flow::kNormal;
  }

  Value captured(const Frame& frame) {
    const Inside inside(*this, frame);
    return Value::text(box_, capture([&] { run(frame.body); }));
  }

  /// Filters over the text of a block, which stands where the innermost has no input.
  Value with_input(Value input, const Expression& filter) {
    const Value outer = std::exchange(block_text_, std::move(input));
    Value result = evaluate(filter);
    block_text_ = outer;
    return result;
  }

  Flow run(const Macro& node) {
    assign(node.name, macro_value(node));
    return Flow::kNormal;
  }

  Value macro_value(const Macro& node) {
    auto macro = std::make_shared<MacroObject>(box_, *this, node, here_);
    macros_.push_back(macro);
    return Value::object(std::move(macro));
  }

  Flow run(const CallBlock& node) {
    const auto& call = std::get<Call>(node.call->node);
    const Value function = evaluate(*call.function);
    Arguments arguments = evaluate(call.arguments);
    arguments.named.emplace_back("caller", macro_value(*node.caller));
    write(this->call(function, arguments));
    return Flow::kNormal;
  }

  Flow run(const With& node) {
    std::vector<Value> values;
    for (const auto& [target, value] : node.assignments) values.push_back(evaluate(*value));
    const Inside inside(*this, node.body);
    for (size_t i = 0; i < values.size(); ++i) assign(node.assignments[i].first, std::move(values[i]));
    return run(node.body.body);
  }

  Flow run(const Scope& node) {
    const Inside inside(*this, node.body);
    return run(node.body.body);
  }

  // ---- Calls

  /// Puts arguments into the parameters of a macro, in the block that was just entered.
  void bind(const Macro& macro, const Arguments& arguments) {
    auto named = arguments.named;
    const auto take = [&](std::string_view name) -> std::optional<Value> {
      for (size_t i = 0; i < named.size(); ++i) {
        if (named[i].first != name) continue;
        Value value = std::move(named[i].second);
        named.erase(named.begin() + static_cast<ptrdiff_t>(i));
        return value;
      }
      return {};
    };
    const size_t given = std::min(arguments.positional.size(), macro.parameters.size());
    std::vector<std::optional<Value>> values;
    for (size_t i = 0; i < macro.parameters.size(); ++i) {
      values.push_back(i < given ? std::optional(arguments.positional[i]) : take(macro.parameters[i]));
    }
    if (macro.takes_caller) {
      std::optional<Value> caller = take("caller");
      assign("caller", caller && !caller->is_none() ? *caller : Value::undefined(box_, "No caller defined"));
    }
    if (macro.takes_named) {
      const auto rest = std::make_shared<Dict>(box_);
      for (auto& [name, value] : named) rest->set(box_, Value::text(box_, name), std::move(value));
      assign("kwargs", Value::dict(rest));
    } else if (!named.empty()) {
      throw OperationError(fmt::format("macro '{}' takes no keyword argument '{}'", macro.name, named.front().first));
    }
    if (macro.takes_positional) {
      assign("varargs",
             Value::tuple(box_, {arguments.positional.begin() + static_cast<ptrdiff_t>(given), arguments.positional.end()}));
    } else if (arguments.positional.size() > given) {
      throw OperationError(fmt::format("macro '{}' takes not more than {} argument(s)", macro.name, macro.parameters.size()));
    }
    const size_t first_default = macro.parameters.size() - macro.defaults.size();
    for (size_t i = 0; i < values.size(); ++i) {
      if (!values[i] && i < first_default) {
        values[i] = Value::undefined(box_, fmt::format("parameter '{}' was not provided", macro.parameters[i]));
      }
      assign(macro.parameters[i], values[i] ? *values[i] : evaluate(*macro.defaults[i - first_default]));
    }
  }

  Arguments evaluate(const CallArguments& call) {
    Arguments arguments;
    for (const auto& argument : call.positional) arguments.positional.push_back(evaluate(*argument));
    for (const auto& [name, argument] : call.named) arguments.named.emplace_back(name, evaluate(*argument));
    if (call.more_positional) {
      for (Value& value : elements(box_, evaluate(*call.more_positional))) arguments.positional.push_back(std::move(value));
    }
    if (call.more_named) {
      const Value more = evaluate(*call.more_named);
      if (!more.is_dict()) throw OperationError("argument after ** must be a mapping");
      for (const auto& [key, value] : more.as_dict().entries()) {
        if (!key.is_string()) throw OperationError("keywords must be strings");
        for (const auto& [known, other] : arguments.named) {
          box_.step();
          if (known == key.as_string()) throw OperationError("got multiple values for a keyword argument");
        }
        arguments.named.emplace_back(key.as_string(), value);
      }
    }
    return arguments;
  }

  Value call(const Value& function, const Arguments& arguments) {
    require_defined(function);
    if (!function.is_object() || !function.as_object().is_callable()) {
      throw OperationError(fmt::format("'{}' object is not callable", function.type_name()));
    }
    return function.as_object().call(box_, arguments);
  }

  // ---- Expressions

  Value evaluate(const Expression& expression) {
    const Sandbox::Level level(box_);
    box_.step();
    line_ = expression.line;
    return std::visit([this](const auto& node) { return evaluate(node); }, expression.node);
  }
  Value evaluate_or_none(const ExpressionPtr& expression) { return expression ? evaluate(*expression) : Value(); }

  Value evaluate(const Constant& node) { return node.value; }
  Value evaluate(const Name& node) { return lookup(node.name); }

  std::vector<Value> evaluate_all(const Expressions& expressions) {
    std::vector<Value> values;
    values.reserve(expressions.size());
    for (const auto& one : expressions) values.push_back(evaluate(*one));
    return values;
  }
  Value evaluate(const ListLiteral& node) { return Value::list(box_, evaluate_all(node.items)); }
  Value evaluate(const TupleLiteral& node) { return Value::tuple(box_, evaluate_all(node.items)); }
  Value evaluate(const DictLiteral& node) {
    const auto dict = std::make_shared<Dict>(box_);
    for (const auto& [key_node, value_node] : node.items) {
      Value key = evaluate(*key_node);
      dict->set(box_, std::move(key), evaluate(*value_node));
    }
    return Value::dict(dict);
  }

  Value evaluate(const Attribute& node) { return get_attribute(box_, evaluate(*node.object), node.name); }
  Value evaluate(const Item& node) {
    const Value object = evaluate(*node.object);
    if (const auto* const part = std::get_if<Slice>(&node.key->node)) {
      const Value start = evaluate_or_none(part->start), stop = evaluate_or_none(part->stop);
      return slice(box_, object, start, stop, evaluate_or_none(part->step));
    }
    return get_item(box_, object, evaluate(*node.key));
  }
  Value evaluate(const Slice&) { throw OperationError("a slice cannot stand among several subscripts"); }

  Value evaluate(const Call& node) {
    const Value function = evaluate(*node.function);
    return call(function, evaluate(node.arguments));
  }
  Value evaluate(const Filter& node) {
    const Value input = node.input ? evaluate(*node.input) : block_text_;
    return apply_filter(box_, node.name, input, evaluate(node.arguments));
  }
  Value evaluate(const Test& node) {
    const Value input = evaluate(*node.input);
    return Value::boolean(apply_test(box_, node.name, input, evaluate(node.arguments)));
  }

  Value evaluate(const Unary& node) {
    const Value operand = evaluate(*node.operand);
    if (node.op == Unary::Operator::kNot) return Value::boolean(!operand.truth());
    return node.op == Unary::Operator::kNegative ? negative(operand) : positive(operand);
  }
  Value evaluate(const Binary& node) {
    const Value left = evaluate(*node.left);
    return calculate(box_, node.op, left, evaluate(*node.right));
  }
  Value evaluate(const Logical& node) {
    Value left = evaluate(*node.left);
    return left.truth() == node.is_and ? evaluate(*node.right) : left;
  }

  bool compare(Comparison::Operator op, const Value& left, const Value& right) {
    using Operator = Comparison::Operator;
    switch (op) {
      case Operator::kEqual:
        return equal(box_, left, right);
      case Operator::kNotEqual:
        return !equal(box_, left, right);
      case Operator::kLess:
        return ordered(box_, Order::kLess, left, right);
      case Operator::kLessEqual:
        return ordered(box_, Order::kLessEqual, left, right);
      case Operator::kGreater:
        return ordered(box_, Order::kGreater, left, right);
      case Operator::kGreaterEqual:
        return ordered(box_, Order::kGreaterEqual, left, right);
      case Operator::kIn:
        return contains(box_, right, left);
      case Operator::kNotIn:
        return !contains(box_, right, left);
    }
    return false;
  }
  /// a < b < c looks at b once, and at c only if a < b.
  Value evaluate(const Comparison& node) {
    Value left = evaluate(*node.first);
    for (const auto& [op, operand] : node.rest) {
      Value right = evaluate(*operand);
      if (!compare(op, left, right)) return Value::boolean(false);
      left = std::move(right);
    }
    return Value::boolean(true);
  }

  Value evaluate(const Concatenation& node) {
    std::string text;
    Charge scratch(box_, 0);
    for (const auto& part : node.parts) {
      const Value value = evaluate(*part);
      const std::string piece = value.is_string() ? "" : str(box_, value);
      const std::string& all = value.is_string() ? value.as_string() : piece;
      scratch.more(all.size());
      text += all;
    }
    return Value::text(box_, std::move(text));
  }
  Value evaluate(const Conditional& node) {
    if (evaluate(*node.condition).truth()) return evaluate(*node.then);
    if (node.otherwise) return evaluate(*node.otherwise);
    return Value::undefined(box_, "the inline if-expression evaluated to false and no else section was defined.");
  }

  Sandbox& box_;
  int line_ = 1;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<std::shared_ptr<MacroObject>> macros_;
  VariablesPtr globals_, top_, here_;
  std::string* out_ = nullptr;
  Charge* out_charge_ = nullptr;
  Value block_text_;
};

Value MacroObject::call(Sandbox&, const Arguments& arguments) { return interpreter_.call_macro(macro_, around_, arguments); }

std::optional<Value> MacroObject::attribute(Sandbox& box, std::string_view name) {
  if (name == "name") return Value::text(box, macro_.name);
  if (name == "catch_kwargs") return Value::boolean(macro_.takes_named);
  if (name == "catch_varargs") return Value::boolean(macro_.takes_positional);
  if (name == "caller") return Value::boolean(macro_.takes_caller);
  if (name != "arguments") return {};
  std::vector<Value> names;
  for (const std::string& parameter : macro_.parameters) names.push_back(Value::text(box, parameter));
  return Value::tuple(box, std::move(names));
}

}  // namespace

Template::Template(std::unique_ptr<const ParsedTemplate> parsed) : parsed_(std::move(parsed)) {}
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

Template Template::parse(std::string_view source, const Limits& limits) {
  return Template(std::make_unique<const ParsedTemplate>(jinja::parse(source, limits)));
}

std::string Template::render(Sandbox& box, const Variables& variables, std::optional<std::time_t> now) const {
  return Interpreter(box, variables, now).render(parsed_->root);
}

}  // namespace weft::jinja
