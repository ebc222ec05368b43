// What one call may cost: steps of work and bytes of text in proportion to what it was given. A
// tokenizer that wants more is refused with an Error, so that no file makes a short text take for
// ever or fill the memory.
#pragma once

#include <cstddef>
#include <string>

namespace qkv::text {

class Allowance {
 public:
  // A step is a character looked at or a step of a pattern; real tokenizers take 5 to 50 of each
  // byte, and make at most twice as many bytes of it.
  static constexpr std::size_t kStepsPerByte = 512, kLeastSteps = std::size_t{1} << 20;
  static constexpr std::size_t kBytesPerByte = 32, kLeastBytes = std::size_t{64} << 10;

  Allowance() : Allowance(0) {}
  explicit Allowance(std::size_t bytes);  // of the text that was given

  // `where` names the file and the component in messages.
  void spend(std::size_t steps, const std::string& where) {
    if (steps > steps_) refuse_steps(where);
    steps_ -= steps;
  }
  std::size_t steps() const { return steps_; }
  void set_steps(std::size_t steps) { steps_ = steps; }  // by who counted them on its own
  [[noreturn]] void refuse_steps(const std::string& where) const;

  // Throws when `bytes` are more than may still be made.
  void check_bytes(std::size_t bytes, const std::string& where) const {
    if (bytes > bytes_) refuse_bytes(where);
  }
  void take_bytes(std::size_t bytes, const std::string& where) {
    check_bytes(bytes, where);
    bytes_ -= bytes;
  }

 private:
  [[noreturn]] void refuse_bytes(const std::string& where) const;

  std::size_t given_, steps_, bytes_;
};

// Throws when `ids` tokens stand for a text of more bytes than that many of any vocabulary do;
// `where` names the file.
void check_decoded(std::size_t bytes, std::size_t ids, const std::string& where);

}  // namespace qkv::text
