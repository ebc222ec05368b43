// What the parts of a pipeline share: where the file describes them.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

namespace qkv::text {

class Component {
 public:
  virtual ~Component() = default;
  const std::string& where() const { return where_; }  // file and key, for messages
  void set_where(std::string where) { where_ = std::move(where); }

 private:
  std::string where_;
};

// What applying one costs even where there is no text.
inline constexpr std::size_t kStepsOfComponent = 16;

}  // namespace qkv::text
