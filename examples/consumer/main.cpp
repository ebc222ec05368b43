#include <cstdio>

#include "qkv/qkv.h"

int main() try {
  qkv::Generator random(1);
  const qkv::Tensor x = random.normal({1, 2, 16, 8});
  const qkv::Tensor out = qkv::attention(x, x, x, {.mask = qkv::Mask::causal()});
  std::printf("qkv %s on %s: attention of %s is %s\n", qkv::kVersion, qkv::cpu_target().c_str(),
              qkv::to_string(x.shape()).c_str(), qkv::to_string(out.shape()).c_str());
  return 0;
} catch (const qkv::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
