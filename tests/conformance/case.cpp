#include "conformance/case.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "qkv/error.h"

namespace conformance {
namespace {

const std::string& metadata(const qkv::Checkpoint& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) throw qkv::Error("the metadata has no '" + key + "'");
  return found->second;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

Case::Case(const std::string& path) : file_(qkv::Checkpoint::open(path)) {
  op_ = metadata(file_, "op");
  try {
    opset_ = std::stoi(metadata(file_, "opset"));
    const auto attributes = nlohmann::json::parse(metadata(file_, "attributes"));
    for (const auto& [name, value] : attributes.items()) {
      attributes_[name] = value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
      if (value.is_string()) texts_[name] = value.get<std::string>();
    }
  } catch (const std::logic_error&) {  // std::stoi
    throw qkv::Error("the metadata 'opset' is not a number");
  } catch (const nlohmann::json::exception&) {
    throw qkv::Error("the metadata 'attributes' is not a JSON object");
  }
}

std::optional<double> Case::number(const std::string& name) const {
  const auto found = attributes_.find(name);
  if (found == attributes_.end()) return std::nullopt;
  if (!found->second) throw qkv::Error("attribute '" + name + "' is not a number");
  return found->second;
}

std::int64_t Case::integer(const std::string& name, std::int64_t otherwise) const {
  const std::optional<double> value = number(name);
  return value ? static_cast<std::int64_t>(*value) : otherwise;
}

std::string Case::text(const std::string& name, const std::string& otherwise) const {
  if (!attributes_.contains(name)) return otherwise;
  const auto found = texts_.find(name);
  if (found == texts_.end()) throw qkv::Error("attribute '" + name + "' is not text");
  return found->second;
}

qkv::Tensor Case::input(const std::string& slot) const {
  return file_.contains("in." + slot) ? file_["in." + slot] : qkv::Tensor{};
}

bool Case::has_output(const std::string& slot) const { return file_.contains("out." + slot); }

std::vector<std::string> Case::outputs() const {
  std::vector<std::string> slots;
  for (const std::string& name : file_.names()) {
    if (name.starts_with("out.")) slots.push_back(name.substr(4));
  }
  return slots;
}

qkv::Tensor Case::output(const std::string& slot) const { return file_["out." + slot]; }

void Case::require_known(const std::vector<std::string>& attributes,
                         const std::vector<std::string>& inputs) const {
  for (const auto& [name, value] : attributes_) {
    if (!contains(attributes, name)) throw qkv::Error("unknown attribute '" + name + "'");
  }
  for (const std::string& name : file_.names()) {
    if (name.starts_with("in.") && !contains(inputs, name.substr(3))) {
      throw qkv::Error("unknown input '" + name + "'");
    }
  }
}

}  // namespace conformance
