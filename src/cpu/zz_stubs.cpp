#include "cpu/kernels.h"
#include "cpu/attention_engine.h"
namespace qkv::cpu {
void attention_backward(const AttentionProblem&, const AttentionBackward&) {}
const AttentionEngine* amx_engine(){return nullptr;}
const AttentionEngine* avx512_bf16_engine(){return nullptr;}
}
