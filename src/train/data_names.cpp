#include <array>

#include "core/check.h"
#include "qkv/data.h"

namespace qkv {
namespace {

constexpr std::array kTasks{Task::language_model, Task::masked_lm, Task::sequence_to_sequence,
                            Task::classification};
constexpr std::array kDocuments{Documents::file, Documents::paragraph, Documents::line};

template <class Values>
auto named(const Values& values, const std::string& name, const char* what) {
  std::string known;
  for (const auto value : values) {
    if (to_string(value) == name) return value;
    known += (known.empty() ? "" : ", ") + to_string(value);
  }
  fail("there is no {} '{}'; there are {}", what, name, known);
}

}  // namespace

std::string to_string(Task task) {
  switch (task) {
    case Task::language_model: return "language-model";
    case Task::masked_lm: return "masked-lm";
    case Task::sequence_to_sequence: return "sequence-to-sequence";
    default: return "classification";
  }
}

Task task_from_string(const std::string& name) { return named(kTasks, name, "task"); }

std::string to_string(Documents documents) {
  switch (documents) {
    case Documents::file: return "file";
    case Documents::paragraph: return "paragraph";
    default: return "line";
  }
}

Documents documents_from_string(const std::string& name) {
  return named(kDocuments, name, "kind of documents");
}

}  // namespace qkv
