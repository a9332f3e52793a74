#include "text/jinja_loop.h"

#include <fmt/format.h>

#include "text/jinja_operators.h"

namespace weft::jinja {
namespace {

/// loop.cycle and loop.changed.
class LoopMethod : public Object {
 public:
  LoopMethod(Sandbox& box, std::shared_ptr<Loop> loop, bool is_cycle)
      : Object(box), loop_(std::move(loop)), is_cycle_(is_cycle) {
    depth = loop_->depth;
  }
  std::string type_name() const override { return "method"; }
  bool is_callable() const override { return true; }
  Value call(Sandbox& box, const Arguments& arguments) override {
    return is_cycle_ ? loop_->cycle(arguments) : loop_->changed(box, arguments);
  }

 private:
  std::shared_ptr<Loop> loop_;
  bool is_cycle_;
};

}  // namespace

Loop::Loop(Sandbox& box, const Value& iterable, Source source, Recursion recursion, int depth0)
    : Object(box, 256), source_(std::move(source)), recursion_(std::move(recursion)), depth0_(depth0) {
  depth = iterable.depth() + 1;
  if (depth > kMaxValueDepth) throw OperationError("values nest too deeply: loops over loops");
  if (iterable.is_object() || iterable.is_undefined()) return;
  known_length_ = jinja::length(box, iterable);
}

bool Loop::advance() {
  std::optional<Value> next = ahead_ ? std::exchange(ahead_, {}) : source_();
  if (!next) return false;
  if (index0_ >= 0) before_ = std::move(current_);
  current_ = std::move(next);
  ++index0_;
  return true;
}

bool Loop::peek() {
  if (!ahead_) ahead_ = source_();
  return ahead_.has_value();
}

std::string Loop::repr(Sandbox& box) const {
  return fmt::format("<LoopContext {}/{}>", index0_ + 1, const_cast<Loop*>(this)->count(box));
}

int64_t Loop::count(Sandbox& box) {
  if (known_length_) return *known_length_;
  // Looks at all that comes, and keeps it.
  std::vector<Value> rest;
  Charge scratch(box, 0);
  if (ahead_) rest.push_back(*std::move(ahead_));
  while (auto item = source_()) {
    scratch.more(2 * sizeof(Value));
    rest.push_back(*std::move(item));
  }
  known_length_ = index0_ + 1 + static_cast<int64_t>(rest.size());
  ahead_.reset();
  const Value all = Value::list(box, std::move(rest));
  source_ = [all, at = size_t{0}]() mutable -> std::optional<Value> {
    return at < all.items().size() ? std::optional(all.items()[at++]) : std::nullopt;
  };
  return *known_length_;
}

Value Loop::call(Sandbox&, const Arguments& arguments) {
  if (!recursion_) {
    throw OperationError("The loop must have the 'recursive' marker to be called recursively.");
  }
  if (arguments.positional.size() != 1 || !arguments.named.empty()) throw OperationError("loop() takes one argument");
  return recursion_(arguments.positional[0], depth0_ + 1);
}

std::optional<Value> Loop::attribute(Sandbox& box, std::string_view name) {
  if (name == "index") return Value::integer(index0_ + 1);
  if (name == "index0") return Value::integer(index0_);
  if (name == "first") return Value::boolean(index0_ == 0);
  if (name == "last") return Value::boolean(!peek());
  if (name == "length") return Value::integer(count(box));
  if (name == "revindex") return Value::integer(count(box) - index0_);
  if (name == "revindex0") return Value::integer(count(box) - index0_ - 1);
  if (name == "depth") return Value::integer(depth0_ + 1);
  if (name == "depth0") return Value::integer(depth0_);
  if (name == "previtem") return before_ ? *before_ : Value::undefined(box, "there is no previous item");
  if (name == "nextitem") return peek() ? *ahead_ : Value::undefined(box, "there is no next item");
  if (name != "cycle" && name != "changed") return {};
  return Value::object(std::make_shared<LoopMethod>(box, std::static_pointer_cast<Loop>(shared_from_this()), name == "cycle"));
}

Value Loop::cycle(const Arguments& arguments) const {
  if (arguments.positional.empty()) throw OperationError("no items for cycling given");
  return arguments.positional[static_cast<size_t>(index0_) % arguments.positional.size()];
}

Value Loop::changed(Sandbox& box, const Arguments& arguments) {
  if (last_seen_ && last_seen_->size() == arguments.positional.size()) {
    bool same = true;
    for (size_t i = 0; i < last_seen_->size(); ++i) same = same && equal(box, (*last_seen_)[i], arguments.positional[i]);
    if (same) return Value::boolean(false);
  }
  last_seen_ = arguments.positional;
  return Value::boolean(true);
}

}  // namespace weft::jinja
