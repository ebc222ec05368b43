#include "text/load.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "io/file.h"
#include "text/json_pipeline.h"
#include "text/sentencepiece_pipeline.h"
#include "text/settings.h"
#include "text/utf8.h"

namespace qkv::text {
namespace {

namespace fs = std::filesystem;
using PipelinePtr = std::shared_ptr<const Tokenizer::Pipeline>;

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// The lines of a text file, without their ends.
std::vector<std::string> read_lines(const std::string& path) {
  const std::string text = read_file(path, kLargestFile);
  check(is_valid_utf8(text), "{}: not UTF-8", path);
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.pop_back();
    lines.push_back(std::move(line));
    at = end + 1;
  }
  return lines;
}

PipelinePtr load_json(const std::string& path) {
  return std::make_shared<JsonPipeline>(TokenizerFile::read(path));
}

PipelinePtr load_sentencepiece(const std::string& path) {
  return std::make_shared<SentencePiecePipeline>(SentencePieceModel::read(path));
}

PipelinePtr load_bpe(const std::string& vocab_path, const std::string& merges_path) {
  // vocab.json is what tokenizer.json has as model.vocab: let the same reader read it.
  const std::string vocab = read_file(vocab_path, kLargestFile);
  TokenizerFile read = TokenizerFile::parse(R"({"model":{"vocab":)" + vocab + "}}", vocab_path);
  check(!read.vocabulary.empty() && !read.vocabulary_is_list, "{}: expected tokens with their ids",
        vocab_path);
  TokenizerFile file = TokenizerFile::from_settings(gpt2_settings(read.vocabulary), vocab_path);
  file.vocabulary = std::move(read.vocabulary);
  file.has_merges = true;
  for (const std::string& line : read_lines(merges_path)) {
    if (line.starts_with("#version") || line.empty()) continue;
    const std::size_t space = line.find(' ');
    check(space != std::string::npos && line.find(' ', space + 1) == std::string::npos,
          "{}: merge {} is not two tokens with a space between", merges_path, file.merges.size());
    file.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return std::make_shared<JsonPipeline>(std::move(file));
}

PipelinePtr load_wordpiece(const std::string& path) {
  std::vector<TokenizerFile::Entry> vocabulary;
  for (std::string& line : read_lines(path)) {
    line.erase(line.find_last_not_of(" \t") + 1);
    vocabulary.push_back({std::move(line), static_cast<TokenId>(vocabulary.size()), 0});
    check(vocabulary.size() <= kLargestId, "{}: more than {} lines", path, kLargestId);
  }
  TokenizerFile file = TokenizerFile::from_settings(bert_settings(vocabulary), path);
  file.vocabulary = std::move(vocabulary);
  return std::make_shared<JsonPipeline>(std::move(file));
}

PipelinePtr load_folder(const fs::path& folder) {
  const auto file = [&](const char* name) { return (folder / name).string(); };
  if (is_file(folder / "tokenizer.json")) return load_json(file("tokenizer.json"));
  for (const char* name : {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
                           "source.spm", "vocab.joint.spm"}) {
    if (is_file(folder / name)) return load_sentencepiece(file(name));
  }
  if (is_file(folder / "vocab.json") && is_file(folder / "merges.txt")) {
    return load_bpe(file("vocab.json"), file("merges.txt"));
  }
  if (is_file(folder / "vocab.txt")) return load_wordpiece(file("vocab.txt"));
  fail(
      "{}: no tokenizer in this folder; looked for tokenizer.json, tokenizer.model, spiece.model, "
      "vocab.json with merges.txt, and vocab.txt",
      folder.string());
}

}  // namespace

PipelinePtr load_pipeline(const std::string& path) {
  const fs::path file(path);
  std::error_code ignored;
  if (fs::is_directory(file, ignored)) return load_folder(file);
  const std::string extension = file.extension().string();
  const std::string name = file.filename().string();
  if (extension == ".model" || extension == ".spm") return load_sentencepiece(path);
  if (name == "vocab.json" || name == "merges.txt") {
    return load_bpe((file.parent_path() / "vocab.json").string(),
                    (file.parent_path() / "merges.txt").string());
  }
  if (extension == ".txt") return load_wordpiece(path);
  return load_json(path);
}

}  // namespace qkv::text
