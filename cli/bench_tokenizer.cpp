// qkv bench tokenizer: how fast a tokenizer reads a text, on one thread.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "command.h"
#include "core/check.h"
#include "io/file.h"
#include "output.h"
#include "qkv/tokenizer.h"

namespace qkv::cli {
namespace {

struct TokenizerBench {
  std::string path, file;
  bool whole = false, json = false;
  int repeat = 5;
};

// Of this process, which has one thread: what others do on the machine does not count.
double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

void run_tokenizer_bench(const TokenizerBench& bench) {
  const double start = processor_seconds();
  const Tokenizer tokenizer = Tokenizer::load(bench.path);
  const double load = processor_seconds() - start;
  const std::string text = read_file(bench.file, std::uint64_t{1} << 30);
  const auto texts = bench.whole ? std::vector<std::string_view>{text} : lines_of(text);
  std::vector<double> seconds;
  std::size_t tokens = 0;
  for (int run = 0; run < bench.repeat; ++run) {
    const double begin = processor_seconds();
    tokens = 0;
    for (const std::string_view part : texts) {
      tokens += tokenizer.encode(part, {.special_tokens = false}).size();
    }
    seconds.push_back(processor_seconds() - begin);
  }
  const double best = *std::ranges::min_element(seconds);
  if (bench.json) {
    const nlohmann::ordered_json report = {{"tokenizer", tokenizer.kind()}, {"bytes", text.size()},
                                           {"texts", texts.size()},         {"tokens", tokens},
                                           {"load_seconds", load},          {"seconds", seconds}};
    write_output(report.dump() + "\n");
    return;
  }
  print_out("{}: loaded in {:.1f} ms; {} tokens of {} bytes in {:.1f} ms, {:.1f} MB/s\n",
            tokenizer.kind(), load * 1e3, tokens, text.size(), best * 1e3,
            static_cast<double>(text.size()) / best / 1e6);
}

}  // namespace

void add_bench_tokenizer(CLI::App& bench, Job& job) {
  CLI::App* command =
      bench.add_subcommand("tokenizer", "Time a tokenizer on a text file, on one thread");
  command->footer(examples("qkv bench tokenizer path/to/gpt2 book.txt",
                           "qkv bench tokenizer path/to/gpt2 book.txt --whole --json"));
  const auto options = std::make_shared<TokenizerBench>();
  command->add_option("path", options->path, "A tokenizer's folder or file")
      ->required()
      ->type_name("FILE");
  command->add_option("file", options->file, "A text file; each line is a text")
      ->required()
      ->type_name("FILE");
  command->add_flag("--whole", options->whole, "The file is one text");
  command->add_option("--repeat", options->repeat, "Runs; the fastest counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print one JSON object instead of text");
  command->callback([&job, options] { job = [options] { run_tokenizer_bench(*options); }; });
}

}  // namespace qkv::cli
