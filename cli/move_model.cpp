#include "move_model.h"

namespace qkv::cli {

void move_model(Model& model, Device device) {
  model.visit(nn::Visitor([&](const std::string&, Tensor& value, const Shape&) {
    if (value.defined()) value = to(value, device);
  }));
  model.tie();
}

}  // namespace qkv::cli
