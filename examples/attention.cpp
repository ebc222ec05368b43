// Attention, the health of its scores, and its gradients: the first example of the README.
// [attention]
#include <cstdio>

#include "qkv/qkv.h"

int main() {
  qkv::Generator random(1);
  const qkv::Tensor q = random.normal({1, 8, 256, 64});  // batch, heads, positions, head size
  const qkv::Tensor k = random.normal({1, 2, 256, 64});  // each key head serves four query heads
  const qkv::Tensor v = random.normal({1, 2, 256, 64});

  const qkv::AttentionOptions options{
      .mask = qkv::Mask::causal(),
      .statistics = qkv::Statistics::max_logit | qkv::Statistics::entropy,
  };
  const qkv::AttentionForward forward = qkv::attention_forward(q, k, v, options);

  const auto max_logit = forward.statistics.max_logit.to_vector<float>();
  const auto entropy = forward.statistics.entropy_mean.to_vector<float>();
  for (std::size_t head = 0; head < entropy.size(); ++head) {
    std::printf("head %zu: largest score %.2f, mean entropy %.2f nats\n", head, max_logit[head],
                entropy[head]);
  }

  const qkv::Tensor dout = random.normal(forward.out.shape());
  const qkv::AttentionGrads grads = qkv::attention_backward(dout, q, k, v, forward, options);
  std::printf("dq is %s, dk is %s\n", to_string(grads.dq.shape()).c_str(),
              to_string(grads.dk.shape()).c_str());
}
// [attention]
