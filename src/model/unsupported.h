#pragma once

#include <span>
#include <string>
#include <string_view>

namespace weft {

/// What some checkpoints need and this version does not have.
struct MissingFeature {
  std::string_view name, instead;
};

/// What an architecture of config.json needs that is not there, or nullptr where that is not known.
const MissingFeature* missing_feature_of(std::string_view architecture);

/// A field of config.json that means a missing feature is in use, unless it is null, false, 0 or empty.
struct MissingFeatureField {
  const char* field;
  const MissingFeature* feature;
};
std::span<const MissingFeatureField> missing_feature_fields();

/// "has NAME, which this version does not support: INSTEAD".
std::string to_string(const MissingFeature& feature);

}  // namespace weft
