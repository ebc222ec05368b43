#include "cpu/kernels.h"
#include "cpu/attention_engine.h"
namespace qkv::cpu {
void softmax(const Tensor&, Tensor&) {}
const AttentionEngine* amx_engine(){return nullptr;}
const AttentionEngine* avx512_bf16_engine(){return nullptr;}
}
