// A picture in characters. Density tells the weight, so that it reads the same on light and dark
// terminals and without colours; colour only repeats it.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/order.h"
#include "qkv/ops.h"
#include "text/utf8.h"
#include "viewer/selection.h"
#include "viewer/spelling.h"

namespace qkv {
namespace {

constexpr std::int64_t kMostRows = 200;   // printed without being asked for
constexpr std::int64_t kMostLabel = 14;   // columns of a token in front of its row
constexpr std::int64_t kHeaderLines = 6;  // of key tokens, written downwards
constexpr std::size_t kStrongest = 3;

struct Shade {
  float from;
  const char *glyph, *color;
};
constexpr Shade kShades[] = {{0.5f, "██", "\x1b[1;33m"},
                             {0.25f, "▓▓", "\x1b[32m"},
                             {0.1f, "▒▒", "\x1b[36m"},
                             {0.03f, "░░", "\x1b[34m"},
                             {0.0f, " ·", "\x1b[2m"}};

struct Painter {
  bool color;
  std::string operator()(const std::string& text, const char* code) const {
    return color ? code + text + "\x1b[0m" : text;
  }
  std::string cell(float p) const {
    for (const Shade& shade : kShades) {
      if (p >= shade.from) return (*this)(shade.glyph, shade.color);
    }
    return "  ";
  }
  std::string bold(const std::string& text) const { return (*this)(text, "\x1b[1m"); }
  std::string dim(const std::string& text) const { return (*this)(text, "\x1b[2m"); }
};

std::string percent(double p) { return fmt::format("{:.0f}%", 100 * p); }

// Weights [rows, keys] of the head, or the mean of all.
std::vector<float> weights_of(const SeenLayer& layer, const PictureSelection& selection,
                              const std::vector<std::int64_t>& rows) {
  const Tensor weights = layer.weights({.heads = viewer::chosen_heads(selection), .rows = rows});
  return mean(weights, {0, 1}).to_vector<float>();
}

bool is_visible(const SeenLayer& layer, std::int64_t row, std::int64_t key) {
  const Mask& mask = layer.options.mask;
  const std::int64_t at = row + layer.key_count() - layer.rows();
  return (!mask.causal_part || key <= at) && (mask.left < 0 || key >= at - mask.left) &&
         (mask.right < 0 || key <= at + mask.right);
}

// The keys above their columns, downwards.
std::string header(const std::vector<SeenToken>& keys, std::int64_t indent, const Painter& paint) {
  std::vector<std::vector<std::string>> letters;
  std::size_t tallest = 0;
  for (const SeenToken& key : keys) {
    std::vector<std::string> own;
    for (std::size_t at = 0; at < key.text.size();) {
      const std::string letter = key.text.substr(at, text::utf8_at(key.text, at).size);
      at += letter.size();
      if (viewer::columns_of(letter) > 0) own.push_back(letter);
    }
    if (own.size() > kHeaderLines) {
      own.resize(kHeaderLines);
      own.back() = "⋮";
    }
    tallest = std::max(tallest, own.size());
    letters.push_back(std::move(own));
  }
  std::string text;
  for (std::size_t line = 0; line < tallest; ++line) {
    std::string shown(static_cast<std::size_t>(indent), ' ');
    for (const auto& own : letters) {
      const std::size_t skipped = tallest - own.size();
      shown += viewer::fitted(line < skipped ? "" : own[line - skipped], 2);
    }
    text += paint.dim(shown) + "\n";
  }
  return text;
}

std::string strongest(const float* row, const std::vector<SeenToken>& keys, std::size_t count) {
  std::vector<std::size_t> order(keys.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  count = std::min(count, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [row](std::size_t a, std::size_t b) {
                      return is_larger(row[a], row[b]) || (!is_larger(row[b], row[a]) && a < b);
                    });
  std::string text;
  for (std::size_t i = 0; i < count && row[order[i]] >= 0.005f; ++i) {
    text += fmt::format("{}{} {}", i == 0 ? "" : "  ", keys[order[i]].text, percent(row[order[i]]));
  }
  return text;
}

std::string table(const AttentionPicture& picture, const AttentionMap& map, const SeenLayer& layer,
                  const PictureText& options) {
  const Painter paint{options.color};
  const std::vector<SeenToken>&rows = picture.tokens_of(map.rows),
        &keys = picture.tokens_of(map.keys);
  std::vector<std::int64_t> chosen = options.selection.rows;
  if (chosen.empty()) {
    chosen.resize(static_cast<std::size_t>(std::min(kMostRows, layer.rows())));
    std::iota(chosen.begin(), chosen.end(), 0);
  }
  const std::vector<float> weights = weights_of(layer, options.selection, chosen);
  std::int64_t label = 1;
  for (const std::int64_t row : chosen) {
    label = std::max(label, viewer::columns_of(rows[static_cast<std::size_t>(row)].text));
  }
  label = std::min(label, kMostLabel);
  const auto digits = static_cast<std::int64_t>(std::to_string(chosen.back()).size());
  const std::int64_t indent = digits + label + 3;
  const auto count = static_cast<std::int64_t>(keys.size());
  const bool has_cells = indent + 2 * count + 24 <= options.columns;
  std::string text = has_cells ? header(keys, indent, paint) : "";
  for (std::size_t r = 0; r < chosen.size(); ++r) {
    const float* row = weights.data() + r * keys.size();
    text += paint.dim(fmt::format("{:>{}} ", chosen[r], digits));
    text += viewer::fitted(rows[static_cast<std::size_t>(chosen[r])].text, label) + "  ";
    for (std::int64_t j = 0; has_cells && j < count; ++j) {
      text += is_visible(layer, chosen[r], j) ? paint.cell(row[j]) : "  ";
    }
    text += (has_cells ? "  " : "") + strongest(row, keys, has_cells ? kStrongest : kStrongest + 2);
    text += "\n";
  }
  if (options.selection.rows.empty() && layer.rows() > kMostRows) {
    text += paint.dim(fmt::format("... {} more rows; --row shows the ones you name, --out a page\n",
                                  layer.rows() - kMostRows));
  }
  return text;
}

// Layers downwards, heads across: how widely each head looks.
std::string entropies(const AttentionMap& map, const Painter& paint) {
  std::string text = paint.bold("entropy per head") +
                     paint.dim(" (share of the most there could be; blank: one key, full: all)\n");
  for (std::size_t i = 0; i < map.layers.size(); ++i) {
    const std::vector<float> values = map.layers[i].statistics.entropy_relative.to_vector<float>();
    text += paint.dim(fmt::format("layer {:>2} ", i));
    for (const float value : values) {
      const auto eighths = static_cast<std::size_t>(std::clamp(value, 0.0f, 0.999f) * 9);
      static constexpr const char* kBars[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
      text += std::string(" ") + kBars[eighths];
    }
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    text += paint.dim(fmt::format("   {} to {}\n", percent(*least), percent(*most)));
  }
  return text;
}

std::string answers(const AttentionPicture& picture, const Painter& paint) {
  std::string text;
  if (!picture.written.empty()) {
    text += paint.bold("writes") + "  " + viewer::printable(picture.written) + "\n";
  }
  for (const auto& [position, choices] : picture.answers) {
    const bool next = picture.model.kind == ModelKind::decoder;
    text += paint.bold(position >= 0 ? fmt::format("gap at {}", position)
                       : next        ? std::string("next")
                                     : std::string("says"));
    for (std::size_t i = 0; i < std::min<std::size_t>(5, choices.size()); ++i) {
      text += fmt::format("  {} {}", choices[i].token.text, percent(choices[i].probability));
    }
    text += "\n";
  }
  return text;
}

}  // namespace

std::string to_text(const AttentionPicture& picture, const PictureText& options) {
  viewer::check_picture(picture);
  const Painter paint{options.color};
  const AttentionMap& map = viewer::first_map(picture, options.selection.map);
  const auto last = static_cast<std::int64_t>(map.layers.size()) - 1;
  PictureSelection selection = options.selection;
  const std::int64_t at = selection.layer.value_or(last);
  selection.layer = at;
  viewer::check_selection(map, selection);
  const SeenLayer& layer = map.layers[static_cast<std::size_t>(at)];
  const std::string head = options.selection.head ? fmt::format("head {}", *options.selection.head)
                           : layer.heads() == 1   ? std::string("head 0")
                                                  : fmt::format("mean of {} heads", layer.heads());
  std::string text = paint.bold(fmt::format("{} attention", map.name)) +
                     fmt::format(", layer {} (0 to {}), {}", at, last, head);
  text += paint.dim(map.name == "cross" ? "; rows: what was written, columns: what was read\n"
                                        : "; rows look at columns\n");
  text += table(picture, map, layer, options) + "\n" + entropies(map, paint);
  return text + answers(picture, paint);
}

}  // namespace qkv
