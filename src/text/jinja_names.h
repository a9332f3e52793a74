#pragma once

#include "text/jinja_ast.h"

namespace weft::jinja {

/// Finds for each frame below `root` the names that are unset at first (see ast::Frame). Linear in the template but for a
/// logarithm and its depth. The undefined values are made in `box`. The tree must not be moved about afterwards.
void find_unset_names(Sandbox& box, ast::Frame& root);

}  // namespace weft::jinja
