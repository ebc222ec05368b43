// qkv encode: a vector for every text, to compare them by.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "command.h"
#include "core/check.h"
#include "core/order.h"
#include "npy.h"
#include "output.h"
#include "qkv/ops.h"
#include "text_batches.h"
#include "text_model.h"

namespace qkv::cli {
namespace {

struct EncodeCommand {
  Common common;
  ModelOptions model;
  std::vector<std::string> texts;
  std::string pool = "mean", out, query;
  TextBatchOptions batches;
  std::size_t top = 10;
  bool no_normalize = false, has_query = false;
};

// A row for each text.
struct Vectors {
  std::int64_t width = 0;
  std::vector<float> values;

  std::span<const float> row(std::size_t i) const {
    const auto size = static_cast<std::size_t>(width);
    return std::span(values).subspan(i * size, size);
  }
};

// hidden [S, D] of one text -> [D]
std::vector<float> mean_of_tokens(const float* hidden, std::size_t tokens, std::size_t width) {
  std::vector<double> sum(width);
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t d = 0; d < width; ++d) sum[d] += hidden[t * width + d];
  }
  std::vector<float> mean(width);
  for (std::size_t d = 0; d < width; ++d) mean[d] = static_cast<float>(sum[d] / double(tokens));
  return mean;
}

double dot(std::span<const float> a, std::span<const float> b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0, std::plus<>(),
                            [](float x, float y) { return double{x} * y; });
}

void normalize(std::vector<float>& vector) {
  const double length = std::sqrt(dot(vector, vector));
  if (length == 0) return;
  for (float& x : vector) x = static_cast<float>(x / length);
}

void take_vectors(const EncodeCommand& c, const TextBatch& batch, Vectors& vectors) {
  const bool by_pooler = c.pool == "pooler";
  const Tensor& source = by_pooler ? batch.output.pooled : batch.output.last_hidden;
  check(source.defined(), "{}: this model has no pooler; use --pool mean or cls", c.model.folder);
  const std::vector<float> values = to(source, DType::f32).to_vector<float>();
  const auto width = static_cast<std::size_t>(vectors.width);
  const std::size_t rows = batch.texts.size(), stride = values.size() / rows;
  for (std::size_t i = 0; i < rows; ++i) {
    const float* row = values.data() + i * stride;
    std::vector<float> vector = c.pool == "mean"
                                    ? mean_of_tokens(row, batch.tokens[i]->ids.size(), width)
                                    : std::vector<float>(row, row + width);
    if (!c.no_normalize) normalize(vector);
    std::copy(vector.begin(), vector.end(),
              vectors.values.begin() + static_cast<std::ptrdiff_t>(batch.texts[i] * width));
  }
}

Vectors encode(const EncodeCommand& c, const std::vector<std::string>& texts) {
  const std::unique_ptr<Model> model = open_model(c.model, Task::encode, c.common);
  const Tokenizer tokenizer =
      open_tokenizer(c.model.folder, "put the model's tokenizer beside its weights");
  Vectors vectors;
  vectors.width = model->info().hidden;
  vectors.values.resize(texts.size() * static_cast<std::size_t>(vectors.width));
  run_texts(*model, tokenizer, texts, c.batches,
            [&](const TextBatch& batch) { take_vectors(c, batch, vectors); });
  return vectors;
}

struct Match {
  double score;
  std::size_t text;
};

// The cosine of the angle to the last row, which is the query's.
std::vector<Match> rank(const Vectors& vectors, std::size_t texts, std::size_t top) {
  const std::span<const float> query = vectors.row(texts);
  std::vector<Match> matches;
  for (std::size_t i = 0; i < texts; ++i) {
    const std::span<const float> row = vectors.row(i);
    const double lengths = std::sqrt(dot(row, row) * dot(query, query));
    matches.push_back({lengths > 0 ? dot(row, query) / lengths : 0, i});
  }
  std::stable_sort(matches.begin(), matches.end(),
                   [](const Match& a, const Match& b) { return is_larger(a.score, b.score); });
  matches.resize(std::min(matches.size(), top));
  return matches;
}

