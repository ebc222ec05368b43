#include "stop_text.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace qkv::cli {

std::string StopText::push(const std::string& piece) {
  if (found_) return "";
  held_ += piece;
  std::size_t stop_at = std::string::npos, keep = 0;
  for (const std::string& stop : stops_) {
    stop_at = std::min(stop_at, held_.find(stop));
    // The longest end of the text that may be the beginning of this stop.
    const std::string_view text = held_;
    std::size_t part = std::min(stop.size() - 1, text.size());
    while (part > 0 && !std::string_view(stop).starts_with(text.substr(text.size() - part))) --part;
    keep = std::max(keep, part);
  }
  found_ = stop_at != std::string::npos;
  const std::size_t certain = found_ ? stop_at : held_.size() - keep;
  std::string text = held_.substr(0, certain);
  held_.erase(0, found_ ? held_.size() : certain);
  return text;
}

std::string StopText::finish() { return std::exchange(held_, ""); }

}  // namespace qkv::cli
