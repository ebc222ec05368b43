// qkv tokenize: text to token ids and back, with the tokenizer of a model's folder.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "command.h"
#include "core/check.h"
#include "io/shown.h"
#include "output.h"
#include "qkv/tokenizer.h"

namespace qkv::cli {
namespace {

using nlohmann::ordered_json;

struct TokenizeOptions {
  std::string path;
  std::vector<std::string> words;  // joined by spaces
  bool ids = false, json = false, json_lines = false, decode = false, count = false;
  bool no_special = false, keep_special = false;
  std::int64_t max_tokens = 0;
};

// The arguments, or all of standard input when there are none.
std::string given_text(const TokenizeOptions& options) {
  if (options.words.empty()) return read_input("the text");
  std::string text;
  for (const std::string& word : options.words) text += (text.empty() ? "" : " ") + word;
  return text;
}

EncodeOptions encode_options(const TokenizeOptions& options) {
  return {.special_tokens = !options.no_special, .max_tokens = options.max_tokens};
}

std::string joined(const std::vector<std::int64_t>& ids, const char* separator) {
  return fmt::format("{}", fmt::join(ids, separator));
}

std::vector<std::int64_t> parse_ids(const std::string& text) {
  std::vector<std::int64_t> ids;
  const char* at = text.c_str();
  const char* const end = at + text.size();
  while (true) {
    while (at < end && (std::isspace(static_cast<unsigned char>(*at)) != 0 || *at == ',' ||
                        *at == '[' || *at == ']')) {
      ++at;
    }
    if (at == end) return ids;
    char* after = nullptr;
    errno = 0;
    const long long id = std::strtoll(at, &after, 10);
    check(after != at && errno == 0, "'{}' is not a token id", shown_name(std::string(at, end)));
    ids.push_back(id);
    at = after;
  }
}

ordered_json report(const Tokenizer& tokenizer, const Encoding& encoding) {
  ordered_json tokens = ordered_json::array(), spans = ordered_json::array();
  for (std::size_t i = 0; i < encoding.ids.size(); ++i) {
    tokens.push_back(tokenizer.token(encoding.ids[i]));
    spans.push_back({encoding.spans[i].begin, encoding.spans[i].end});
  }
  return {{"tokenizer", tokenizer.kind()},
          {"ids", encoding.ids},
          {"tokens", std::move(tokens)},
          {"spans", std::move(spans)},
          {"special", encoding.is_special}};
}

// One token per line, with the part of the text it stands for where that reads differently.
void print_table(const Tokenizer& tokenizer, const Encoding& encoding, const std::string& text) {
  std::string lines;
  for (std::size_t i = 0; i < encoding.ids.size(); ++i) {
    const auto [begin, end] = encoding.spans[i];
    const std::string token = shown_name(tokenizer.token(encoding.ids[i]));
    const std::string source = shown_name(text.substr(begin, end - begin));
    lines += fmt::format("{:>8}  {}", encoding.ids[i], token);
    if (encoding.is_special[i] == 0 && source != token) lines += fmt::format("  ({})", source);
    lines += '\n';
  }
  write_output(lines);
  print_err("{} tokens by {}\n", encoding.ids.size(), tokenizer.kind());
}

// One JSON text per line in, one list of ids per line out. Lines go out as soon as nothing more is
// waiting to be read, so that a program at both ends of the pipe never waits for itself.
void run_json_lines(const Tokenizer& tokenizer, const TokenizeOptions& options) {
  std::string out;
  std::size_t number = 0;
  const auto flush = [&] { write_output(std::exchange(out, "")); };
  const auto encode_line = [&](std::string_view line) {
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) return;
    const auto text = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
    if (!text.is_string()) {
      flush();  // what came before was right
      fail("line {} is not a JSON text", number);
    }
    out +=
        '[' +
        joined(tokenizer.encode(text.get_ref<const std::string&>(), encode_options(options)), ",") +
        "]\n";
  };
  each_input_line(encode_line, flush);
}

void run_tokenize(const TokenizeOptions& options) {
  const Tokenizer tokenizer = Tokenizer::load(options.path);
  if (options.json_lines) return run_json_lines(tokenizer, options);
  const std::string text = given_text(options);
  if (options.decode) {
    write_output(tokenizer.decode(parse_ids(text), {.skip_special = !options.keep_special}) + '\n');
    return;
  }
  if (options.ids || options.count) {
    const auto ids = tokenizer.encode(text, encode_options(options));
    write_output(options.count ? fmt::format("{}\n", ids.size()) : joined(ids, " ") + '\n');
    return;
  }
  const Encoding encoding = tokenizer.encode_spans(text, encode_options(options));
  if (!options.json) return print_table(tokenizer, encoding, text);
  write_output(
      report(tokenizer, encoding).dump(-1, ' ', false, ordered_json::error_handler_t::replace) +
      '\n');
}

}  // namespace

void add_tokenize(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand("tokenize", "Show how a tokenizer cuts text into tokens");
  command->footer(examples("qkv tokenize path/to/gpt2 \"Who attends to whom?\"",
                           "qkv tokenize path/to/gpt2 --ids < book.txt"));
  const auto options = std::make_shared<TokenizeOptions>();
  command
      ->add_option("path", options->path,
                   "A folder with tokenizer.json or another tokenizer, or one of its files")
      ->required()
      ->type_name("FILE");
  command->add_option("text", options->words, "The text (default: standard input)");
  CLI::Option* ids = command->add_flag("--ids", options->ids, "Print the ids alone");
  CLI::Option* json =
      command->add_flag("--json", options->json, "Print one JSON object: ids, tokens, spans");
  CLI::Option* lines = command->add_flag(
      "--json-lines", options->json_lines,
      "Read one JSON text per line from standard input, print one JSON list of ids per line");
  CLI::Option* decode =
      command->add_flag("--decode", options->decode, "The text is ids: print what they say");
  CLI::Option* count = command->add_flag("--count", options->count, "Print how many tokens it has");
  for (CLI::Option* form : {ids, json, lines, decode, count}) {
    for (CLI::Option* other : {ids, json, lines, decode, count}) {
      if (form != other) form->excludes(other);
    }
  }
  command->add_flag("--no-special", options->no_special,
                    "Without the tokens the model wants around a text, such as [CLS] and </s>");
  command
      ->add_flag("--keep-special", options->keep_special,
                 "When decoding, show special tokens such as [CLS] and </s>")
      ->needs(decode);
  command->add_option("--max-tokens", options->max_tokens, "Cut the text to at most so many tokens")
      ->check(CLI::Range(0, 1 << 30));
  command->callback([&job, options] { job = [options] { run_tokenize(*options); }; });
}

}  // namespace qkv::cli
