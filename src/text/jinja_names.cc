#include "text/jinja_names.h"

#include <fmt/format.h>

#include <functional>
#include <set>

namespace weft::jinja {
namespace {

using namespace ast;

using NameSet = std::set<std::string_view>;

/// Names of a frame as they are met in the order of the text, or of a branch of an `if` in it.
struct Names {
  const Names* around = nullptr;  ///< the frame around this one, complete
  const Names* before = nullptr;  ///< of a branch: what was met before it
  NameSet known = {}, stored = {}, unset = {};

  bool knows_itself(std::string_view name) const {
    for (const Names* one = this; one != nullptr; one = one->before) {
      if (one->known.contains(name)) return true;
    }
    return false;
  }
  const Names* frame_around() const {
    const Names* one = this;
    while (one->before != nullptr) one = one->before;
    return one->around;
  }
  bool knows(std::string_view name) const { return knows_itself(name) || is_known_around(name); }
  bool is_known_around(std::string_view name) const {
    const Names* const frame = frame_around();
    return frame != nullptr && frame->knows(name);
  }
  bool is_stored(std::string_view name) const {
    for (const Names* one = this; one != nullptr; one = one->before) {
      if (one->stored.contains(name)) return true;
    }
    return false;
  }

  void load(std::string_view name) {
    if (!knows(name)) known.insert(name);
  }
  void store(std::string_view name) {
    stored.insert(name);
    if (knows_itself(name)) return;
    known.insert(name);
    if (!is_known_around(name)) unset.insert(name);
  }
  void declare(std::string_view name) {
    stored.insert(name);
    known.insert(name);
  }
  /// What is set in a branch only has before it the value that it has around.
  void merge(const std::vector<Names>& branches) {
    NameSet fresh;
    for (const Names& branch : branches) {
      for (const auto name : branch.stored) {
        if (!is_stored(name)) fresh.insert(name);
      }
    }
    for (const Names& branch : branches) {
      known.insert(branch.known.begin(), branch.known.end());
      stored.insert(branch.stored.begin(), branch.stored.end());
      unset.insert(branch.unset.begin(), branch.unset.end());
    }
    for (const auto name : fresh) unset.erase(name);
  }
};

class Finder {
 public:
  explicit Finder(Sandbox& box) : box_(box) {}

  /// `declare` puts in what the frame begins with.
  template <typename Declare>
  void frame(Frame& frame, const Names* around, Declare declare) {
    Names names{.around = around};
    std::vector<Inner> inner;
    Visitor visitor{*this, names, inner};
    declare(visitor);
    visitor.body(frame.body);
    if (inner.empty()) return;  // Nobody looks before the name is set.
    for (const auto name : names.unset) {
      frame.unset.emplace_back(name, Value::undefined(box_, fmt::format("'{}' is undefined", name.substr(0, 80))));
    }
    for (const Inner& one : inner) one(*this, names);
  }

 private:
  using Inner = std::function<void(Finder&, const Names&)>;

  struct Visitor {
    Finder& finder;
    Names& names;
    std::vector<Inner>& inner;

    void body(Body& statements) {
      for (Statement& statement : statements) {
        std::visit([this](auto& node) { visit(node); }, statement.node);
      }
    }

    template <typename Declare>
    void later(Frame& frame, Declare declare) {
      inner.push_back([&frame, declare](Finder& f, const Names& around) { f.frame(frame, &around, declare); });
    }
    void later(Frame& frame) {
      later(frame, [](Visitor&) {});
    }

    void target(const Target& node, bool declares) {
      if (const auto* const name = std::get_if<TargetName>(&node.node)) {
        declares ? names.declare(name->name) : names.store(name->name);
      } else if (const auto* const attribute = std::get_if<TargetAttribute>(&node.node)) {
        names.load(attribute->name);
      } else {
        for (const Target& item : std::get<TargetTuple>(node.node).items) target(item, declares);
      }
    }

    // ---- Statements

