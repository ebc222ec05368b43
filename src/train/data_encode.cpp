#include "train/data_encode.h"

#include <algorithm>
#include <charconv>

#include "core/check.h"
#include "io/shown.h"
#include "text/pipeline.h"
#include "text/utf8.h"

namespace qkv {
namespace data {
namespace {

constexpr std::size_t kLongestLine = std::size_t{1} << 24;

void check_task(Task task, const ModelInfo& model) {
  const ModelKind wanted = task == Task::language_model         ? ModelKind::decoder
                           : task == Task::sequence_to_sequence ? ModelKind::encoder_decoder
                                                                : ModelKind::encoder;
  check(model.kind == wanted, "{} needs {} {}, but {} is {} {}", to_string(task),
        wanted == ModelKind::decoder ? "a" : "an", to_string(wanted), model.architecture,
        model.kind == ModelKind::decoder ? "a" : "an", to_string(model.kind));
  if (task == Task::sequence_to_sequence) {
    check(!model.eos_ids.empty() && model.decoder_start_id >= 0,
          "{}: config.json must have eos_token_id and decoder_start_token_id for {}", model.family,
          to_string(task));
  }
  if (task == Task::classification) {
    check(model.classes > 0, "{}: config.json has no id2label or num_labels", model.family);
    check(!model.multi_label, "{}: a text has one label; problem_type is several", model.family);
    check(!model.regression,
          "{}: a label is one class of several; problem_type, or num_labels 1, is regression",
          model.family);
  }
}

std::string joined_labels(const ModelInfo& model) {
  constexpr std::size_t kMost = 20;
  std::string names;
  for (std::size_t i = 0; i < std::min(kMost, model.labels.size()); ++i) {
    names += (i > 0 ? ", " : "") + shown_name(model.labels[i]);
  }
  if (model.labels.size() > kMost) names += ", ...";
  return names.empty() ? fmt::format("0 to {}", model.classes - 1) : names;
}

// A document with LF alone; `spare` holds it where that took a copy.
std::string_view without_carriage_returns(std::string_view text, std::string& spare) {
  if (text.find("\r\n") == text.npos) return text;
  spare.clear();
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r' || i + 1 == text.size() || text[i + 1] != '\n') spare += text[i];
  }
  return spare;
}

}  // namespace

struct Encoder::Line {
  const TextFile& file;
  std::string_view text;
};

Encoder::Encoder(const DataOptions& options, const Tokenizer& tokenizer, const ModelInfo& model)
    : options_(options), tokenizer_(tokenizer), model_(model) {
  check_task(options.task, model);
  if (!model.eos_ids.empty()) eos_ = model.eos_ids.front();
  if (options.task == Task::language_model && model.bos_id != eos_) bos_ = model.bos_id;
  const Around around = around_text(tokenizer);
  if (options.task == Task::masked_lm && !around.back.empty()) eos_ = around.back.back();
  limit_ = options.max_source;
  if (model.max_positions > 0) limit_ = std::min(limit_, model.max_positions);
  const auto added = static_cast<std::int64_t>(around.front.size() + around.back.size());
  check(!is_labelled() || limit_ > added, "max_source is {}, but {} tokens are around every text",
        limit_, added);
  if (is_labelled() && added > 0) eos_ = -1;  // the template has what belongs there
}

Documents Encoder::chunks_of() const {
  return is_pairs() || is_labelled() ? Documents::line : options_.documents;
}

std::string Encoder::key() const {
  std::string labels;
  for (const std::string& label : model_.labels) labels += label + '\n';
  return fmt::format("{} columns {} {} documents {} bos {} eos {} limit {} classes {} of {}\n{}",
                     to_string(options_.task), options_.source_column, options_.target_column,
                     to_string(options_.documents), bos_, eos_, is_labelled() ? limit_ : 0,
                     model_.classes, model_.vocabulary, labels) +
         fmt::format("tokenizer {:016x}\n", tokenizer_.pipeline().fingerprint());
}

TokenPart Encoder::encode(const TextFile& file, const TextChunk& chunk) const {
  const std::size_t valid = text::valid_utf8_prefix(chunk.text);
  // Where a place is takes all lines before it to count: only for an error.
  if (valid != chunk.text.size()) {
    fail("{}: the bytes from {} on are no UTF-8; convert the file, as with iconv -t utf-8",
         file.where(chunk.text.data() + valid), file.offset(chunk.text.data() + valid));
  }
  TokenPart part;
  const auto document = [&](std::string_view text) { add_document(text, true, true, part); };
  if (is_pairs() || is_labelled()) {
    for_each_line(chunk.text, [&](std::string_view line) {
      if (!line.empty()) add_line({file, line}, part);
    });
  } else if (file.is_list() || options_.documents == Documents::file) {
    add_document(chunk.text, chunk.begins, chunk.ends, part);
  } else if (options_.documents == Documents::paragraph) {
    for_each_paragraph(chunk.text, document);
  } else {
    for_each_line(chunk.text, [&](std::string_view line) {
      if (!line.empty()) document(line);
    });
  }
  return part;
}

void Encoder::add_line(const Line& line, TokenPart& part) const {
  const auto where = [&] { return line.file.where(line.text.data()); };
  const std::vector<std::string_view> columns = columns_of(line.text);
  const int last = std::max(options_.source_column, options_.target_column);
  if (columns.size() <= static_cast<std::size_t>(last)) {
    fail("{}: there is no column {}, only {} with tabs between them (columns count from 0)",
         where(), last, columns.size());
  }
  if (line.text.size() > kLongestLine) fail("{}: a line of {} bytes", where(), line.text.size());
  const std::string_view source = columns[static_cast<std::size_t>(options_.source_column)];
  const std::string_view target = columns[static_cast<std::size_t>(options_.target_column)];
  TokenRecord record{.first = part.tokens.size(),
                     .line = line.file.offset(line.text.data()),
                     .line_bytes = static_cast<std::uint32_t>(line.text.size())};
  if (source.empty() || (is_pairs() && target.empty())) {
    ++part.left_out;
    return;
  }
  if (is_labelled()) {
    const auto it = std::ranges::find(model_.labels, target);
    record.label = it != model_.labels.end() ? static_cast<std::int32_t>(it - model_.labels.begin())
                                             : label(target, line);
  }
  const Ids ids = side(source);
  add_ids(ids, part);
  record.source = static_cast<std::uint32_t>(ids.size());
  if (is_pairs()) {
    const Ids other = side(target);
    add_ids(other, part);
    record.target = static_cast<std::uint32_t>(other.size());
  }
  part.records.push_back(record);
  ++part.examples;
}

// A number, where the label is none of the names.
std::int32_t Encoder::label(std::string_view name, const Line& line) const {
  std::int32_t value = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), value);
  const bool is_number = error == std::errc() && end == name.data() + name.size();
  if (!is_number || value < 0 || value >= model_.classes) {
    fail("{}: the model has no label '{}'; it has {}", line.file.where(line.text.data()),
         shown_name(name), joined_labels(model_));
  }
  return value;
}

