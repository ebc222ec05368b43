// A model folder as the commands on text open it: the model, its tokenizer, and words that help
// when one of them is not what the command needs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "command.h"
#include "qkv/models/model.h"
#include "qkv/tokenizer.h"

namespace CLI {
class App;
}

namespace qkv::cli {

// What a model was made for, each the name of a command.
enum class Task : std::uint8_t { generate, encode, fill, classify };
std::string to_string(Task task);
Task task_of(const ModelInfo& info);

struct ModelOptions {
  std::string folder, dtype;

  void add_to(CLI::App& command);
  // The same with the folder as --model, for commands whose first argument is a text; without it
  // the folder stays empty, for default_model().
  void add_named_to(CLI::App& command);
};

// Error when the folder is not there, or holds a model that cannot do the task; it names the
// command that can.
std::unique_ptr<Model> open_model(const ModelOptions& options, Task task, const Common& common);
// Any model.
std::unique_ptr<Model> open_model(const ModelOptions& options, const Common& common);

// Error when the folder has no tokenizer, ending in the `remedy`.
Tokenizer open_tokenizer(const std::string& folder, const std::string& remedy);

// A sentencepiece file says nothing of the tokens around a text; the config does: what a decoder
// reads begins with bos, what an encoder reads ends with eos. Other tokenizers have added theirs,
// but what an encoder-decoder reads ends with eos in any case.
void frame(const Tokenizer& tokenizer, const ModelInfo& info, std::vector<std::int64_t>& ids);

}  // namespace qkv::cli
