// Whole Transformers. A folder as Hugging Face writes it becomes a Model:
//
//   auto model = qkv::load_model("path/to/gpt2");
//   qkv::Tensor logits = (*model)({.ids = ids}).logits;
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "qkv/models/generation_config.h"
#include "qkv/nn.h"
#include "qkv/tensor.h"

namespace qkv {

enum class ModelKind : std::uint8_t { encoder, decoder, encoder_decoder };
std::string to_string(ModelKind kind);

// What the config says that callers need to know.
struct ModelInfo {
  std::string family;        // model_type: "bert", "gpt2", "llama", ...
  std::string architecture;  // "BertForMaskedLM", ...
  ModelKind kind = ModelKind::encoder;
  std::int64_t vocabulary = 0, hidden = 0, layers = 0, heads = 0;
  std::int64_t max_positions = 0;     // 0: no limit
  std::int64_t classes = 0;           // of a classifier
  std::vector<std::string> labels{};  // what the classes are called, where id2label says so
  bool multi_label = false;           // several classes may hold at once: sigmoid, not softmax
  bool regression = false;            // its logits are numbers, not scores of classes
  std::int64_t pad_id = -1, bos_id = -1, decoder_start_id = -1;
  std::vector<std::int64_t> eos_ids;
  GenerationConfig generation{};  // what the checkpoint says about it; not of encoders
  // Of a model that reads and writes characters: id i stands for symbols[i], "" for nothing. From
  // grapheme_chars and phoneme_chars of the config; empty where a tokenizer is needed.
  std::vector<std::string> input_symbols{}, output_symbols{};
};

struct ModelInput {
  Tensor ids{};          // i32 or i64 [B, S]
  Tensor mask{};         // [B, S], any dtype: 0 = padding; absent = all are tokens
  Tensor token_types{};  // BERT: which of two texts, [B, S]
  Tensor global{};       // Longformer: 1 = sees and is seen by all, [B, S]; a classifier's first if
                         // undefined
  Tensor decoder_ids{};  // encoder-decoders: [B, T]
  Tensor memory{};       // encoder-decoders: the encoder's output, to skip the encoder
};

// How to run, as opposed to on what.
struct ModelContext {
  nn::KvCache* cache = nullptr;  // decoders: ids are what follows what the cache has seen
  nn::Trace* trace = nullptr;    // of the only stack, or of the decoder
  nn::Trace* encoder_trace = nullptr;
  nn::Training* training = nullptr;  // a training pass: drops out; see Training
  bool last_logits_only = false;     // logits of the last position, [B, 1, V]
};

// Undefined where the model has no such thing.
struct ModelOutput {
  Tensor logits;       // [B, S, V], or [B, classes]
  Tensor last_hidden;  // [B, S, hidden], after the final norm
  Tensor pooled;       // [B, hidden]: BERT's pooler
  Tensor memory;       // [B, S, hidden]: the encoder's output of an encoder-decoder
};

// Any number of threads may run one model, generate and look with it, each with a context (cache,
// trace, training) of its own. Changing it (visit, tie, an optimiser's step, save_model) is up to
// one thread alone.
class Model : public nn::Module {
 public:
  virtual ModelOutput operator()(const ModelInput& input,
                                 const ModelContext& context = {}) const = 0;
  // Makes tensors that stand for one another the same tensor. Called after parameters were set.
  virtual void tie() {}

  // The mean cross entropy of `labels` (-100 = ignored). Decoders predict label[t + 1] from t;
  // encoder-decoders get labels shifted right behind decoder_start_id as decoder_ids; classifiers
  // take labels [B], and those of regression or of several labels have no loss here: Error.
  Tensor loss(const ModelInput& input, const Tensor& labels, const ModelContext& context = {},
              const CrossEntropyOptions& options = {}) const;

  // Of an encoder-decoder: labels shifted right behind decoder_start_id, padding where ignored.
  Tensor decoder_inputs(const Tensor& labels) const;

  const ModelInfo& info() const { return info_; }
  const std::string& config_text() const { return config_text_; }

 protected:
  ModelInfo info_;

 private:
  friend struct ModelAccess;
  std::string config_text_, generation_text_;  // of config.json, of generation_config.json
};

struct LoadOptions {
  // Converts every weight; absent = as stored. 16-bit floating weights are multiplied as they are:
  // f16 in f32 precision, bf16 by the machine's bf16 instructions. i8 makes the matrices and tables
  // int8 (docs/int8.md) and everything else f32.
  std::optional<DType> dtype{};
  std::int64_t group = 0;  // of i8: so many inputs share a scale, 32, 64, 128; 0 = all of a row
  // Copies the weights into memory, so that an optimiser may change them. Else they stay mapped.
  bool writable = false;
  // Where the weights go, and with them all that the model computes.
  Device device{};
  // Called after each tensor.
  std::function<void(int done, int total)> progress{};
};
// Reads config.json and model.safetensors (or the shards of model.safetensors.index.json) of a
// folder, and generation_config.json, where there is one. Everything
// missing, unexpected or of the wrong shape is listed in one Error.
std::unique_ptr<Model> load_model(const std::string& folder, const LoadOptions& options = {});
// A model of this config.json (a path, its text, or one of model_presets()) with random weights,
// uniform: to measure with. Before training, nn::initialize draws better ones.
std::unique_ptr<Model> make_model(const std::string& config, std::uint64_t seed = 0,
                                  DType dtype = DType::f32, std::int64_t group = 0);
std::vector<std::string> model_presets();
// Writes config.json, model.safetensors and, where it was loaded with one, generation_config.json,
// which load_model and transformers read back (int8 weights load_model alone).
void save_model(Model& model, const std::string& folder);

// The mean of hidden states over the tokens that are not padding, each row of unit length: what
// sentence encoders return. hidden [B, S, D] -> [B, D].
Tensor mean_embedding(const Tensor& hidden, const Tensor& mask = {});

}  // namespace qkv
