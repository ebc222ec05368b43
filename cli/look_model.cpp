#include "look_model.h"

#include <filesystem>

#include "core/check.h"
#include "default_model.h"

namespace qkv::cli {

LookModel::LookModel(ModelOptions options, const Common& common, bool ids) : ids_(ids) {
  if (options.folder.empty()) options.folder = default_model();
  folder_ = options.folder;
  model_ = open_model(options, common);
  codec_ = make_codec(folder_, model_->info(), ids);
}

std::string LookModel::name() const {
  const std::filesystem::path path = std::filesystem::weakly_canonical(folder_);
  return path.filename().empty() ? folder_ : path.filename().string();
}

// What an encoder-decoder reads and writes has an end, as `translate` gives it; a tokenizer may
// have added it.
std::vector<std::int64_t> LookModel::ended(std::vector<std::int64_t> tokens) const {
  const std::vector<std::int64_t>& ends = info().eos_ids;
  const bool wants_end = !ids_ && info().kind == ModelKind::encoder_decoder && !ends.empty();
  if (wants_end && tokens.back() != ends.front()) tokens.push_back(ends.front());
  return tokens;
}

AttentionPicture LookModel::operator()(const std::string& text, const std::string& target,
                                       const LookOptions& options) const {
  check(target.empty() || info().kind == ModelKind::encoder_decoder,
        "a target is for models that read one text and write another; this is {} {}",
        info().kind == ModelKind::decoder ? "a" : "an", to_string(info().kind));
  LookInput input{.text = text, .ids = ended(codec_->encode(text))};
  if (!target.empty()) input.target = ended(codec_->encode_target(target));
  const Codec& codec = *codec_;
  input.spelling = {.input = [&](std::int64_t id) { return codec.token(id, Codec::Side::input); },
                    .output = [&](std::int64_t id) { return codec.token(id, Codec::Side::output); },
                    .text = [&](const std::vector<std::int64_t>& ids) { return codec.text(ids); }};
  input.mask_id = codec.mask_id();
  return look(*model_, input, options);
}

}  // namespace qkv::cli
