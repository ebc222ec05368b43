// What Metaspace's JSON says, for the pre-tokenizer and the decoder of that name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "io/json.h"

namespace qkv::text {

inline constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581, what spaces become

enum class MetaspacePrepend : std::uint8_t { always, first, never };

struct MetaspaceOptions {
  std::string replacement{kMetaspace};
  MetaspacePrepend prepend = MetaspacePrepend::always;  // when text does not begin with it
  bool split = true;
};
MetaspaceOptions metaspace_options(const Config& config);

}  // namespace qkv::text
