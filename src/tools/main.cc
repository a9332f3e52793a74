#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "tools/command_line.h"
#include "tools/commands.h"

namespace {

constexpr int kFailed = 1, kRefused = 2;

/// The names of this process's variables that begin with WEFT_.
std::vector<std::string> weft_variables() {
  std::vector<std::string> names;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (text.starts_with("WEFT_")) names.emplace_back(text.substr(0, text.find('=')));
  }
  return names;
}

void run(const weft::Invocation& invocation) {
  const std::string& command = invocation.command;
  if (command == "generate") return weft::run_generate(invocation);
  if (command == "eval") return weft::run_eval(invocation);
  if (command == "inspect") return weft::run_inspect(invocation);
  const std::string text = command == "version"         ? "weft " WEFT_VERSION "\n"
                           : command == "help"          ? weft::help_text(invocation.about)
                           : invocation.has("markdown") ? weft::flags_markdown()
                                                        : weft::flags_help();
  std::fputs(text.c_str(), stdout);
}

}  // namespace

int main(int argc, char** argv) {
  weft::log::start();
  try {
    run(weft::parse_command_line(
        std::vector<std::string>(argv + 1, argv + argc), [](const char* name) { return std::getenv(name); }, weft_variables()));
    // A full disk shows here at the latest: results that nobody got are no success.
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw weft::SystemError("cannot write to standard output");
    return 0;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "weft: out of host memory\n");
    return kFailed;
  } catch (const weft::UserError& error) {
    std::fprintf(stderr, "weft: %s\n", error.what());
    return kRefused;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weft: %s\n", error.what());
    return kFailed;
  }
}
