// qkv perplexity: how well a decoder predicts a text, and what rounding its weights costs.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "core/check.h"
#include "io/file.h"
#include "io/json_texts.h"
#include "output.h"
#include "progress.h"
#include "qkv/models/perplexity.h"
#include "qkv/tokenizer.h"

namespace qkv::cli {
namespace {

struct PerplexityCommand {
  Common common;
  std::string folder, file, dtype, kv_dtype;
  std::int64_t group = 0, window = 0, tokens = 0;
};

using Ids = std::vector<std::int64_t>;

// The list of texts in a .json, or the one text that any other file is.
std::vector<std::string> texts_of(const std::string& file) {
  constexpr std::uint64_t kLargest = std::uint64_t{1} << 30;
  std::string text = read_file(file, kLargest);
  if (file.ends_with(".json")) return parse_json_texts(text, file);
  return {std::move(text)};
}

// At most `limit` tokens in all (0: no limit), and no text without any.
std::vector<Ids> ids_of(const std::vector<std::string>& texts, const Tokenizer& tokenizer,
                        std::int64_t limit) {
  std::vector<Ids> all;
  std::size_t left = limit > 0 ? static_cast<std::size_t>(limit) : std::string::npos;
  for (const std::string& text : texts) {
    Ids ids = tokenizer.encode(text, {.special_tokens = false});
    ids.resize(std::min(ids.size(), left));
    left -= ids.size();
    if (!ids.empty()) all.push_back(std::move(ids));
  }
  check(!all.empty(), "perplexity: there is no text to read");
  return all;
}

Perplexity perplexity_of(const Model& model, const Ids& ids, PerplexityOptions options) {
  Progress progress("reading");
  options.progress = [&](std::int64_t done, std::int64_t total) {
    progress.update(static_cast<int>(done), static_cast<int>(total));
  };
  return perplexity(model, ids, options);
}

// Each text by itself; every token counts the same.
Perplexity perplexity_of(const Model& model, const std::vector<Ids>& texts,
                         const PerplexityOptions& options) {
  Progress progress("reading");
  Perplexity all;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const Perplexity one = perplexity(model, texts[i], options);
    all.loss += one.loss * static_cast<double>(one.tokens);
    all.tokens += one.tokens;
    progress.update(static_cast<int>(i + 1), static_cast<int>(texts.size()));
  }
  all.loss /= static_cast<double>(all.tokens);
  return all;
}

void run_perplexity(const PerplexityCommand& o) {
  o.common.apply();
  const Tokenizer tokenizer = Tokenizer::load(o.folder);
  LoadOptions load{.group = o.group};
  if (!o.dtype.empty()) load.dtype = dtype_from_string(o.dtype);
  const std::unique_ptr<Model> model = load_model(o.folder, load);
  const auto ids = ids_of(texts_of(o.file), tokenizer, o.tokens);
  PerplexityOptions options{.window = o.window};
  if (!o.kv_dtype.empty()) options.kv_dtype = dtype_from_string(o.kv_dtype);
  const Perplexity found = ids.size() == 1 ? perplexity_of(*model, ids[0], options)
                                           : perplexity_of(*model, ids, options);
  if (o.common.json) {
    print_json({{"model", o.folder},
                {"file", o.file},
                {"dtype", o.dtype.empty() ? "as stored" : o.dtype},
                {"group", o.group},
                {"kv_dtype", o.kv_dtype.empty() ? "none" : o.kv_dtype},
                {"tokens", found.tokens},
                {"loss", found.loss},
                {"perplexity", found.value()}});
  } else {
    print_out("perplexity {:.4f} (loss {:.5f}) over {} tokens\n", found.value(), found.loss,
              found.tokens);
  }
}

}  // namespace

void add_perplexity(CLI::App& app, Job& job) {
  CLI::App* command =
      app.add_subcommand("perplexity", "How well a decoder predicts a text: exp(mean loss)");
  command->footer(examples("qkv perplexity path/to/model text.txt",
                           "qkv perplexity path/to/model stories.json --dtype i8 --json"));
  const auto o = std::make_shared<PerplexityCommand>();
  o->common.add_to(*command);
  command->add_option("model", o->folder, "A model folder with its tokenizer")
      ->required()
      ->type_name("DIR");
  command->add_option("file", o->file, "A text, or a .json that is a list of texts")
      ->required()
      ->type_name("FILE");
  command->add_option("--dtype", o->dtype, "Convert the weights first: f32, bf16, f16 or i8")
      ->check(CLI::IsMember({"f32", "bf16", "f16", "i8"}));
  command->add_option("--group", o->group, "With i8: inputs that share a scale; 0 = all of a row")
      ->check(CLI::IsMember({0, 32, 64, 128}))
      ->capture_default_str();
  command->add_option("--kv-dtype", o->kv_dtype, "Keys and values as in a cache of bf16 or i8")
      ->check(CLI::IsMember({"bf16", "i8"}));
  command->add_option("--window", o->window, "Tokens read at once (default: the model's positions)")
      ->check(CLI::Range(2, 1 << 20));
  command->add_option("--tokens", o->tokens, "Read at most so many")->check(CLI::Range(1, 1 << 30));
  command->callback([&job, o] { job = [o] { run_perplexity(*o); }; });
}

}  // namespace qkv::cli
