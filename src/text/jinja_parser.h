#pragma once

#include <memory>
#include <string_view>

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace weft::jinja {

/// A template as a tree, and what its constants are kept in.
struct ParsedTemplate {
  std::unique_ptr<Sandbox> box;  ///< outlives the tree
  ast::Frame root;
};

/// Reads Jinja: output, comments, raw, if, for, set, macro, call, filter, with, block, generation, break, continue. Throws
/// TemplateError with the line for what is wrong, nests too deeply, is too long, or is not supported: templates that include,
/// import or extend others.
ParsedTemplate parse(std::string_view source, const Limits& limits);

}  // namespace weft::jinja
