#include "text/aligned_text.h"

namespace qkv::text {

void AlignedText::append_given(std::string_view part, std::size_t at) {
  const std::size_t valid = valid_utf8_prefix(part);
  if (!tracked && valid == part.size()) {
    text += part;
    return;
  }
  for (std::size_t i = 0; i < part.size();) {
    const Utf8Step step =
        i < valid ? Utf8Step{utf8_size(part[i]), true} : utf8_step(part.substr(i));
    const Origin origin{static_cast<std::uint32_t>(at + i),
                        static_cast<std::uint32_t>(at + i + step.size)};
    append(step.valid ? part.substr(i, step.size) : kReplacement, origin);
    i += step.size;
  }
}

}  // namespace qkv::text
