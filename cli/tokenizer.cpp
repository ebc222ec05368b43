// qkv tokenizer train: a vocabulary learnt from text files.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <memory>

#include "command.h"
#include "core/check.h"
#include "output.h"
#include "progress.h"
#include "qkv/tokenizer.h"

namespace qkv::cli {
namespace {

struct TrainOptions {
  std::string kind = "bpe", out;
  std::vector<std::string> files;
  TokenizerTraining training;
};

void run_train(const TrainOptions& options) {
  TokenizerTraining training = options.training;
  training.kind = options.kind == "bpe" ? TokenizerKind::byte_level_bpe : TokenizerKind::unigram;
  Progress progress("training");
  training.on_progress = [&](double done, const std::string&) {
    progress.update(static_cast<int>(std::lround(done * 1000)), 1000);
    return true;
  };
  const Tokenizer tokenizer = train_tokenizer(options.files, training);
  std::error_code error;
  std::filesystem::create_directories(options.out, error);
  check(!error, "{}: {}", options.out, error.message());
  const std::string path = (std::filesystem::path(options.out) / "tokenizer.json").string();
  tokenizer.save(path);
  print_out("{}: {}\n", path, tokenizer.kind());
}

}  // namespace

void add_tokenizer(CLI::App& app, Job& job) {
  CLI::App* group = app.add_subcommand("tokenizer", "Make tokenizers");
  group->require_subcommand(1);
  CLI::App* command = group->add_subcommand("train", "Learn a vocabulary from text files");
  command->footer(examples("qkv tokenizer train --size 8000 --out my-tokenizer book.txt",
                           "qkv tokenizer train --kind unigram --size 8000 --out t *.txt"));
  const auto options = std::make_shared<TrainOptions>();
  command->add_option("--kind", options->kind, "bpe (byte-level) or unigram")
      ->check(CLI::IsMember({"bpe", "unigram"}))
      ->capture_default_str();
  command->add_option("--size", options->training.size, "Tokens to arrive at")
      ->capture_default_str();
  command
      ->add_option("--min-frequency", options->training.min_frequency,
                   "Of a pair to merge, or of a piece")
      ->capture_default_str();
  command
      ->add_option("--special", options->training.special_tokens,
                   "Special tokens, which get the first ids (default: <|endoftext|>; for unigram "
                   "<pad>,</s>,<unk>)")
      ->delimiter(',');
  command->add_option("--out", options->out, "Folder for tokenizer.json")
      ->required()
      ->type_name("DIR");
  command->add_option("files", options->files, "Text files")->required()->type_name("FILE");
  command->callback([&job, options] { job = [options] { run_train(*options); }; });
}

}  // namespace qkv::cli
