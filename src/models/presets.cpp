#include "models/presets.h"

#include <array>
#include <utility>

#include "qkv/models/model.h"

namespace qkv {
namespace {

constexpr std::array<std::pair<const char*, const char*>, 8> kPresets{{
    {"bert-base", R"({"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 768,
 "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072, "hidden_act": "gelu",
 "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2,
 "layer_norm_eps": 1e-12, "pad_token_id": 0})"},
    {"bert-large", R"({"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 1024,
 "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096, "hidden_act": "gelu",
 "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2,
 "layer_norm_eps": 1e-12, "pad_token_id": 0})"},
    {"minilm-l6", R"({"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 384,
 "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536, "hidden_act": "gelu",
 "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2,
 "layer_norm_eps": 1e-12, "pad_token_id": 0})"},
    {"gpt2", R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 768,
 "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257,
 "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "bos_token_id": 50256,
 "eos_token_id": 50256, "tie_word_embeddings": true, "resid_pdrop": 0, "embd_pdrop": 0,
 "attn_pdrop": 0})"},
    {"gpt2-medium", R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 1024,
 "n_layer": 24, "n_head": 16, "n_positions": 1024, "vocab_size": 50257,
 "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "bos_token_id": 50256,
 "eos_token_id": 50256, "tie_word_embeddings": true, "resid_pdrop": 0, "embd_pdrop": 0,
 "attn_pdrop": 0})"},
    {"llama-1b", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
 "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
 "head_dim": 64, "intermediate_size": 8192, "hidden_act": "silu", "vocab_size": 128256,
 "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
 "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
 "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
 "tie_word_embeddings": true, "bos_token_id": 128000, "eos_token_id": 128001})"},
    {"t5-small", R"({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"],
 "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "vocab_size": 32128,
 "feed_forward_proj": "relu", "relative_attention_num_buckets": 32, "layer_norm_epsilon": 1e-06,
 "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1})"},
    {"transformer-base", R"({"model_type": "marian", "architectures": ["MarianMTModel"],
 "d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 8,
 "decoder_attention_heads": 8, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048,
 "activation_function": "relu", "max_position_embeddings": 512, "vocab_size": 32000,
 "scale_embedding": true, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1})"},
}};

}  // namespace

std::string preset_config(const std::string& name) {
  for (const auto& [known, config] : kPresets) {
    if (name == known) return config;
  }
  return {};
}

std::vector<std::string> model_presets() {
  std::vector<std::string> names;
  for (const auto& [name, config] : kPresets) names.emplace_back(name);
  return names;
}

}  // namespace qkv
