// What a model is trained on: text files, tokenised once, handed out as batches in an order that
// depends on a seed and a position and nothing else.
//
//   qkv::Dataset data({.task = qkv::Task::sequence_to_sequence,
//                      .files = {{"fra-eng.train.tsv"}}}, tokenizer, model->info());
//   qkv::Prefetch batches(data, {.epoch = 0, .batch = 0});
//   qkv::Batch batch = batches.next();
//   qkv::Tensor loss = model->loss(batch.input, batch.labels);
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "qkv/models/model.h"
#include "qkv/tensor.h"
#include "qkv/tokenizer.h"

namespace qkv {

enum class Task : std::uint8_t { language_model, masked_lm, sequence_to_sequence, classification };
std::string to_string(Task task);                // "language-model", "masked-lm", ...
Task task_from_string(const std::string& name);  // Error lists the names

// What ends a document of a text file: nothing before its end, an empty line, or every line. A
// .json file is a list of texts, each a document.
enum class Documents : std::uint8_t { file, paragraph, line };
std::string to_string(Documents documents);
Documents documents_from_string(const std::string& name);

struct DataFile {
  std::string path;
  // Put before each source text, as ">>fra<<": one token where the tokenizer has such a token.
  std::string prefix{};
};

struct DataOptions {
  Task task = Task::language_model;
  std::vector<DataFile> files{};

  // Of sequence_to_sequence (source, target) and classification (text, label): columns of a file
  // with a line per example and tabs between the columns, the first being 0.
  int source_column = 0, target_column = 1;
  double prefix_rate = 1;  // the share of examples that get their prefix, drawn anew each epoch
  // Tokens, with all that is around the text. Longer examples are left out, and counted, but cut
  // for classification. The positions of the model are a limit, too.
  std::int64_t max_source = 256, max_target = 256;

  // Of language_model and masked_lm: documents, one behind the other, are cut into rows of `block`
  // tokens.
  Documents documents = Documents::file;
  std::int64_t block = 256;
  double mask_rate = 0.15;  // masked_lm: of these 80% become the mask, 10% any token, 10% stay

  // At most so many tokens, padding and both sides included, but at least one row.
  std::int64_t batch_tokens = 4096;
  bool shuffle = true;  // false: every epoch is the same, for evaluation
  std::uint64_t seed = 0;

  // A folder for the tokens, made if need be; empty: they are kept in memory. What is found there
  // is used if file, tokenizer and options are those it was made of and no bit has changed since,
  // else it is made again.
  std::string cache{};
  // Called while files are tokenised, with bytes of all files.
  std::function<void(std::int64_t done, std::int64_t total)> progress{};
};

// What Model::loss takes. Rows are padded on the right.
struct Batch {
  ModelInput input;  // ids i64 [B, S]; mask where a row is shorter; decoder_ids of pairs
  Tensor labels;     // i64 [B, T], -100 where there is nothing to predict; [B] of a classifier
  std::int64_t tokens = 0;               // labels that count
  std::int64_t read = 0;                 // tokens in ids and labels of pairs, without padding
  std::vector<std::int64_t> examples{};  // of each row; empty where rows are cut from documents
};

// The batch that comes next.
struct DataPosition {
  std::int64_t epoch = 0, batch = 0;
  friend bool operator==(const DataPosition&, const DataPosition&) = default;
};

struct ExampleText {
  std::string source, target;  // of classification: the text and the name of the label
};

// Immutable, cheap to copy, and used from any number of threads. The same options, files and
// tokenizer give the same batches on every machine.
class Dataset {
 public:
  // Error names the file and, where there is one, the line: a missing column, an unknown label,
  // bytes that are no UTF-8, no examples at all. So does a model that cannot do the task.
  Dataset(const DataOptions& options, const Tokenizer& tokenizer, const ModelInfo& model);

  std::int64_t examples() const;  // pairs or labelled texts; else documents
  std::int64_t skipped() const;   // left out: too long, or with nothing in a column
  std::int64_t tokens() const;    // of all examples, both sides
  std::int64_t batches(std::int64_t epoch) const;
  const DataOptions& options() const;
  // Of options().files[file]: differs where its tokens, or the lines they were made of, differ.
  std::uint64_t fingerprint(std::size_t file) const;

  // The batch at a position with 0 <= batch < batches(epoch). Tensors are on the CPU.
  Batch batch(DataPosition position) const;
  DataPosition after(DataPosition position) const;  // the next one, in the next epoch at the end

  // Of pairs and labelled texts, for judging: what the file says, and the source in tokens as a
  // batch has it. The file must be as it was.
  ExampleText text(std::int64_t example) const;
  std::vector<std::int64_t> source(std::int64_t example, bool with_prefix = true) const;

  struct State;  // src/train

 private:
  std::shared_ptr<const State> state_;
};

// Prepares batches ahead, on a thread of its own.
class Prefetch {
 public:
  // Begins with the batch at `start`, and holds up to `depth` that were not asked for yet.
  Prefetch(const Dataset& data, DataPosition start, int depth = 4);
  ~Prefetch();
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  Batch next();                   // throws what went wrong while preparing it
  DataPosition position() const;  // of what next() will return: what a checkpoint has to keep

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace qkv
