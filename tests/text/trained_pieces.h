#pragma once

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace weft::test {

/// Sentences of words in several scripts, always the same, for models to be trained on.
inline std::vector<std::string> training_sentences(int count) {
  const std::vector<std::string> words = {
      "the",    "of",       "and",   "water", "house",  "houses", "housing", "tokenizer", "tokens", "low",   "lower", "lowest",
      "new",    "newer",    "wide",  "wider", "können", "über",   "größe",   "été",       "garçon", "città", "вода",  "дома",
      "домой",  "νερό",     "σπίτι", "水",    "東京",   "日本語", "の",      "これは",    "한국어", "집",    "123",   "2024",
      "x = y;", "if (a) {", "}",     "--",    "...",    "aaa",    "aaaa",    "\t",        "don't",  "I'm",   "e.g.",  "HTTP"};
  std::mt19937 random(7);
  std::vector<std::string> sentences;
  for (int i = 0; i < count; ++i) {
    std::string sentence;
    for (int n = 0; n < 12; ++n) sentence += words[random() % words.size()] + (random() % 9 == 0 ? "  " : " ");
    sentences.push_back(sentence);
  }
  return sentences;
}

/// A SentencePiece model, serialized, trained on these sentences with flags of its trainer such as "--model_type=bpe".
inline std::string trained_pieces(const std::string& flags,
                                  const std::vector<std::string>& sentences = training_sentences(400)) {
  class Sentences : public sentencepiece::SentenceIterator {
   public:
    explicit Sentences(const std::vector<std::string>& all) : all_(all) {}
    bool done() const override { return at_ == all_.size(); }
    void Next() override { ++at_; }
    const std::string& value() const override { return all_[at_]; }
    sentencepiece::util::Status status() const override { return {}; }

   private:
    const std::vector<std::string>& all_;
    size_t at_ = 0;
  };
  Sentences iterator(sentences);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      "--minloglevel=2 --num_threads=1 --hard_vocab_limit=false --character_coverage=1.0 " + flags, &iterator, &model);
  EXPECT_TRUE(status.ok()) << flags << ": " << status.error_message();
  return model;
}

}  // namespace weft::test
