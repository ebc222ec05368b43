// Text to token ids and back, as the checkpoint's own tokenizer does it:
//
//   auto tokenizer = qkv::Tokenizer::load("path/to/gpt2");
//   std::vector<std::int64_t> ids = tokenizer.encode("Who attends to whom?");
//   std::string text = tokenizer.decode(ids);
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace qkv {

// Bytes [begin, end) of the UTF-8 text a token stands for; empty for tokens that were added.
struct TokenSpan {
  std::size_t begin = 0, end = 0;
  friend bool operator==(const TokenSpan&, const TokenSpan&) = default;
};

struct Encoding {
  std::vector<std::int64_t> ids{};
  std::vector<TokenSpan> spans{};          // of the text each id came from
  std::vector<std::int64_t> type_ids{};    // 0, and 1 in the second text of a pair
  std::vector<std::uint8_t> is_special{};  // 1: added by the template ([CLS], </s>)
};

struct EncodeOptions {
  bool special_tokens = true;   // what the template adds: [CLS] ... [SEP], ... </s>
  std::int64_t max_tokens = 0;  // 0: no limit; else text is cut on the right, template kept
};

struct DecodeOptions {
  bool skip_special = true;
  // Pass over ids from size() on, which a model makes whose vocabulary was padded; else an Error.
  bool skip_out_of_range = false;
};

// Immutable once made, cheap to copy, and used from any number of threads. Text is UTF-8; what is
// not valid in it counts as U+FFFD. Ids below size() that stand for nothing are passed over by
// decode. Work and memory of a call are in proportion to what it is given: a tokenizer that wants
// more of a text (docs/tokenizers.md has the limits) is an Error.
class Tokenizer {
 public:
  // A folder with tokenizer.json, tokenizer.model, spiece.model (or another sentencepiece model),
  // vocab.json and merges.txt, or vocab.txt, looked for in this order; or one of these files.
  static Tokenizer load(const std::string& path);

  std::vector<std::int64_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  Encoding encode_spans(std::string_view text, const EncodeOptions& options = {}) const;
  Encoding encode_pair(std::string_view first, std::string_view second,
                       const EncodeOptions& options = {}) const;
  std::string decode(std::span<const std::int64_t> ids, const DecodeOptions& options = {}) const;

  std::int64_t size() const;  // ids are 0 .. size() - 1, though some may stand for nothing
  std::optional<std::int64_t> id(std::string_view token) const;
  std::string token(std::int64_t id) const;  // as the vocabulary spells it; Error when out of range
  bool is_special(std::int64_t id) const;
  std::optional<std::int64_t> mask_id() const, pad_id() const, unknown_id() const;
  std::string kind() const;  // "byte-level BPE, 50257 tokens"

  // Writes a tokenizer.json, which load and the Hugging Face library read back.
  void save(const std::string& path) const;

  struct Pipeline;  // what it is made of: src/text
  const Pipeline& pipeline() const { return *pipeline_; }
  explicit Tokenizer(std::shared_ptr<const Pipeline> pipeline) : pipeline_(std::move(pipeline)) {}

 private:
  std::shared_ptr<const Pipeline> pipeline_;
};

// Decodes ids as they arrive, for one thread at a time: each push returns the text that became
// certain, never half of a character, and all returned pieces together are what decode would have
// said. Ids from size() on are passed over, whatever the options say.
class DecodeStream {
 public:
  explicit DecodeStream(Tokenizer tokenizer, const DecodeOptions& options = {});
  std::string push(std::int64_t id);
  std::string finish();  // what was held back

 private:
  void shorten(std::string_view text);

  Tokenizer tokenizer_;
  DecodeOptions options_;
  std::vector<std::int64_t> ids_;  // the last few, as many as what follows may depend on
  std::size_t told_ = 0;           // bytes of their text already returned
};

enum class TokenizerKind : std::uint8_t { byte_level_bpe, unigram };

struct TokenizerTraining {
  TokenizerKind kind = TokenizerKind::byte_level_bpe;
  std::int64_t size = 8000;                   // tokens to arrive at, special ones included
  std::vector<std::string> special_tokens{};  // get the first ids; empty: the kind's usual ones
  std::int64_t min_frequency = 2;             // of a pair or a piece
  // Called now and then with how far it is, 0 to 1, and what it does; false stops with an Error.
  std::function<bool(double done, const std::string& what)> on_progress{};
};
// Learns a vocabulary from text files, read line by line; the same files give the same tokenizer.
Tokenizer train_tokenizer(const std::vector<std::string>& files, const TokenizerTraining& training);

}  // namespace qkv
