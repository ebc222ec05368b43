// What the training study trains on: batches that are functions of the seed and the step.
#pragma once

#include <cstdint>
#include <string>

#include "qkv/models/model.h"
#include "qkv/study.h"

namespace qkv::study {

struct TaskBatch {
  Tensor ids, labels;  // i64 [B, S]; labels as Model::loss takes them
};

class TrainTask {
 public:
  explicit TrainTask(const TrainStudyOptions& options);  // reads the text where there is one

  TaskBatch batch(std::uint64_t seed, std::int64_t step) const;
  std::int64_t vocabulary() const;
  std::int64_t length() const;  // of a row
  double guessing() const;      // the loss of one who knows what may be asked for, and nothing else

 private:
  std::int64_t batch_, length_, pairs_;
  std::string text_;
};

}  // namespace qkv::study
