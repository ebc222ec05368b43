// qkv bleu: how close translations are to their references.
#include <fmt/format.h>

#include <memory>

#include "command.h"
#include "core/check.h"
#include "io/file.h"
#include "output.h"
#include "qkv/bleu.h"

namespace qkv::cli {
namespace {

struct BleuCommand {
  std::string hypotheses, tokenizer = "13a";
  std::vector<std::string> references;
  bool lowercase = false, unsmoothed = false, json = false;
};

std::vector<std::string> read_lines(const std::string& path) {
  constexpr std::uint64_t kLargest = std::uint64_t{1} << 30;
  if (path == "-") return read_input_lines("translations");
  return lines_of_text(read_file(path, kLargest));
}

void print_report(const Bleu& found) {
  print_json({{"score", found.score},
              {"precisions", found.precisions},
              {"brevity_penalty", found.brevity_penalty},
              {"ratio", found.ratio()},
              {"hypothesis_words", found.hypothesis_words},
              {"reference_words", found.reference_words},
              {"matches", found.matches},
              {"totals", found.totals},
              {"signature", found.signature}});
}

void run_bleu(const BleuCommand& o) {
  const std::vector<std::string> hypotheses = read_lines(o.hypotheses);
  check(!hypotheses.empty(), "{}: there are no lines", o.hypotheses);
  std::vector<std::vector<std::string>> references;
  for (const std::string& path : o.references) {
    references.push_back(read_lines(path));
    check(references.back().size() == hypotheses.size(), "{} has {} lines, but {} has {}", path,
          references.back().size(), o.hypotheses, hypotheses.size());
  }
  const Bleu found = bleu(hypotheses, references,
                          {.tokenizer = bleu_tokenizer_from_string(o.tokenizer),
                           .lowercase = o.lowercase,
                           .smooth = !o.unsmoothed});
  if (o.json) return print_report(found);
  write_output(fmt::format("{}\n{}\n", to_string(found), found.signature));
}

}  // namespace

void add_bleu(CLI::App& app, Job& job) {
  CLI::App* command =
      app.add_subcommand("bleu", "How close translations are to references, as sacreBLEU counts");
  command->footer(examples("qkv bleu translations.txt references.txt",
                           "qkv bleu words.txt reference.txt --tokenize none --unsmoothed"));
  const auto o = std::make_shared<BleuCommand>();
  command
      ->add_option("hypotheses", o->hypotheses,
                   "Translations, one per line; - reads them from standard input")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("references", o->references,
                   "References, a line for each; several files are several references")
      ->required()
      ->type_name("FILE");
  command->add_option("--tokenize", o->tokenizer, "How lines become words: 13a, intl, char or none")
      ->check(CLI::IsMember({"13a", "intl", "char", "none"}))
      ->capture_default_str();
  command->add_flag("--lowercase", o->lowercase, "Leave case out of account");
  command->add_flag("--unsmoothed", o->unsmoothed,
                    "An order without a match makes the score 0; with --tokenize none: multi-bleu");
  command->add_flag("--json", o->json, "Print one JSON object instead of text");
  command->callback([&job, o] { job = [o] { run_bleu(*o); }; });
}

}  // namespace qkv::cli
