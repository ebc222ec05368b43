#include "look_model.h"

#include <filesystem>

#include "core/check.h"

namespace qkv::cli {

LookModel::LookModel(const ModelOptions& options, const Common& common, bool ids)
    : folder_(options.folder),
      model_(open_model(options, common)),
      codec_(make_codec(options.folder, model_->info(), ids)) {}

std::string LookModel::name() const {
  const std::filesystem::path path = std::filesystem::weakly_canonical(folder_);
  return path.filename().empty() ? folder_ : path.filename().string();
}

AttentionPicture LookModel::operator()(const std::string& text, const std::string& target,
                                       const LookOptions& options) const {
  check(target.empty() || info().kind == ModelKind::encoder_decoder,
        "a target is for models that read one text and write another; this is {} {}",
        info().kind == ModelKind::decoder ? "a" : "an", to_string(info().kind));
  LookInput input{.text = text, .ids = codec_->encode(text), .target = {}};
  if (!target.empty()) input.target = codec_->encode_target(target);
  const Codec& codec = *codec_;
  input.spelling = {.input = [&](std::int64_t id) { return codec.token(id, Codec::Side::input); },
                    .output = [&](std::int64_t id) { return codec.token(id, Codec::Side::output); },
                    .text = [&](const std::vector<std::int64_t>& ids) { return codec.text(ids); }};
  input.mask_id = codec.mask_id();
  return look(*model_, input, options);
}

}  // namespace qkv::cli
