// A model with the tokenizer it is looked at through.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "codec.h"
#include "qkv/viewer.h"
#include "text_model.h"

namespace qkv::cli {

class LookModel {
 public:
  // Without a folder: the translator that comes with qkv.
  LookModel(ModelOptions options, const Common& common, bool ids);

  // The folder's own name, for titles.
  std::string name() const;
  const ModelInfo& info() const { return model_->info(); }
  AttentionPicture operator()(const std::string& text, const std::string& target,
                              const LookOptions& options) const;

 private:
  std::vector<std::int64_t> ended(std::vector<std::int64_t> tokens) const;

  std::string folder_;
  bool ids_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Codec> codec_;
};

}  // namespace qkv::cli
