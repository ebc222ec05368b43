// Goldens with a generation_config.json of the test's own.
#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "qkv/models/model.h"
#include "support/goldens.h"
#include "support/temporary_folder.h"

namespace qkv::test {

inline void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

inline std::unique_ptr<Model> with_generation(const std::string& name,
                                              const std::string& generation,
                                              const testing::TemporaryFolder& folder) {
  const auto overwrite = std::filesystem::copy_options::overwrite_existing;
  for (const char* file : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(golden(name) + "/" + file, folder.path(file), overwrite);
  }
  write_text(folder.path("generation_config.json"), generation);
  return load_model(folder.path());
}
inline std::unique_ptr<Model> with_generation(const std::string& name,
                                              const std::string& generation) {
  const testing::TemporaryFolder folder;
  return with_generation(name, generation, folder);
}

}  // namespace qkv::test
