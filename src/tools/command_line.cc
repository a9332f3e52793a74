#include "tools/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "tools/bench_settings.h"
#include "tools/unsupported_flags.h"

namespace weft {
namespace {

struct Command {
  std::string name, summary;
  std::string positional = {};  ///< "MODEL", or ""
  bool takes_engine_flags = false;
  std::vector<Option> options = {};
};

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {
      {.name = "generate",
       .summary = "Continue a prompt of token ids, greedily.",
       .positional = "MODEL",
       .takes_engine_flags = true,
       .options = {{.name = "prompt-ids", .value = "5,6,7", .help = "The prompt.", .required = true},
                   {.name = "max-tokens", .value = "N", .help = "Tokens to generate; 16 if not given."},
                   {.name = "json", .value = "", .help = "The result as JSON."}}},
      {.name = "eval",
       .summary = "Run a file of prompts, and write logits and tokens as safetensors.",
       .positional = "MODEL",
       .takes_engine_flags = true,
       .options = {{.name = "prompts", .value = "IN.json", .help = "The prompts; docs/eval.md says how.", .required = true},
                   {.name = "out", .value = "OUT.safetensors", .help = "The results.", .required = true}}},
      {.name = "serve",
       .summary = "Answer OpenAI completion requests over HTTP.",
       .positional = "MODEL",
       .takes_engine_flags = true,
       .options =
           {{.name = "model", .value = "MODEL", .help = "The same as the MODEL without a flag."},
            {.name = "host", .value = "ADDRESS", .help = "To listen on; 127.0.0.1 if not given. 0.0.0.0 is every network."},
            {.name = "port", .value = "N", .help = "8000 if not given; with 0 the system chooses, and it is printed."},
            {.name = "served-model-name",
             .value = "NAME,...",
             .help = "Names of the model in requests; its folder if not given."},
            {.name = "api-key",
             .value = "KEY,...",
             .help = "Only requests with one of these keys are answered. Also WEFT_API_KEY."},
            {.name = "api-key-file", .value = "FILE", .help = "The same, a key in each line."},
            {.name = "admin-api-key",
             .value = "KEY,...",
             .help = "Keys that may also administer, e.g. POST /reset_prefix_cache. Also WEFT_ADMIN_API_KEY."},
            {.name = "chat-template",
             .value = "FILE",
             .help = "Jinja template of chats instead of the model's, or deepseek-v3.2: the encoding of that model."},
            {.name = "reasoning-parser",
             .value = "NAME",
             .help = "think: chats tell thoughts between <think> and </think> apart, as reasoning_content; none if not given."},
            {.name = "open-metrics", .value = "", .help = "/metrics needs no key."},
            {.name = "allowed-origins", .value = "ORIGIN,...", .help = "Web pages that may ask; * if not given."},
            {.name = "max-body-size", .value = "BYTES", .help = "Of a request, also as 64M, which it is if not given."},
            {.name = "max-connections", .value = "N", .help = "Open at once; 16384 if not given."},
            {.name = "shutdown-timeout",
             .value = "SECONDS",
             .help = "For running requests to end after SIGTERM; 10 if not given."},
            {.name = "disable-log-requests", .value = "", .help = "No log line for each request."},
            {.name = "log-level", .value = "LEVEL", .help = "debug, info, warning or error; info if not given."}}},
      {.name = "bench serve",
       .summary = "Load a server, this one or another of the same API, and report how fast it answers.",
       .options = bench_serve_options()},
      {.name = "inspect",
       .summary = "Sizes and limits of a model under these flags, from its config.json alone.",
       .positional = "MODEL",
       .takes_engine_flags = true,
       .options = {{.name = "json", .value = "", .help = "As JSON."}}},
      {.name = "replay",
       .summary = "Run the steps of a flight file again, and find the first that gives something else.",
       .positional = "FILE",
       .options = {{.name = "quiet", .value = "", .help = "No line for each step."}}},
      {.name = "flags",
       .summary = "The engine flags.",
       .options = {{.name = "markdown", .value = "", .help = "As docs/flags.md."}}},
      {.name = "version", .summary = "The version."},
      {.name = "help", .summary = "This text, or the help of a command.", .positional = "COMMAND"},
  };
  return all;
}

const Command* find_command(const std::string& name) {
  const auto it = std::find_if(commands().begin(), commands().end(), [&](const Command& c) { return c.name == name; });
  return it == commands().end() ? nullptr : &*it;
}

/// "bench serve" is one command in two words; `bench` alone asks for its help.
std::vector<std::string> with_joined_words(std::vector<std::string> words) {
  const size_t at = !words.empty() && words.front() == "help" ? 1 : 0;
  if (words.size() <= at || words[at] != "bench") return words;
  if (words.size() == at + 1) words.emplace_back(at == 0 ? "--help" : "serve");
  const auto second = words.begin() + static_cast<std::ptrdiff_t>(at) + 1;
  if (*second == "--help" || *second == "-h") {
    words[at] = "bench serve";
  } else {
    words[at] += " " + *second;
    words.erase(second);
  }
  return words;
}

[[noreturn]] void refuse_command(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& command : commands()) names.push_back(command.name);
  const std::string near = closest(name, names);
  throw UserError("unknown command {}: {}one of {}", name, near.empty() ? "" : "did you mean " + near + "? It must be ",
                  fmt::join(names, ", "));
}

