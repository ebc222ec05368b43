// What a model has to say to prompts: tokens, their text as it grows, and how fast it came.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "codec.h"
#include "models/generation_plan.h"
#include "qkv/generate.h"

namespace qkv::cli {

struct Reply {
  std::string prompt, text;
  std::vector<std::int64_t> prompt_ids, ids;
  std::string ended;  // by "eos", "stop", "length", "positions" or "interrupt"
};

// The prompts are read in one go, up to the first new token of each; then the others follow.
struct ReplyTimes {
  std::int64_t prompt_tokens = 0, new_tokens = 0, tokens_after_first = 0;
  double prompt_seconds = 0, seconds_after_first = 0;

  double prompt_rate() const { return prompt_seconds > 0 ? prompt_tokens / prompt_seconds : 0; }
  double rate() const {
    return seconds_after_first > 0 ? tokens_after_first / seconds_after_first : 0;
  }
};

class Replier {
 public:
  // A stop is text that ends a reply and is left out of it, or a token that the codec knows.
  Replier(const Model& model, const Codec& codec, GenerateOptions options,
          const std::vector<std::string>& stops);

  // Replies to all prompts at once, or to a Ctrl-C with what there is. `show` gets the text of the
  // first one as it becomes certain.
  std::vector<Reply> operator()(const std::vector<std::string>& prompts,
                                const std::function<void(std::string_view)>& show = {});
  const ReplyTimes& times() const { return times_; }

 private:
  std::vector<std::int64_t> encode(const std::string& prompt) const;
  std::string ending(const Reply& reply, bool stopped) const;
  bool is_eos(std::int64_t token) const;

  const Model& model_;
  const Codec& codec_;
  GenerateOptions options_;
  GenerationPlan plan_;
  std::vector<std::string> stops_;
  ReplyTimes times_;
};

}  // namespace qkv::cli
