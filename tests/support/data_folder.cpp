#include "support/data_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <sstream>

namespace qkv::testing {

std::string DataFolder::write(const std::string& name, const std::string& content) const {
  std::ofstream(path(name), std::ios::binary) << content;
  return path(name);
}

std::string DataFolder::read(const std::string& name) const {
  std::stringstream content;
  content << std::ifstream(path(name), std::ios::binary).rdbuf();
  return content.str();
}

Tokenizer DataFolder::tokenizer(bool with_template) const {
  std::string words = with_template ? "[PAD]\n[SEP]\n[UNK]\n[MASK]\n[CLS]\n"
                                    : "[PAD]\n</s>\n[UNK]\n[MASK]\n>>x<<\n";
  for (char letter = 'a'; letter <= 'z'; ++letter) words += {letter, '\n'};
  return Tokenizer::load(write("vocab.txt", words));
}

std::string DataFolder::pairs(const std::string& name, int count, int longest) const {
  std::uint32_t state = 1;
  const auto below = [&state](int bound) {
    state = state * 1664525U + 1013904223U;
    return static_cast<int>((state >> 8) % static_cast<std::uint32_t>(bound));
  };
  const auto text = [&](int number) {
    std::string words;
    for (int digits = 0; digits < 3; ++digits, number /= 26) {
      words += {static_cast<char>('a' + number % 26), ' '};
    }
    for (int more = below(longest - 2); more > 0; --more) {
      words += {static_cast<char>('a' + below(26)), ' '};
    }
    words.pop_back();
    return words;
  };
  std::string content;
  for (int i = 0; i < count; ++i) {
    const std::string target = text(i), source = text(i);  // in an order: both draw
    content += source + '\t' + target + '\n';
  }
  return write(name, content);
}

ModelInfo model_info(ModelKind kind) {
  ModelInfo info;
  info.family = "none";
  info.architecture = "None";
  info.kind = kind;
  info.vocabulary = 31;
  info.max_positions = 64;
  info.pad_id = info.decoder_start_id = 0;
  info.eos_ids = {1};
  return info;
}

ModelInfo classifier_info() {
  ModelInfo info = model_info(ModelKind::encoder);
  info.classes = 3;
  info.labels = {"bad", "good", "fine"};
  info.eos_ids.clear();
  return info;
}

std::string shown(const Batch& batch) {
  std::string text = fmt::format("{} {} {} {}", batch.tokens, batch.read, batch.examples,
                                 batch.labels.to_vector<std::int64_t>());
  for (const Tensor* tensor : {&batch.input.ids, &batch.input.decoder_ids}) {
    if (tensor->defined()) text += fmt::format(" {}", tensor->to_vector<std::int64_t>());
  }
  if (batch.input.mask.defined()) {
    text += fmt::format(" {}", batch.input.mask.to_vector<std::uint8_t>());
  }
  return text + '\n';
}

std::string shown(const Dataset& data, std::int64_t epoch) {
  std::string text;
  for (std::int64_t b = 0; b < data.batches(epoch); ++b) text += shown(data.batch({epoch, b}));
  return text;
}

std::vector<Ids> rows_of(const Tensor& tensor) {
  const Ids all = tensor.to_vector<std::int64_t>();
  std::vector<Ids> rows;
  for (std::int64_t b = 0; b < tensor.size(0); ++b) {
    rows.emplace_back(all.begin() + b * tensor.size(1), all.begin() + (b + 1) * tensor.size(1));
  }
  return rows;
}

}  // namespace qkv::testing
