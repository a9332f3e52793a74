#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace weft {

/// A pattern of tokenizer.json. Those are written for Oniguruma; here they run on PCRE2, after a translation that knows where
/// the two differ and refuses what it does not know. Characters are classed by Unicode 14: see newer_characters.h.
///
/// Immutable: any number of threads may use one object, each with a Scratch of its own.
class Regex {
 public:
  /// Throws UserError; `what` says whose pattern it is.
  Regex(std::string_view pattern, std::string_view what);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  /// What a search needs to write to.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class Regex;
    struct Memory;
    std::unique_ptr<Memory> memory_;
  };
  struct Match {
    size_t begin, end;
  };
  /// The first match that begins at or after `from`. The beginning of `text` counts as the beginning whatever `from` is. Throws
  /// UserError if the search takes unreasonably many steps. Requires: valid UTF-8 of at most 1 GiB, `from` between characters.
  std::optional<Match> find(std::string_view text, size_t from, Scratch& scratch) const;

 private:
  struct Program;
  std::unique_ptr<Program> program_;
};

/// Oniguruma's notation to PCRE2's. Throws UserError for what may mean something else there.
std::string translated_regex(std::string_view pattern, std::string_view what);

/// A pattern that matches `text` and nothing else.
std::string literal_regex(std::string_view text);

}  // namespace weft
