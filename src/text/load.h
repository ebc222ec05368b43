// Finding and reading the files of a tokenizer.
#pragma once

#include <memory>
#include <string>

#include "text/pipeline.h"

namespace qkv::text {

std::shared_ptr<const Tokenizer::Pipeline> load_pipeline(const std::string& path);

}  // namespace qkv::text
