// Steps of a decoder without the host: recorded by the device once, replayed for every token.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/backend.h"
#include "qkv/models/model.h"

namespace qkv {

// What `step` gives, or an undefined tensor where it cannot be recorded. All else that it throws is
// the caller's: a device without memory has none for a plain step either.
template <class Step>
Tensor if_recordable(Step&& step) {
  try {
    return step();
  } catch (const NotRecordable&) {
    return {};
  }
}

// Of a batch without padding. The tensors of the cache stay where they are as long as this lives.
class RecordedStep {
 public:
  RecordedStep(const Model& model, nn::KvCache& cache, std::int64_t batch, Device device);

  // Logits [B, 1, V] after each sequence got its token; the next call overwrites them.
  // NotRecordable where the step cannot be recorded; the cache is as before then.
  Tensor operator()(const std::vector<std::int64_t>& tokens);

 private:
  Tensor run();

  const Model& model_;
  nn::KvCache& cache_;
  Tensor ids_;  // i64 [B, 1], on the device
  nn::StepPlace place_;
  Tensor logits_;
  std::unique_ptr<Recording> recording_;
  bool is_warm_ = false;  // weights are packed, ways to multiply chosen
};

}  // namespace qkv