    void visit(Data&) {}
    void visit(Break&) {}
    void visit(Continue&) {}
    void visit(Output& node) { expression(node.expression); }
    void visit(Set& node) {
      expression(node.value);
      target(node.target, false);
    }
    void visit(If& node) {
      if (node.branches.empty()) return;
      expression(node.branches.front().first);
      std::vector<Names> branches;
      branches.push_back(branch([&](Visitor& v) { v.body(node.branches.front().second); }));
      branches.push_back(branch([&](Visitor& v) {
        for (size_t i = 1; i < node.branches.size(); ++i) {
          v.expression(node.branches[i].first);
          v.names.merge({v.branch([&](Visitor& w) { w.body(node.branches[i].second); })});
        }
      }));
      branches.push_back(branch([&](Visitor& v) { v.body(node.otherwise); }));
      names.merge(branches);
    }
    template <typename Visit>
    Names branch(Visit visit_it) {
      Names copy{.before = &names};
      Visitor visitor{finder, copy, inner};
      visit_it(visitor);
      return copy;
    }
    void visit(For& node) {
      expression(node.iterable);
      later(node.body, [&node](Visitor& v) {
        v.names.declare("loop");
        v.target(node.target, true);
      });
      later(node.otherwise);
    }
    void visit(SetBlock& node) {
      target(node.target, false);
      later(node.body);
    }
    void visit(Macro& node) {
      names.store(node.name);
      later(node.body, [&node](Visitor& v) { v.parameters(node); });
    }
    void parameters(Macro& node) {
      for (const std::string& name : node.parameters) names.declare(name);
      for (const char* const name : {"caller", "kwargs", "varargs"}) names.declare(name);
      expressions(node.defaults);
    }
    void visit(CallBlock& node) {
      expression(node.call);
      Macro& caller = *node.caller;
      later(caller.body, [&caller](Visitor& v) { v.parameters(caller); });
    }
    void visit(FilterBlock& node) {
      expression(node.filter);
      later(node.body);
    }
    void visit(With& node) {
      for (auto& [name, value] : node.assignments) expression(value);
      later(node.body, [&node](Visitor& v) {
        for (auto& [name, value] : node.assignments) v.target(name, true);
      });
    }
    void visit(Scope& node) { later(node.body); }

    // ---- Expressions

    void expression(const ExpressionPtr& one) {
      if (one) std::visit([this](const auto& node) { visit(node); }, one->node);
    }
    void expressions(const Expressions& many) {
      for (const auto& one : many) expression(one);
    }
    void arguments(const CallArguments& call) {
      expressions(call.positional);
      for (const auto& [name, value] : call.named) expression(value);
      expression(call.more_positional);
      expression(call.more_named);
    }
    void visit(const Constant&) {}
    void visit(const Name& node) { names.load(node.name); }
    void visit(const ListLiteral& node) { expressions(node.items); }
    void visit(const TupleLiteral& node) { expressions(node.items); }
    void visit(const DictLiteral& node) {
      for (const auto& [key, value] : node.items) {
        expression(key);
        expression(value);
      }
    }
    void visit(const Attribute& node) { expression(node.object); }
    void visit(const Item& node) {
      expression(node.object);
      expression(node.key);
    }
    void visit(const Slice& node) {
      expression(node.start);
      expression(node.stop);
      expression(node.step);
    }
    void visit(const Call& node) {
      expression(node.function);
      arguments(node.arguments);
    }
    void visit(const Filter& node) {
      expression(node.input);
      arguments(node.arguments);
    }
    void visit(const Test& node) {
      expression(node.input);
      arguments(node.arguments);
    }
    void visit(const Unary& node) { expression(node.operand); }
    void visit(const Binary& node) {
      expression(node.left);
      expression(node.right);
    }
    void visit(const Logical& node) {
      expression(node.left);
      expression(node.right);
    }
    void visit(const Comparison& node) {
      expression(node.first);
      for (const auto& [op, operand] : node.rest) expression(operand);
    }
    void visit(const Concatenation& node) { expressions(node.parts); }
    void visit(const Conditional& node) {
      expression(node.condition);
      expression(node.then);
      expression(node.otherwise);
    }
  };

  Sandbox& box_;
};

}  // namespace

void find_unset_names(Sandbox& box, ast::Frame& root) {
  Finder(box).frame(root, nullptr, [](auto&) {});
}

}  // namespace weft::jinja
