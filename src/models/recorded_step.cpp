#include "models/recorded_step.h"

#include "core/check.h"

namespace qkv {
namespace {

// Puts new values where a recording will read them.
void put(const Tensor& values, Tensor& there) { backend(there.device()).copy(values, there); }

// The cache has its place for as long as this lives.
struct AtPlace {
  nn::KvCache& cache;
  AtPlace(nn::KvCache& of, const nn::StepPlace& place) : cache(of) { cache.place = place; }
  ~AtPlace() { cache.place.reset(); }
  AtPlace(const AtPlace&) = delete;
  AtPlace& operator=(const AtPlace&) = delete;
};

}  // namespace

RecordedStep::RecordedStep(const Model& model, nn::KvCache& cache, std::int64_t batch,
                           Device device)
    : model_(model),
      cache_(cache),
      ids_(Tensor::empty({batch, 1}, {DType::i64, device})),
      place_{Tensor::empty({1}, {DType::i64, device}),
             Tensor::empty({batch}, {DType::i32, device})} {}

Tensor RecordedStep::operator()(const std::vector<std::int64_t>& tokens) {
  check(static_cast<std::int64_t>(tokens.size()) == ids_.size(0),
        "generate: {} tokens for {} sequences", tokens.size(), ids_.size(0));
  const std::int64_t length = cache_.length();
  check(length < cache_.capacity(), "cache: {} positions and 1 more exceed its capacity of {}",
        length, cache_.capacity());
  put(Tensor::from(tokens, ids_.shape()), ids_);
  put(Tensor::from(std::vector{length}, {1}), place_.position);
  const std::vector lengths(tokens.size(), static_cast<std::int32_t>(length + 1));
  put(Tensor::from(lengths, place_.lengths.shape()), place_.lengths);
  if (!is_warm_) {
    logits_ = run();
    is_warm_ = true;
  } else {
    if (!recording_) recording_ = backend(ids_.device()).record([&] { logits_ = run(); });
    recording_->replay();
  }
  cache_.skip(1);
  return logits_;
}

Tensor RecordedStep::run() {
  const AtPlace at(cache_, place_);
  return model_({.ids = ids_}, {.cache = &cache_, .last_logits_only = true}).logits;
}

}  // namespace qkv
