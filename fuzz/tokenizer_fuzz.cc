// Whatever a tokenizer.json holds, it is refused with a UserError or tokenizes. Whatever a text holds, its tokens give it back,
// and the pieces of a streamed answer are the answer.

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/small_tokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

using weft::Tokenizer;

/// Gives all text back: it neither normalizes nor drops.
const Tokenizer& faithful() {
  static const auto one = [] {
    const std::vector<std::pair<std::string, std::string>> merges = {{"a", "b"},       {"ab", "ab"},     {" ", " "},
                                                                     {"\xF0", "\x9F"}, {"\x98", "\x80"}, {"\n", "\n"}};
    nlohmann::json file = weft::test::with_stages(
        weft::test::small_tokenizer_json(merges),
        {weft::test::split(
            R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{M}]*[\p{Ll}\p{Lo}\p{M}]+(?i:'s|'t)?|\p{N}{1,3}|\s*[\r\n]+|\s+(?!\S)|\s+)")});
    file["added_tokens"] = {weft::test::added_token(300, "<s>", {{"special", true}}), weft::test::added_token(301, "<ab>")};
    return weft::test::tokenizer_of(file);
  }();
  return *one;
}

/// The same with spaces as marks, and bytes of what is no character of the vocabulary.
const Tokenizer& faithful_marks() {
  const std::string mark = weft::test::kMark;
  static const auto one = weft::test::tokenizer_of(weft::test::marked_tokenizer_json(
      {"a", "b", "\n"}, {{"a", "b"}, {mark, "ab"}, {mark, mark}, {"b", mark}, {"\n", "\n"}, {"ab", "ab"}}));
  return *one;
}

std::string streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, const weft::DetokenizerOptions& options) {
  weft::Detokenizer detokenizer(tokenizer, options);
  std::string text;
  for (const int32_t id : ids) {
    const std::string piece = detokenizer.append(id);
    if (weft::valid_utf8_prefix(piece) != piece.size()) std::abort();
    text += piece;
  }
  return text + detokenizer.finish();
}

std::vector<int32_t> check(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<int32_t> ids = tokenizer.encode(text);
  const auto count = static_cast<int64_t>(ids.size()), bytes = static_cast<int64_t>(text.size());
  if (count < tokenizer.least_tokens(bytes) || count > tokenizer.most_tokens(bytes)) std::abort();
  for (const int32_t id : ids) {
    if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
  }
  if (streamed(tokenizer, ids, {.skip_special = false}) != tokenizer.decode_further(ids, false)) std::abort();
  return ids;
}

void check_faithful(std::string_view text, std::string_view stop) {
  const std::vector<int32_t> ids = check(faithful(), text);
  if (faithful().decode(ids, false) != text) std::abort();
  // The mark itself comes back as a space.
  if (text.find(weft::test::kMark) == text.npos && text.find('<') == text.npos &&
      faithful_marks().decode(check(faithful_marks(), text), false) != text)
    std::abort();
  if (stop.empty()) return;
  const std::string cut = streamed(faithful(), ids, {.skip_special = false, .stops = {std::string(stop)}});
  if (cut != text.substr(0, text.find(stop))) std::abort();
}

}  // namespace

/// A tokenizer.json, a zero byte, a text; or, where there is no "{", a stop string, a zero byte, a text for a fixed tokenizer.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = std::min(input.find('\0'), size);
  const std::string_view head = input.substr(0, zero), text = input.substr(std::min(zero + 1, size));
  try {
    if (head.starts_with("{")) {
      check(*Tokenizer::parse(head), text);
    } else {
      check_faithful(text, head);
    }
  } catch (const weft::UserError&) {
  }
  return 0;
}
