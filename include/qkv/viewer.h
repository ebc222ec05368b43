// Seeing what a model attends to: one pass over a text becomes a picture, and a picture becomes a
// page, a table for the terminal, or JSON. Queries and keys are kept, weights are not: memory is
// O(S), and any row of weights can be had from the kernels when somebody looks at it.
//
//   const auto picture = qkv::look(*model, {.ids = ids, .spelling = spelling});
//   std::string page = qkv::to_html(picture);
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "qkv/attention.h"
#include "qkv/models/model.h"
#include "qkv/tensor.h"

namespace qkv {

// How tokens are written. The picture has no tokenizer of its own: a model may read characters, or
// ids that stand for nothing else.
struct TokenSpelling {
  std::function<std::string(std::int64_t id)> input{}, output{};  // output: of what is written
  std::function<std::string(const std::vector<std::int64_t>& ids)> text{};  // of what was written
};

struct LookInput {
  std::string text{};               // as it was typed; shown, never read
  std::vector<std::int64_t> ids{};  // what the model reads
  std::vector<std::int64_t>
      target{};               // of an encoder-decoder: what it is to write; empty = its own
  TokenSpelling spelling{};   // absent: ids
  std::int64_t mask_id = -1;  // of a masked language model: the gap to be filled
};

struct LookOptions {
  std::int64_t new_tokens = 0;  // decoders go on by so many first; encoder-decoders write at most
                                // so many, 0 = as many as the model likes up to 64
  std::int64_t beams = 1;
  std::function<bool()> on_step{};    // called before each new token; false ends them
  std::function<bool()> cancelled{};  // asked before each attention; true ends the look: an Error
};

// One attention of one layer, as the model computed it.
struct SeenLayer {
  Tensor queries, keys;  // on the CPU, [1, H, Sq, D], [1, Hk, Sk, D]
  AttentionOptions options;
  Tensor lse;                      // f32 [1, H, Sq]
  AttentionStatistics statistics;  // all of them, by the forward kernel

  std::int64_t heads() const { return queries.size(1); }
  std::int64_t rows() const { return queries.size(2); }
  std::int64_t key_count() const { return keys.size(2); }
  float scale() const;
  // The weights p, f32 [1, heads, rows, keys] of the selection.
  Tensor weights(const WeightsSelection& selection = {}) const;
};

struct SeenToken {
  std::int64_t id = 0;
  std::string text;  // printable, never empty
};

// All attentions of one kind. Rows and keys name a list of tokens of the picture.
struct AttentionMap {
  std::string name;  // "encoder", "decoder" or "cross"
  std::string rows, keys;
  std::vector<SeenLayer> layers;
};

struct TokenChoice {
  SeenToken token;
  double probability = 0;
};

struct AttentionPicture {
  struct Tokens {
    std::string name;  // "source"; "target" is what a decoder reads, "written" what it then says
    std::vector<SeenToken> tokens;
  };
  // What the model says at one place: the next token, a filled gap, a class.
  struct Answer {
    std::int64_t position = -1;  // of the gap; -1 where there is none
    std::vector<TokenChoice> choices;
  };

  ModelInfo model;
  std::string text;     // what was typed
  std::string written;  // what the model wrote
  std::vector<Tokens> tokens;
  std::int64_t prompt_tokens = 0;  // of a decoder's tokens, those that were not written by it
  std::vector<AttentionMap> maps;
  std::vector<Answer> answers;

  const std::vector<SeenToken>& tokens_of(const std::string& name) const;
  const AttentionMap* map(const std::string& name) const;  // nullptr: there is none
};

// Runs the model once over its input (and, where it writes, once more over what it wrote).
AttentionPicture look(const Model& model, const LookInput& input, const LookOptions& options = {});

// What is told of a picture; absent = all of it.
struct PictureSelection {
  std::string map{};
  std::optional<std::int64_t> layer{}, head{};
  std::vector<std::int64_t> rows{};
};
// Tokens, answers, statistics of every head, and the weights of the selection as plain numbers.
// Queries and keys are there where one layer and one head were chosen.
std::string to_json(const AttentionPicture& picture, const PictureSelection& selection = {});

struct PictureText {
  PictureSelection selection{};  // absent: the last layer, the mean over its heads
  bool color = false;
  std::int64_t columns = 100;
};
// A table for a terminal: a row for each token, dark where it looked, and its strongest keys.
std::string to_text(const AttentionPicture& picture, const PictureText& options = {});

struct PageOptions {
  std::string title{};  // of the page; empty: the text
  std::size_t limit =
      24 << 20;  // bytes of the data in the page, which decides how much of a long
                 // input it holds: all weights, or pools and the largest of each row
  std::optional<std::int64_t> layer{}, head{};  // shown first, and in full as long as anything is
};
// The data of the page as JSON; docs/seeing.md says what is in it.
std::string to_page_data(const AttentionPicture& picture, const PageOptions& options = {});
// One page that needs nothing else: no network, no other file.
std::string to_html(const AttentionPicture& picture, const PageOptions& options = {});

// What a program behind HTTP answers, without the HTTP.
struct ViewerRequest {
  std::string method, path;  // "GET", "/api/rows"
  std::vector<std::pair<std::string, std::string>> query{};
  std::string body{}, host{}, token{};  // host: the header; token: however it was handed over
  std::string origin{};                 // the header: which page asks; empty where none does
  std::function<bool()> cancelled{};    // the client has left
};
struct ViewerResponse {
  int status = 200;
  std::string type, body;  // the body of HEAD is that of GET: it is sent without
  std::vector<std::pair<std::string, std::string>> headers{};  // more of them: Allow, Retry-After
};
struct ViewerOptions {
  std::string title{};  // of the model
  ModelInfo model{};
  std::string example{};             // the text the page begins with
  std::string token{};               // that every request must bring; empty = none
  bool local = true;                 // answer only requests whose host is a loopback address
  std::string runs{};                // folder of training runs; empty = none
  std::size_t max_body = 256 << 10;  // bytes of a request
  int max_waiting = 4;               // requests for a look at one time; more are turned away
  PageOptions page{.limit = 6 << 20};
};
// Live pages and the API of docs/seeing.md; called from any number of threads.
class Viewer {
 public:
  struct Query {
    std::string text, target;
    std::int64_t new_tokens = 0;
    std::function<bool()> cancelled{};  // of the request
  };
  using Look = std::function<AttentionPicture(const Query&)>;
  Viewer(Look look, ViewerOptions options);
  ~Viewer();
  // Why a request is not answered, as far as that can be told without its body: a host or origin
  // of another machine, a wrong token.
  std::optional<ViewerResponse> refuse(const ViewerRequest& head) const;
  // Never throws: what goes wrong is a response that says so.
  ViewerResponse operator()(const ViewerRequest& request);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace qkv
