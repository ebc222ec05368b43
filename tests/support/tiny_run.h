// A run small enough for a test: a tokenizer, a few hundred pairs, and a config for each task.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "qkv/tokenizer.h"
#include "qkv/train.h"
#include "support/temporary_folder.h"

namespace qkv::test {

class TinyRun {
 public:
  TinyRun() {
    std::ofstream pairs(file("pairs.tsv"));
    std::ofstream text(file("text.txt"));
    const char* const numbers[] = {"zero", "one", "two",   "three", "four",
                                   "five", "six", "seven", "eight", "nine"};
    for (int i = 0; i < 300; ++i) {
      std::string words, digits;
      for (int n = i * 7919 % 1000 + 1; n > 0; n /= 10) {
        words += (words.empty() ? "" : " ") + std::string(numbers[n % 10]);
        digits += (digits.empty() ? "" : " ") + std::to_string(n % 10);
      }
      pairs << words << '\t' << digits << '\n';
      text << words << " is " << digits << ".\n";
    }
    pairs.close();
    text.close();
    train_tokenizer({file("text.txt"), file("pairs.tsv")},
                    {.kind = TokenizerKind::unigram, .size = 60})
        .save(file("tokenizer.json"));
  }

  std::string file(const std::string& name) const { return folder_.path() + "/" + name; }

  TrainConfig config(Task task) const {
    TrainConfig c;
    c.tokenizer = file("tokenizer.json");
    c.data.task = task;
    c.data.batch_tokens = 400;
    c.data.block = 24;
    c.seed = 3;
    c.steps = 12;
    c.log_every = 4;
    c.save_every = 1000;
    c.evaluate_every = 1000;
    c.optimizer.lr = 3e-3;
    c.optimizer.clip_norm = 1;
    c.schedule = {.kind = ScheduleKind::inverse_sqrt, .warmup = 4};
    if (task == Task::sequence_to_sequence) {
      c.data.files = {{file("pairs.tsv")}};
      c.model_config = R"({"model_type": "marian", "d_model": 32, "encoder_layers": 2,
        "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
        "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
        "activation_function": "relu", "scale_embedding": true, "dropout": 0.1})";
    } else {
      c.data.files = {{file("text.txt")}};
      c.model_config = R"({"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2,
        "n_positions": 64, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1})";
    }
    return c;
  }

 private:
  testing::TemporaryFolder folder_;
};

}  // namespace qkv::test
