#include "replies.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "core/check.h"
#include "interrupt.h"
#include "stop_text.h"

namespace qkv::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// The text of one reply, on its way from tokens to the reader.
struct Growing {
  std::unique_ptr<TextStream> stream;
  StopText stop;
};

}  // namespace

Replier::Replier(const Model& model, const Codec& codec, GenerateOptions options,
                 const std::vector<std::string>& stops)
    : model_(model), codec_(codec), options_(std::move(options)) {
  const GenerationConfig& checkpoint = model.info().generation;
  std::vector<std::int64_t> ids = checkpoint.eos_ids;
  stops_ = checkpoint.stop_strings;
  for (const std::string& stop : stops) {
    check(!stop.empty(), "--stop: an empty text would end every reply before it begins");
    if (const auto id = codec.stop_id(stop)) {
      ids.push_back(*id);
    } else {
      stops_.push_back(stop);
    }
  }
  options_.stop_ids = std::move(ids);
  plan_ = plan_generation(model.info(), options_);
}

std::vector<std::int64_t> Replier::encode(const std::string& prompt) const {
  std::vector<std::int64_t> ids = codec_.encode(prompt);
  const std::int64_t limit = model_.info().max_positions;
  check(limit == 0 || static_cast<std::int64_t>(ids.size()) <= limit,
        "the prompt has {} tokens, more than the {} positions of the model; shorten it", ids.size(),
        limit);
  return ids;
}

std::string Replier::ending(const Reply& reply, bool stopped) const {
  if (stopped) return "stop";
  const std::int64_t last = reply.ids.empty() ? -1 : reply.ids.back();
  if (is_eos(last)) return "eos";
  const std::vector<std::int64_t>& stops = *options_.stop_ids;
  if (std::ranges::count(stops, last) > 0) return "stop";
  if (interrupted()) return "interrupt";
  const bool is_decoder = model_.info().kind == ModelKind::decoder;
  const auto read = static_cast<std::int64_t>(is_decoder ? reply.prompt_ids.size() : 1);
  const bool is_full = static_cast<std::int64_t>(reply.ids.size()) >= plan_.most(read);
  return is_full ? "length" : "positions";
}

bool Replier::is_eos(std::int64_t token) const {
  return std::ranges::count(model_.info().generation.eos_ids, token) > 0;
}

std::vector<Reply> Replier::operator()(const std::vector<std::string>& prompts,
                                       const std::function<void(std::string_view)>& show) {
  std::vector<Reply> replies(prompts.size());
  std::vector<Growing> growing;
  std::vector<std::vector<std::int64_t>> ids;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    replies[i].prompt = prompts[i];
    replies[i].prompt_ids = encode(prompts[i]);
    ids.push_back(replies[i].prompt_ids);
    times_.prompt_tokens += static_cast<std::int64_t>(ids.back().size());
    growing.push_back({codec_.stream(ids.back()), StopText(stops_)});
  }
  const auto say = [&](std::size_t i, const std::string& piece) {
    replies[i].text += piece;
    if (show && i == 0 && !piece.empty()) show(piece);
  };

  const Clock::time_point begin = Clock::now();
  std::optional<Clock::time_point> first;
  GenerateOptions options = options_;
  options.on_step = [] { return !interrupted(); };
  options.on_token = [&](std::size_t i, std::int64_t token) {
    if (!first) first = Clock::now();
    Growing& g = growing[i];
    // What ends a reply need not be a special token, which the decoder leaves out.
    if (is_eos(token) && !codec_.shows_end()) return true;
    say(i, g.stop.push(g.stream->push(token)));
    return !g.stop.found();  // Ctrl-C is noticed by on_step
  };
  std::vector<std::vector<std::int64_t>> tokens = generate(model_, ids, options);
  const Clock::time_point end = Clock::now();

  for (std::size_t i = 0; i < replies.size(); ++i) {
    replies[i].ids = std::move(tokens[i]);
    StopText& stop = growing[i].stop;
    say(i, stop.push(growing[i].stream->finish()));
    if (!stop.found()) say(i, stop.finish());
    replies[i].ended = ending(replies[i], stop.found());
    const auto count = static_cast<std::int64_t>(replies[i].ids.size());
    times_.new_tokens += count;
    times_.tokens_after_first += std::max<std::int64_t>(count - 1, 0);
  }
  // A beam search tells its tokens when it is over, so the time of the prompt is not known.
  const Clock::time_point read = plan_.beams > 1 ? begin : first.value_or(end);
  times_.prompt_seconds += seconds_between(begin, read);
  times_.seconds_after_first += seconds_between(read, end);
  return replies;
}

}  // namespace qkv::cli