Ids Encoder::side(std::string_view text) const {
  if (is_labelled()) {
    Ids ids = tokenizer_.encode(text, {.max_tokens = eos_ < 0 ? limit_ : limit_ - 1});
    if (eos_ >= 0) ids.push_back(eos_);
    return ids;
  }
  return encode_side(tokenizer_, model_, text);
}

void Encoder::add_document(std::string_view text, bool begins, bool ends, TokenPart& part) const {
  std::string spare;
  if (begins && bos_ >= 0) part.tokens.push_back(static_cast<std::int32_t>(bos_));
  for (const std::string_view piece : pieces_of(text)) {
    add_ids(tokenizer_.encode(without_carriage_returns(piece, spare), {.special_tokens = false}),
            part);
  }
  if (ends && eos_ >= 0) part.tokens.push_back(static_cast<std::int32_t>(eos_));
  if (begins) ++part.examples;
}

void Encoder::add_ids(const Ids& ids, TokenPart& part) const {
  for (const std::int64_t id : ids) {
    check(id < model_.vocabulary,
          "the tokenizer gives id {}, but the model knows only {}: do they belong together?", id,
          model_.vocabulary);
    part.tokens.push_back(static_cast<std::int32_t>(id));
  }
}

}  // namespace data

}  // namespace qkv
