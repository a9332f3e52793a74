#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/command_line.h"

namespace weft {

// Values of a command's own options. All throw UserError, which names the option, what it accepts and what it got.

std::optional<std::string> text_option(const Invocation& invocation, const std::string& name);
/// Also as 32k or 1M.
std::optional<int64_t> whole_option(const Invocation& invocation, const std::string& name, int64_t min, int64_t max);
std::optional<double> number_option(const Invocation& invocation, const std::string& name, double min, double max);
/// Numbers with commas between.
std::vector<double> numbers_option(const Invocation& invocation, const std::string& name, double min, double max);
/// What an option that takes several values was given.
std::vector<std::string> several_option(const Invocation& invocation, const std::string& name);
/// "KEY=VALUE" of each.
std::vector<std::pair<std::string, std::string>> pairs_option(const Invocation& invocation, const std::string& name,
                                                              char between);

double number_of(const std::string& name, const std::string& text, double min, double max);

/// The parts of "a,b,c".
std::vector<std::string> parts_of(std::string_view text, char between);

}  // namespace weft