void print_matches(const EncodeCommand& c, const std::vector<std::string>& texts,
                   const std::vector<Match>& matches) {
  if (c.common.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const auto& [score, text] : matches) {
      list.push_back({{"score", score}, {"line", text + 1}, {"text", texts[text]}});
    }
    print_json({{"query", c.query}, {"matches", list}});
    return;
  }
  for (const auto& [score, text] : matches) {
    write_output(fmt::format("{:7.4f}  {}\n", score, texts[text]));
  }
}

// Floats as floats: the shortest digits that read back the same.
using FloatJson = nlohmann::basic_json<nlohmann::ordered_map, std::vector, std::string, bool,
                                       std::int64_t, std::uint64_t, float>;

void print_vectors(const EncodeCommand& c, const std::vector<std::string>& texts,
                   const Vectors& vectors) {
  FloatJson list = FloatJson::array();
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::span<const float> row = vectors.row(i);
    list.push_back({{"text", texts[i]}, {"vector", std::vector(row.begin(), row.end())}});
  }
  const FloatJson json{{"pool", c.pool},
                       {"normalized", !c.no_normalize},
                       {"width", vectors.width},
                       {"vectors", std::move(list)}};
  write_output(json.dump(-1, ' ', false, FloatJson::error_handler_t::replace) + "\n");
}

void run_encode(const EncodeCommand& c) {
  c.common.apply();
  const std::vector<std::string> texts =
      c.texts.empty() ? read_input_lines("a text per line") : c.texts;
  check(!texts.empty(), "there is nothing to encode; give texts, or lines on standard input");
  std::vector<std::string> all = texts;
  if (c.has_query) all.push_back(c.query);
  const Vectors vectors = encode(c, all);
  if (!c.out.empty()) {
    const std::size_t count = texts.size() * static_cast<std::size_t>(vectors.width);
    const auto rows = static_cast<std::int64_t>(texts.size());
    save_npy(c.out, std::span(vectors.values).first(count), rows, vectors.width);
    print_err("wrote {}: {} x {}\n", c.out, rows, vectors.width);
  }
  if (c.has_query) {
    print_matches(c, texts, rank(vectors, texts.size(), c.top));
  } else if (c.out.empty() || c.common.json) {
    print_vectors(c, texts, vectors);
  }
}

}  // namespace

void add_encode(CLI::App& app, Job& job) {
  CLI::App* command =
      app.add_subcommand("encode", "Turn texts into vectors, or rank them by likeness to a query");
  command->footer(examples("qkv encode path/to/minilm-l6 'The cat sat on the mat.' 'A dog ran.'",
                           "qkv encode path/to/minilm-l6 --query 'pets' --top 3 < sentences.txt"));
  const auto c = std::make_shared<EncodeCommand>();
  c->model.add_to(*command);
  add_texts(*command, c->texts);
  command->add_option("--pool", c->pool, "How the tokens of a text become one vector")
      ->check(CLI::IsMember({"mean", "cls", "pooler"}))
      ->capture_default_str();
  command->add_flag("--no-normalize", c->no_normalize, "Leave vectors as long as they are");
  command->add_option("--out", c->out, "Write a NumPy table, a row for each text")
      ->check([](const std::string& path) {
        return path.ends_with(".npy") ? "" : "the name of a NumPy table ends in .npy";
      })
      ->type_name("FILE");
  CLI::Option* query =
      command->add_option("--query", c->query, "Rank the texts by likeness to this");
  command->add_option("--top", c->top, "With --query: how many to show")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  command->add_option("--batch", c->batches.batch, "Texts to run at once")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  c->common.add_to(*command);
  command->callback([&job, c, query] {
    c->has_query = query->count() > 0;
    job = [c] { run_encode(*c); };
  });
}

}  // namespace qkv::cli
