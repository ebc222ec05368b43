// qkv perplexity: how well a decoder predicts a text, and what rounding its weights costs.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "core/check.h"
#include "io/file.h"
#include "progress.h"
#include "qkv/models/perplexity.h"
#include "qkv/tokenizer.h"

namespace qkv::cli {
namespace {

struct PerplexityCommand {
  Common common;
  std::string folder, file, dtype, kv_dtype;
  std::int64_t group = 32, window = 0, tokens = 0;
};

void run_perplexity(const PerplexityCommand& o) {
  constexpr std::uint64_t kLargest = std::uint64_t{1} << 30;
  o.common.apply();
  const Tokenizer tokenizer = Tokenizer::load(o.folder);
  LoadOptions load{.group = o.group};
  if (!o.dtype.empty()) load.dtype = dtype_from_string(o.dtype);
  const std::unique_ptr<Model> model = load_model(o.folder, load);
  std::vector<std::int64_t> ids =
      tokenizer.encode(read_file(o.file, kLargest), {.special_tokens = false});
  if (o.tokens > 0 && ids.size() > static_cast<std::size_t>(o.tokens)) {
    ids.resize(static_cast<std::size_t>(o.tokens));
  }
  PerplexityOptions options{.window = o.window};
  if (!o.kv_dtype.empty()) options.kv_dtype = dtype_from_string(o.kv_dtype);
  Progress progress("reading");
  options.progress = [&](std::int64_t done, std::int64_t total) {
    progress.update(static_cast<int>(done), static_cast<int>(total));
  };
  const Perplexity found = perplexity(*model, ids, options);
  if (o.common.json) {
    fmt::print("{}\n",
               nlohmann::ordered_json{{"model", o.folder},
                                      {"file", o.file},
                                      {"dtype", o.dtype.empty() ? "as stored" : o.dtype},
                                      {"group", o.group},
                                      {"kv_dtype", o.kv_dtype.empty() ? "none" : o.kv_dtype},
                                      {"tokens", found.tokens},
                                      {"loss", found.loss},
                                      {"perplexity", found.value()}}
                   .dump(2));
  } else {
    fmt::print("perplexity {:.4f} (loss {:.5f}) over {} tokens\n", found.value(), found.loss,
               found.tokens);
  }
}

}  // namespace

void add_perplexity(CLI::App& app, Job& job) {
  CLI::App* command =
      app.add_subcommand("perplexity", "How well a decoder predicts a text: exp(mean loss)");
  command->footer(examples("qkv perplexity path/to/model text.txt",
                           "qkv perplexity path/to/model text.txt --dtype i8 --group 64 --json"));
  const auto o = std::make_shared<PerplexityCommand>();
  o->common.add_to(*command);
  command->add_option("model", o->folder, "A model folder with its tokenizer")
      ->required()
      ->type_name("DIR");
  command->add_option("file", o->file, "A text")->required()->type_name("FILE");
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