/// `argument` is left over after everything known was taken.
[[noreturn]] void refuse_argument(const Command& command, const std::string& argument) {
  if (!argument.starts_with('-')) throw UserError("weft {}: unexpected argument {}", command.name, argument);
  std::vector<std::string> known = {"--help"};
  for (const Option& option : command.options) known.push_back("--" + option.name);
  if (command.takes_engine_flags) {
    for (const Flag& flag : engine_flags()) {
      known.push_back("--" + flag.name);
      if (!flag.short_name.empty()) known.push_back("-" + flag.short_name);
      for (const std::string& alias : flag.aliases) known.push_back("--" + alias);
      if (flag.kind == Flag::Kind::boolean) known.push_back("--no-" + flag.name);
    }
  }
  const std::string spelling = argument.substr(0, argument.find('='));
  if (const std::string why = why_unsupported(spelling); !why.empty())
    throw UserError("weft {}: {} is {}", command.name, spelling, why);
  const std::string near = closest(spelling, known);
  throw UserError("weft {}: unknown flag {}{}", command.name, spelling, near.empty() ? "" : "; did you mean " + near + "?");
}

}  // namespace

Invocation parse_command_line(const std::vector<std::string>& given_arguments, const Environment& environment,
                              const std::vector<std::string>& variables) {
  const std::vector<std::string> arguments = with_joined_words(given_arguments);
  if (arguments.empty() || arguments.front() == "--help" || arguments.front() == "-h") return {.command = "help"};
  if (arguments.front() == "--version") return {.command = "version"};
  const Command* command = find_command(arguments.front());
  if (command == nullptr) refuse_command(arguments.front());

  std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  if (std::find(rest.begin(), rest.end(), "--help") != rest.end() || std::find(rest.begin(), rest.end(), "-h") != rest.end())
    return {.command = "help", .about = command->name};
  if (command->takes_engine_flags || command->name == "bench serve") rest = plain_arguments(rest);

  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  std::string positional;
  if (!command->positional.empty()) app.add_option(command->positional, positional);
  std::map<std::string, std::string> values;
  std::map<std::string, std::vector<std::string>> lists;
  std::map<std::string, bool> switches;
  for (const Option& option : command->options) {
    if (option.value.empty()) {
      app.add_flag("--" + option.name, switches[option.name]);
    } else if (option.several) {
      app.add_option("--" + option.name, lists[option.name]);
    } else {
      app.add_option("--" + option.name, values[option.name])->take_last();
    }
  }
  std::map<std::string, std::string> engine_values;
  if (command->takes_engine_flags)
    for (const Flag& flag : engine_flags()) app.add_option("--" + flag.name, engine_values[flag.name])->take_last();
  try {
    std::reverse(rest.begin(), rest.end());  // CLI11 takes arguments from the back
    app.parse(rest);
  } catch (const CLI::ParseError& error) {
    throw UserError("weft {}: {}", command->name, error.what());
  }
  if (!app.remaining().empty()) refuse_argument(*command, app.remaining().front());

  Invocation out{.command = command->name};
  for (const Option& option : command->options) {
    if (app.count("--" + option.name) > 0) {
      out.options[option.name] = option.value.empty() ? "" : values[option.name];
      if (option.several)
        out.options[option.name] = fmt::format("{}", fmt::join(lists[option.name], std::string(1, kBetweenValues)));
    } else if (option.required) {
      throw UserError("weft {} needs --{} {}", command->name, option.name, option.value);
    }
  }
  if (command->takes_engine_flags) {
    if (positional.empty() && out.has("model")) positional = out["model"];
    if (positional.empty())
      throw UserError("weft {} needs a {}: a folder with config.json", command->name, command->positional);
    std::vector<std::pair<const Flag*, std::string>> given;
    for (const Flag& flag : engine_flags())
      if (app.count("--" + flag.name) > 0) given.emplace_back(&flag, engine_values[flag.name]);
    refuse_misspelt_variables(variables);
    out.engine = engine_config(given, environment);
    out.engine.model_dir = positional;
  } else if (command->name == "help") {
    if (!positional.empty() && find_command(positional) == nullptr) refuse_command(positional);
    out.about = positional;
  } else if (!command->positional.empty()) {
    if (positional.empty()) throw UserError("weft {} needs a {}", command->name, command->positional);
    out.file = positional;
  }
  return out;
}

std::string help_text(const std::string& name) {
  const Command* command = find_command(name);
  if (command == nullptr) {
    std::string out = "weft: long-context inference with the KV cache of every sequence woven across ranks\n\nusage:\n";
    for (const Command& c : commands())
      out += fmt::format("  weft {:26}{}\n",
                         c.name + (c.positional.empty() ? "" : " " + c.positional) + (c.takes_engine_flags ? " [flags]" : ""),
                         c.summary);
    return out +
           "\n`weft COMMAND --help` lists its flags. Exit status: 0 done, 1 the machine failed, 2 what was asked for cannot be "
           "done.\n";
  }
  std::string usage = "usage: weft " + command->name, options;
  if (!command->positional.empty()) usage += " " + command->positional;
  for (const Option& option : command->options) {
    const std::string text = "--" + option.name + (option.value.empty() ? "" : " " + option.value);
    if (option.required) usage += " " + text;
    options += fmt::format("  {:34}{}\n", text, option.help);
  }
  if (command->takes_engine_flags || !command->options.empty()) usage += " [flags]";
  std::string out = usage + "\n" + command->summary + "\n";
  if (!options.empty()) out += "\n" + options;
  return command->takes_engine_flags ? out + "\nEngine flags, as: values. [default] (environment variable)\n" + flags_help()
                                     : out;
}

}  // namespace weft
