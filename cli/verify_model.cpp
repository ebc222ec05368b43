#include "verify_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "qkv/autograd.h"
#include "qkv/checkpoint.h"
#include "qkv/generate.h"
#include "qkv/models/model.h"
#include "qkv/ops.h"

namespace qkv::cli {
namespace {

using Ids = std::vector<std::int64_t>;

// 16-bit weights are those of real models, whose sums are longer.
constexpr double kF32 = 1e-5, kReal = 1e-4, kBf16 = 3e-2, kInt8 = 1e-1;
constexpr double kGradient = 1e-4, kGradientFloor = 1e-8;
// In 16 bits, of whole tensors: what rounding leaves of T5's gradients, 0.16 and 0.05, whose relu
// it turns off here and there (of all others 0.035 and 0.008). The floor is for what vanishes but
// for rounding: a bias of keys moves no weight.
constexpr double kBf16Gradient = 2e-1, kF16Gradient = 6e-2, kNarrowGradientFloor = 3e-5;
constexpr std::size_t kBf16Tokens = 50;

std::vector<Ids> rows_of(const Tensor& ids) {
  const Ids all = to(ids, DType::i64).to_vector<std::int64_t>();
  std::vector<Ids> rows;
  for (std::int64_t b = 0; b < ids.size(0); ++b) {
    rows.emplace_back(all.begin() + b * ids.size(1), all.begin() + (b + 1) * ids.size(1));
  }
  return rows;
}

class Verification {
 public:
  Verification(const std::string& folder, std::optional<DType> dtype, Device device)
      : model_(load_model(folder, {.dtype = dtype, .device = device})),
        expected_(
            Checkpoint::open((std::filesystem::path(folder) / "expected.safetensors").string())) {
    for (const std::string& name : expected_.names()) left_.insert(name);
    bool is_real = !has("grad.") && !expected_.metadata().contains("torch");
    for (const nn::Parameter& p : nn::parameters(*model_)) {
      if (coarseness(p.value.dtype()) > coarseness(dtype_)) dtype_ = p.value.dtype();
      is_real |= !dtype && p.value.dtype() != DType::f32;
    }
    // Weights stored in f16 are what the reference was computed from, and multiplied in f32.
    narrow_ = dtype_ != DType::f32 && (dtype || dtype_ != DType::f16);
    tolerance_.relative = dtype_ == DType::i8 ? kInt8 : narrow_ ? kBf16 : is_real ? kReal : kF32;
  }

  VerifyReport run() {
    if (contains("in.input_ids")) {
      forward();
      if (contains("in.labels") && contains("out.loss")) gradients();
      generations();
    }
    for (int i = 0; contains(fmt::format("in.{}", i)); ++i) numbered(std::to_string(i));
    for (const std::string& name : left_) {
      if (!name.starts_with("in.")) report_.fail("not compared", name, "this key is not known");
    }
    return std::move(report_);
  }

 private:
  bool contains(const std::string& name) const { return expected_.contains(name); }
  bool has(const std::string& prefix) const {
    const std::vector<std::string> names = expected_.names();
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return name.starts_with(prefix); });
  }
  Tensor expect(const std::string& name) {
    left_.erase(name);
    return contains(name) ? expected_[name] : Tensor();
  }
  // How coarse a model with such parameters computes.
  static int coarseness(DType dtype) {
    switch (dtype) {
      case DType::i8: return 3;
      case DType::bf16: return 2;
      case DType::f16: return 1;
      default: return 0;
    }
  }

  void compare(const std::string& group, const std::string& name, const Tensor& got,
               const std::vector<char>& counts = {}) {
    if (contains(name)) report_.compare(group, name, got, expect(name), tolerance_, counts);
  }
  void compare_list(const std::string& group, const std::string& prefix,
                    const std::vector<Tensor>& got, const std::vector<char>& counts = {}) {
    for (std::size_t i = 0; i < got.size(); ++i) {
      compare(group, fmt::format("{}.{}", prefix, i), got[i], counts);
    }
  }

  ModelInput input() {
    ModelInput in;
    in.ids = expect("in.input_ids");
    in.mask = expect("in.attention_mask");
    in.token_types = expect("in.token_type_ids");
    in.global = expect("in.global_attention_mask");
    return in;
  }

