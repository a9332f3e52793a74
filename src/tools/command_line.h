#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "tools/flags.h"

namespace weft {

/// A flag of one command.
struct Option {
  std::string name;
  std::string value;  ///< placeholder, "" for a switch
  std::string help;
  bool required = false;
  bool several = false;  ///< takes all values that follow
};
/// Between the values of an option that takes several.
constexpr char kBetweenValues = '\n';

/// What the user asks `weft` to do.
struct Invocation {
  std::string command;              ///< one of those that `weft help` lists
  std::string about = {};           ///< help: of this command, "" for all
  std::filesystem::path file = {};  ///< replay: the flight
  EngineConfig engine = {};
  std::map<std::string, std::string> options = {};  ///< the command's own, by name; a switch that is given holds ""
  Engine::MakeRanks make_ranks = {};                ///< for the engine, where a run has several processes

  bool needs_engine() const { return command == "generate" || command == "eval" || command == "serve"; }
  bool has(const std::string& option) const { return options.contains(option); }
  const std::string& operator[](const std::string& option) const { return options.at(option); }
};

/// Reads a command line, program name not included. Throws UserError for what it cannot read: names the argument, and what was
/// probably meant. `variables` are the names of all environment variables that begin with WEFT_, so that a misspelt one is no
/// setting that silently does nothing.
Invocation parse_command_line(const std::vector<std::string>& arguments, const Environment& environment,
                              const std::vector<std::string>& variables = {});

/// What `weft help` and `weft COMMAND --help` print.
std::string help_text(const std::string& command);

}  // namespace weft
