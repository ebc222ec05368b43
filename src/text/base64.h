#pragma once

#include <string>
#include <string_view>

namespace qkv::text {

// Throws Error when the text is not base64; `where` names it in the message.
std::string decoded_base64(std::string_view text, const std::string& where);
std::string encoded_base64(std::string_view bytes);

}  // namespace qkv::text
