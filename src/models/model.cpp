// The table of families, and what every model shares: loss, loading, saving.
#include "qkv/models/model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "core/check.h"
#include "io/shown.h"
#include "models/family.h"
#include "models/generation_config.h"
#include "models/load.h"

namespace qkv {
namespace {

struct Family {
  const char* type;
  std::unique_ptr<Model> (*make)(const ModelSource&);
  const char* architecture;             // when the config names none
  std::array<const char*, 3> others{};  // "*End": every name that ends so
};

// The heads of encoders.
constexpr std::array<const char*, 3> kHeads{"*ForMaskedLM", "*ForPreTraining",
                                            "*ForSequenceClassification"};

// Adding a model is a line here.
constexpr std::array<Family, 12> kFamilies{{
    {"bert", make_bert, "BertModel", kHeads},
    {"roberta", make_bert, "RobertaModel", kHeads},
    {"distilbert", make_bert, "DistilBertModel", kHeads},
    {"longformer", make_bert, "LongformerModel", kHeads},
    {"gpt2", make_gpt2, "GPT2LMHeadModel", {"GPT2Model", "*LMHeadModel"}},
    {"llama", make_llama, "LlamaForCausalLM", {"LlamaModel", "*ForCausalLM"}},
    {"mistral", make_llama, "MistralForCausalLM", {"MistralModel", "*ForCausalLM"}},
    {"qwen3", make_llama, "Qwen3ForCausalLM", {"Qwen3Model", "*ForCausalLM"}},
    {"gemma2", make_llama, "Gemma2ForCausalLM", {"Gemma2Model", "*ForCausalLM"}},
    {"bart", make_bart, "BartForConditionalGeneration"},
    {"marian", make_bart, "MarianMTModel"},
    {"t5", make_t5, "T5ForConditionalGeneration", {"T5Model", "T5WithLMHeadModel"}},
}};

bool is_named(const std::string& architecture, std::string_view name) {
  return name.starts_with('*') ? architecture.ends_with(name.substr(1)) : architecture == name;
}

// What is not known would be known by its tensors only, as names that do not fit.
void check_architecture(const Family& family, const ModelSource& source) {
  const Config& c = source.config;
  check(!c.flag_or("add_cross_attention", false),
        "{}: a {} with cross-attention is not supported; of encoder-decoders there are bart, "
        "marian and t5",
        c.where("add_cross_attention"), family.type);
  if (is_named(source.architecture, family.architecture)) return;
  std::string known = family.architecture;
  for (const char* name : family.others) {
    if (name == nullptr) break;
    if (is_named(source.architecture, name)) return;
    known += fmt::format(", {}", name);
  }
  fail("{}: {} is not supported; of {} there are {}", c.where("architectures"),
       shown_name(source.architecture), family.type, known);
}

// Layers say what is wrong with what they were asked for, but not which file asked.
std::unique_ptr<Model> build(const Family& family, const ModelSource& source) {
  try {
    return family.make(source);
  } catch (const OutOfMemory&) {
    throw;  // nothing is wrong with the file
  } catch (const Error& error) {
    const std::string message = error.what();
    const auto names = [&](const Config& file) {
      return message.find(file.name() + ": ") != std::string::npos;
    };
    if (names(source.config) || (source.generation && names(*source.generation))) throw;
    throw Error(source.config.name() + ": " + message);
  }
}

// A regression of one number is told by how many there are, unless problem_type says otherwise.
bool is_regression(const Config& c, std::int64_t classes) {
  return c.text_or("problem_type", classes == 1 ? "regression" : "") == "regression";
}

// Other losses than that of one class of several would be wrong numbers, not errors.
void check_classes(const ModelInfo& info, const Tensor& labels) {
  const bool is_class = labels.dtype() == DType::i64 || labels.dtype() == DType::i32;
  check(is_class && !info.regression && !info.multi_label,
        "{}: the loss of a classifier is that of labels i32 or i64 [B], one class of several, got "
        "{} {} with num_labels {}{}; regression and several labels at once (problem_type) are not "
        "supported",
        info.family, labels.dtype(), labels.shape(), info.classes,
        info.regression    ? ", a regression"
        : info.multi_label ? ", several at once"
                           : "");
}

// "0": "negative", "1": "positive"; a class the config forgot is called by its number.
std::vector<std::string> labels_of(const Config& names, std::int64_t classes) {
  std::vector<std::string> labels;
  for (std::int64_t i = 0; i < classes; ++i) {
    labels.push_back(names.text_or(std::to_string(i), std::to_string(i)));
  }
  return labels;
}

// The characters of a UTF-8 text. An underscore keeps a place that is no character.
std::vector<std::string> symbols_of(const std::string& text) {
  std::vector<std::string> symbols;
  for (const char byte : text) {
    const bool continues = (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
    if (!continues || symbols.empty()) symbols.emplace_back();
    symbols.back() += byte;
  }
  std::replace(symbols.begin(), symbols.end(), std::string("_"), std::string());
  return symbols;
}

}  // namespace

std::string to_string(ModelKind kind) {
  switch (kind) {
    case ModelKind::encoder: return "encoder";
    case ModelKind::decoder: return "decoder";
    default: return "encoder-decoder";
  }
}

ModelInfo ModelSource::info(ModelKind kind) const {
  const Config& c = config;
  ModelInfo info;
  info.family = c.text("model_type");
  info.architecture = architecture;
  info.kind = kind;
  info.vocabulary = c.integer("vocab_size", 1, kMaxVocabulary);
  const auto first = [&](std::initializer_list<const char*> keys, std::int64_t max) {
    for (const char* key : keys) {
      if (c.has(key)) return c.integer(key, 1, max);
    }
    return std::int64_t{0};
  };
  info.hidden = first({"hidden_size", "dim", "d_model", "n_embd"}, kMaxWidth);
  info.layers = first({"num_hidden_layers", "n_layers", "n_layer", "encoder_layers"}, kMaxLayers);
  info.heads = first({"num_attention_heads", "n_heads", "n_head"}, kMaxHeads);
  info.pad_id = c.integer_or("pad_token_id", -1, -1, kMaxVocabulary);
  info.bos_id = c.integer_or("bos_token_id", -1, -1, kMaxVocabulary);
  info.decoder_start_id = c.integer_or("decoder_start_token_id", -1, -1, kMaxVocabulary);
  if (c.has("eos_token_id")) info.eos_ids = c.integers("eos_token_id", 0, kMaxVocabulary);
  if (c.has("id2label")) {
    const Config names = c.object("id2label");
    info.classes = static_cast<std::int64_t>(names.keys().size());
    info.labels = labels_of(names, info.classes);
  }
  info.classes = c.integer_or("num_labels", info.classes, 0, kMaxVocabulary);
  info.multi_label = c.text_or("problem_type", "") == "multi_label_classification";
  info.regression = is_regression(c, info.classes);
  if (kind != ModelKind::encoder) info.generation = read_generation_config(generation, c, info);
  info.input_symbols = symbols_of(c.text_or("grapheme_chars", ""));
  info.output_symbols = symbols_of(c.text_or("phoneme_chars", ""));
  return info;
}

ModelInfo ModelSource::sized_info(ModelKind kind) const {
  const ModelInfo result = info(kind);
  check(result.hidden > 0, "{} is missing", config.where("hidden_size"));
  check(result.layers > 0, "{} is missing", config.where("num_hidden_layers"));
  check(result.heads > 0, "{} is missing", config.where("num_attention_heads"));
  return result;
}

std::unique_ptr<Model> make_family(ModelSource source) {
  const std::string type = source.config.text("model_type");
  std::string known;
  for (const Family& family : kFamilies) {
    if (type == family.type) {
      const std::vector<std::string> names = source.config.texts("architectures");
      source.architecture = names.empty() ? family.architecture : names.front();
      check_architecture(family, source);
      return build(family, source);
    }
    known += (known.empty() ? "" : ", ") + std::string(family.type);
  }
  fail("{} '{}' is not supported; there are {}", source.config.where("model_type"), type, known);
}

Tensor Model::decoder_inputs(const Tensor& labels) const {
  check(info_.decoder_start_id >= 0, "{}: config.json has no decoder_start_token_id", info_.family);
  const std::int64_t batch = labels.size(0), length = labels.size(1);
  std::vector<std::int64_t> ids = to(labels, DType::i64).to_vector<std::int64_t>();
  for (std::int64_t b = 0; b < batch; ++b) {
    const auto row = ids.begin() + b * length;
    std::rotate(row, row + length - 1, row + length);
    *row = info_.decoder_start_id;
  }
  std::replace(ids.begin(), ids.end(), std::int64_t{-100}, std::max<std::int64_t>(info_.pad_id, 0));
  return Tensor::from(ids, {batch, length});
}

Tensor Model::loss(const ModelInput& input, const Tensor& labels, const ModelContext& context,
                   const CrossEntropyOptions& options) const {
  check(labels.defined(), "{}: labels are undefined", info_.family);
  const auto logits_of = [&](const ModelInput& given) {
    const Tensor logits = (*this)(given, context).logits;
    check(logits.defined(), "loss: a {} has no head to predict with", info_.architecture);
    return logits;
  };
  if (info_.kind == ModelKind::decoder) {
    const Tensor logits = logits_of(input);
    const std::int64_t length = logits.size(1);
    check(labels.shape() == input.ids.shape(), "{}: labels {} must have the shape of ids {}",
          info_.family, labels.shape(), input.ids.shape());
    // Each position is asked for the next label. The logits stay whole: they are the larger part.
    const Tensor none = Tensor::full({labels.size(0), 1}, static_cast<double>(options.ignore_index),
                                     {labels.dtype(), labels.device()});
    return cross_entropy(logits, concat({slice(labels, 1, 1, length), none}, 1), options);
  }
  if (info_.kind == ModelKind::encoder) {
    const Tensor logits = logits_of(input);
    if (logits.rank() == 2) check_classes(info_, labels);
    return cross_entropy(logits, labels, options);
  }
  ModelInput shifted = input;
  shifted.decoder_ids = decoder_inputs(labels);
  return cross_entropy(logits_of(shifted), labels, options);
}

Tensor mean_embedding(const Tensor& hidden, const Tensor& mask) {
  check(hidden.defined() && hidden.rank() == 3, "mean_embedding: hidden must be [B, S, D], got {}",
        hidden.shape());
  const std::int64_t batch = hidden.size(0), length = hidden.size(1), width = hidden.size(2);
  Tensor total;
  if (mask.defined()) {
    check(mask.rank() == 2 && mask.size(0) == batch && mask.size(1) == length,
          "mean_embedding: mask must be [{}, {}], got {}", batch, length, mask.shape());
    const Tensor visible = to(to(to(mask, DType::boolean), DType::f32), hidden.device());
    total = sum(mul(hidden, reshape(visible, {batch, length, 1})), {1});
  } else {
    total = sum(hidden, {1});
  }
  // The length cancels out: mean / |mean| = sum / |sum|, which is an RMS norm over sqrt(width).
  return scale(rms_norm(total, {}, 1e-24), 1 / std::sqrt(static_cast<double>(width)));
}

}  // namespace qkv
