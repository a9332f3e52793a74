#include "bench_client/token_source.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace weft::bench {
namespace {

constexpr size_t kEnoughWords = 64;
constexpr int kTries = 10;  // to find a text of the right length

const EncodeOptions kPlain{.add_special_tokens = false};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
/// A space and letters: what every pre-tokenizer keeps together, and apart from its neighbours.
bool is_word(std::string_view bytes) {
  return bytes.size() > 1 && bytes.front() == ' ' && std::all_of(bytes.begin() + 1, bytes.end(), is_letter);
}
bool is_ascii_text(std::string_view bytes) {
  return !bytes.empty() && std::all_of(bytes.begin(), bytes.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace

TokenSource::TokenSource(int32_t vocab_size) {
  if (vocab_size <= kFirstId)
    throw UserError("--random-vocab-size must be {} to {}: got {}", kFirstId + 1, std::numeric_limits<int32_t>::max(),
                    vocab_size);
  for (int32_t id = kFirstId; id < vocab_size; ++id) ids_.push_back(id);
}

TokenSource::TokenSource(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {
  std::vector<int32_t> others;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.is_special(id)) continue;
    const std::string_view bytes = tokenizer.token_bytes(id);
    if (is_word(bytes)) {
      ids_.push_back(id);
    } else if (is_ascii_text(bytes)) {
      others.push_back(id);
    }
  }
  if (ids_.size() < kEnoughWords) ids_.insert(ids_.end(), others.begin(), others.end());
  if (ids_.empty()) throw UserError("the tokenizer of --tokenizer has no tokens of ASCII text");
}

PromptPart TokenSource::draw(int64_t tokens, Dice dice) const {
  PromptPart out{.tokens = tokens};
  for (int64_t i = 0; i < tokens; ++i) out.ids.push_back(one(dice));
  if (!makes_text()) return out;
  out.text = text_of(std::move(out.ids), dice);
  out.ids.clear();
  return out;
}

/// A text of as many tokens as `ids` has, these if they stay what they are when they are text.
std::string TokenSource::text_of(std::vector<int32_t> ids, Dice& dice) const {
  const size_t wanted = ids.size();
  std::string text = tokenizer_->decode(ids);
  for (int i = 0; i < kTries; ++i) {
    ids = tokenizer_->encode(text, kPlain);
    if (ids.size() == wanted) break;
    const size_t had = ids.size();
    ids.resize(wanted);
    for (size_t at = had; at < wanted; ++at) ids[at] = one(dice);
    text = tokenizer_->decode(ids);
  }
  return text;
}

Turn TokenSource::of_text(std::string text, int64_t output_tokens) const {
  Turn out;
  if (makes_text()) out.input_tokens = static_cast<int64_t>(tokenizer_->encode(text, kPlain).size());
  out.output_tokens = output_tokens;
  out.text = std::move(text);
  return out;
}

Turn TokenSource::join(const std::vector<PromptPart>& parts, int64_t output_tokens, int64_t& inexact) const {
  Turn out{.output_tokens = output_tokens};
  for (const PromptPart& part : parts) {
    out.ids.insert(out.ids.end(), part.ids.begin(), part.ids.end());
    out.text += part.text;
    out.input_tokens += part.tokens;
  }
  if (!makes_text()) return out;
  const auto count = static_cast<int64_t>(tokenizer_->encode(out.text, kPlain).size());
  inexact += count == out.input_tokens ? 0 : 1;
  out.input_tokens = count;
  return out;
}

}  // namespace weft::bench