  // 1 for each row [.., S] of tokens, `heads` times over per sequence.
  static std::vector<char> token_rows(const ModelInput& in, std::int64_t heads) {
    if (!in.mask.defined()) return {};
    const std::vector<bool> visible = to(in.mask, DType::boolean).to_vector<bool>();
    const std::int64_t length = in.mask.size(1);
    std::vector<char> rows;
    for (std::int64_t b = 0; b < in.mask.size(0); ++b) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t i = 0; i < length; ++i) rows.push_back(visible[b * length + i] ? 1 : 0);
      }
    }
    return rows;
  }

  void forward() {
    ModelInput in = input();
    const bool is_pair = model_->info().kind == ModelKind::encoder_decoder;
    if (is_pair && contains("in.labels"))
      in.decoder_ids = model_->decoder_inputs(expect("in.labels"));
    const bool wants_weights = has("out.attentions") || has("out.encoder_attentions");
    nn::Trace trace{.attentions = wants_weights}, encoder_trace{.attentions = wants_weights};
    const ModelOutput out =
        (*model_)(in, {.trace = &trace, .encoder_trace = is_pair ? &encoder_trace : nullptr});
    const std::vector<char> tokens = token_rows(in, 1);
    const std::vector<char> heads = token_rows(in, model_->info().heads);
    const bool per_token = out.logits.defined() && out.logits.rank() == 3 && !is_pair;
    compare("logits", "out.logits", out.logits, per_token ? tokens : std::vector<char>{});
    compare("last hidden state", "out.last_hidden_state", out.last_hidden,
            is_pair ? std::vector<char>{} : tokens);
    compare("pooled", "out.pooler_output", out.pooled);
    compare("last hidden state", "out.encoder_last_hidden_state", out.memory, tokens);
    compare_list("hidden states", "out.hidden_states", trace.hidden_states, tokens);
    compare_list("attention weights", "out.attentions", trace.attention_weights, heads);
    compare_list("hidden states", "out.encoder_hidden_states", encoder_trace.hidden_states, tokens);
    compare_list("attention weights", "out.encoder_attentions", encoder_trace.attention_weights,
                 heads);
    compare_list("hidden states", "out.decoder_hidden_states", trace.hidden_states);
    compare_list("attention weights", "out.decoder_attentions", trace.attention_weights);
    compare_list("attention weights", "out.cross_attentions", trace.cross_weights);
  }

  void gradients() {
    const ModelInput in = input();
    const Tensor labels = expect("in.labels");
    if (dtype_ == DType::i8) {  // has no gradients
      report_.compare("loss", "out.loss", model_->loss(in, labels), expect("out.loss"), tolerance_);
      std::erase_if(left_, [](const std::string& name) { return name.starts_with("grad."); });
      return;
    }
    Gradients grads;
    {
      Tape tape;
      const Tensor loss = model_->loss(in, labels);
      report_.compare("loss", "out.loss", loss, expect("out.loss"), tolerance_);
      grads = tape.backward(loss);
    }
    Tolerance allowed{kGradient, kGradientFloor};
    // Of f16, too: a gradient has the dtype of its parameter.
    if (dtype_ != DType::f32)
      allowed = {dtype_ == DType::bf16 ? kBf16Gradient : kF16Gradient, kNarrowGradientFloor, true};
    for (const nn::Parameter& p : nn::parameters(*model_)) {
      const std::string name = "grad." + p.name;
      if (!contains(name)) continue;
      const Tensor expected = expect(name);
      report_.compare("gradients", name, grads[p.value], expected, allowed);
    }
  }

  void compare_generated(const std::string& name, const Ids& got, const Ids& expected) {
    if (narrow_ && !name.starts_with("gen.greedy")) return;
    // Random weights make near ties: only trained models are held to tokens in 16 bits.
    if (narrow_ && has("grad.")) return;
    if (dtype_ == DType::i8) return;  // nor any in int8: after one near tie comes another text
    report_.compare_tokens(name, got, expected, narrow_ ? kBf16Tokens : 0);
  }

  void generations() {
    const bool is_pair = model_->info().kind == ModelKind::encoder_decoder;
    const Tensor greedy = expect("gen.greedy"), given = expect("gen.prompt");
    std::vector<Ids> prompts;
    if (given.defined()) {
      prompts = rows_of(given);
    } else if (is_pair) {
      prompts = {rows_of(expect("in.input_ids")).front()};
    } else if (greedy.defined()) {
      prompts = {{rows_of(greedy).front().front()}};
    }
    GenerateOptions options{.temperature = 0, .beams = 1};
    // Expected sequences run on past eos, except Marian's.
    const bool eos_ends = model_->info().family == "marian";
    if (!eos_ends) options.stop_ids = Ids{};
    const auto begin = [&](const Ids& prompt) {
      return is_pair ? Ids{model_->info().decoder_start_id} : prompt;
    };
    if (greedy.defined()) {
      const std::vector<Ids> rows = rows_of(greedy);
      options.max_new_tokens =
          greedy.size(1) - (is_pair ? 1 : static_cast<std::int64_t>(prompts.front().size()));
      const std::vector<Ids> got = generate(*model_, prompts, options);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        Ids whole = begin(prompts[i]);
        whole.insert(whole.end(), got[i].begin(), got[i].end());
        compare_generated(fmt::format("gen.greedy[{}]", i), whole, rows[i]);
      }
    }
    batch_generations(options);
    if (contains("gen.beam4")) {
      const Ids expected = rows_of(expect("gen.beam4")).front();
      options.beams = 4;
      options.max_new_tokens = 16;
      options.stop_ids.reset();
      if (model_->info().family == "gpt2") options.stop_ids = Ids{};
      Ids whole = begin(prompts.front());
      const Ids got = generate(*model_, {prompts.front()}, options).front();
      whole.insert(whole.end(), got.begin(), got.end());
      compare_generated("gen.beam4", whole, expected);
    }
  }

  void batch_generations(const GenerateOptions& like) {
    const Tensor padded = expect("gen.batch_prompt"), mask = expect("gen.batch_mask");
    const Tensor expected = expect("gen.batch_greedy");
    if (!padded.defined() || !mask.defined() || !expected.defined()) return;
    std::vector<Ids> prompts = rows_of(padded);
    const std::vector<Ids> visible = rows_of(mask);
    for (std::size_t b = 0; b < prompts.size(); ++b) {
      Ids kept;
      for (std::size_t i = 0; i < prompts[b].size(); ++i) {
        if (visible[b][i] != 0) kept.push_back(prompts[b][i]);
      }
      prompts[b] = kept;
    }
    GenerateOptions options = like;
    options.max_new_tokens = expected.size(1) - padded.size(1);
    const std::vector<Ids> got = generate(*model_, prompts, options);
    const std::vector<Ids> rows = rows_of(expected);
    for (std::size_t b = 0; b < rows.size(); ++b) {
      compare_generated(fmt::format("gen.batch_greedy[{}]", b), got[b],
                        Ids(rows[b].begin() + padded.size(1), rows[b].end()));
    }
  }

  // Real models with one input after the other: in.0, in.1, ...
  void numbered(const std::string& i) {
    ModelInput in;
    in.ids = expect("in." + i);
    if (model_->info().kind == ModelKind::encoder) {
      nn::Trace trace{.attentions = contains("out.attentions." + i)};
      const ModelOutput out = (*model_)(in, {.trace = &trace});
      compare("last hidden state", "out.last_hidden_state." + i, out.last_hidden);
      compare("embedding", "out.embedding." + i, mean_embedding(out.last_hidden));
      if (trace.attentions) {
        compare("attention weights", "out.attentions." + i, concat(trace.attention_weights, 0));
      }
      return;
    }
    const Tensor expected = expect("gen." + i);
    if (!expected.defined()) return;
    const Ids tokens = rows_of(expected).front();
    Ids whole{model_->info().decoder_start_id};
    const Ids got =
        generate(*model_, rows_of(in.ids), {.max_new_tokens = 40, .temperature = 0, .beams = 1})
            .front();
    whole.insert(whole.end(), got.begin(), got.end());
    compare_generated(narrow_ ? "gen.greedy." + i : "gen." + i, whole, tokens);
    in.decoder_ids = slice(expected, 1, 0, expected.size(1) - 1);
    compare("logits", "out.logits." + i, (*model_)(in).logits);
  }

  DType dtype_ = DType::f32;  // the coarsest of the parameters, as stored or as asked for
  bool narrow_ = false;       // whether weights or products were rounded that were not before
  std::unique_ptr<Model> model_;
  Checkpoint expected_;
  std::set<std::string> left_;  // keys not looked at yet
  Tolerance tolerance_;
  VerifyReport report_;
};

}  // namespace

VerifyReport verify_model(const std::string& folder, std::optional<DType> dtype, Device device) {
  return Verification(folder, dtype, device).run();
}

}  // namespace qkv::cli
