#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_lexer.h"
#include "text/jinja_value.h"

namespace weft::jinja {

struct ParsedTemplate;

/// What a template's raise_exception(message) becomes. what() is the template's own message, nothing else.
class TemplateRaised : public UserError {
 public:
  TemplateRaised(int line_in, const std::string& message) : UserError(message), line(line_in) {}
  int line;
};

/// A Jinja template, run as transformers runs chat templates: in an immutable sandbox, with trim_blocks and lstrip_blocks, loop
/// controls, tojson without escapes for HTML, raise_exception, strftime_now, and {% generation %} as a plain block. What it
/// gives is what Python's Jinja gives, but for this: integers of more than 64 bits can only be printed and compared, text has
/// no mark for safe HTML, a slice of a range is a list, blocks that include or extend other templates are refused, and an
/// unknown filter is an error when it is used.
///
/// Immutable: any number of threads may render one template at a time. A rendering keeps inside its Limits, whatever template
/// and data hold, and needs less than 384 KiB of stack.
class Template {
 public:
  /// Throws TemplateError.
  static Template parse(std::string_view source, const Limits& limits = {});
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  ~Template();

  using Variables = std::vector<std::pair<std::string, Value>>;
  /// `variables` must be made in `box`, whose limits hold for what is rendered. `now` is for strftime_now. Throws
  /// TemplateError, or TemplateRaised.
  std::string render(Sandbox& box, const Variables& variables, std::optional<std::time_t> now = {}) const;

 private:
  explicit Template(std::unique_ptr<const ParsedTemplate> parsed);
  std::unique_ptr<const ParsedTemplate> parsed_;
};

}  // namespace weft::jinja
