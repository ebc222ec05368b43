#include "conformance/case.h"
#include "qkv/error.h"
#include "qkv/ops.h"

namespace conformance {

Outputs run_softmax(const Case& c) {
  c.require_known({"axis"}, {"x"});
  const qkv::Tensor x = c.input("x");
  if (!x.defined()) throw qkv::Error("Softmax: the case has no input 'x'");
  if (c.opset() >= 13) {
    return {{"y", qkv::softmax(x, static_cast<int>(c.integer("axis", -1)))}};
  }
  // Before opset 13 the operator works on a matrix: the axes from `axis` on are one row.
  const std::int64_t given = c.integer("axis", 1);
  const std::int64_t axis = given < 0 ? given + x.rank() : given;
  if (axis < 0 || axis > x.rank()) throw qkv::Error("Softmax: axis is out of range");
  std::int64_t rows = 1, columns = 1;
  for (int i = 0; i < x.rank(); ++i) (i < axis ? rows : columns) *= x.size(i);
  const std::vector<std::int64_t> shape(x.shape().extents().begin(), x.shape().extents().end());
  return {{"y", qkv::reshape(qkv::softmax(qkv::reshape(x, {rows, columns})), shape)}};
}

}  // namespace conformance
