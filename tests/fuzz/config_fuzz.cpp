// Any text as a config.json and as an index of shards: every getter gives a value or an Error.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "io/json.h"
#include "io/shard_index.h"
#include "qkv/error.h"

namespace {

template <class F>
void allow_error(F&& f) {
  try {
    f();
  } catch (const qkv::Error&) {
  }
}

void walk(const qkv::Config& config) {
  for (const std::string& key : config.keys()) {
    allow_error([&] {
      if (config.integer(key, -9, 9) > 9) std::abort();
    });
    allow_error([&] {
      if (!(config.number(key, 0, 1) <= 1)) std::abort();
    });
    allow_error([&] { config.flag(key); });
    allow_error([&] { config.text(key); });
    allow_error([&] { config.integers(key, 0, 100); });
    allow_error([&] { config.texts(key); });
    allow_error([&] { config.object(key); });
    // An object by itself counts as a list of one: walking both ways would double at each level.
    allow_error([&] {
      for (const qkv::Config& inner : config.objects(key)) walk(inner);
    });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  allow_error([&] { walk(qkv::Config::parse(text, "config.json")); });
  allow_error([&] {
    for (const auto& [name, file] : qkv::parse_shard_index(text, "index.json")) {
      if (file.empty() || file == ".." || file.find('/') != std::string::npos) std::abort();
    }
  });
  return 0;
}
