#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace weft::jinja {

/// `loop`. It looks at most one element ahead, and only when it is asked about what comes.
class Loop : public Object {
 public:
  using Source = std::function<std::optional<Value>()>;
  using Recursion = std::function<Value(const Value& iterable, int depth0)>;
  Loop(Sandbox& box, const Value& iterable, Source source, Recursion recursion, int depth0);

  /// Goes on to the next element.
  bool advance();
  const Value& current() const { return *current_; }
  /// With a filter in the loop, the length of what it goes over says nothing.
  void forget_length() { known_length_.reset(); }

  std::string type_name() const override { return "LoopContext"; }
  std::string repr(Sandbox& box) const override;
  std::optional<int64_t> length() const override { return known_length_; }
  bool is_callable() const override { return true; }
  Value call(Sandbox& box, const Arguments& arguments) override;
  std::optional<Value> attribute(Sandbox& box, std::string_view name) override;
  Value cycle(const Arguments& arguments) const;
  Value changed(Sandbox& box, const Arguments& arguments);

 private:
  int64_t count(Sandbox& box);
  bool peek();

  Source source_;
  Recursion recursion_;  ///< none unless the loop is recursive
  int depth0_;
  int64_t index0_ = -1;
  std::optional<int64_t> known_length_;
  std::optional<Value> before_, current_, ahead_;
  std::optional<std::vector<Value>> last_seen_;
};

}  // namespace weft::jinja
