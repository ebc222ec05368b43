// What approximations of attention lose on the queries, keys and values of a real model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "qkv/models/model.h"

namespace qkv {

struct ApproxStudyOptions {
  std::vector<std::int64_t> features{64, 256, 1024};  // Performer
  std::vector<std::int64_t> windows{32, 128};         // Longformer
  // Linformer, whose projections have to be learned: means of so many stretches stand for them.
  std::vector<std::int64_t> lengths{16, 64};
  std::uint64_t seed = 1;  // of the directions
};

// One head of one layer, approximated in one way.
struct ApproxStudyRow {
  std::string side;  // "encoder" or "decoder"
  std::int64_t layer = 0, head = 0;
  std::string method;       // "performer", "longformer", "linformer"
  std::int64_t size = 0;    // features, window, length
  double cost = 0;          // multiply-adds, as a share of those of exact attention
  double output_error = 0;  // |out - exact| / |exact|, over all rows
  double weight_error = 0;  // the mean over rows of sum |p - exact| / 2: 0 = the same, 1 = disjoint
  double entropy = 0;       // the mean over rows, in nats
  double exact_entropy = 0;
};

struct ApproxStudy {
  ApproxStudyOptions options;
  std::string model;
  std::int64_t tokens = 0;
  std::vector<ApproxStudyRow> rows;
};

// Runs the model once on one sequence (input.ids [1, S]) and approximates every self-attention that
// it has. Weights are formed: memory is O(S^2).
ApproxStudy study_approx(const Model& model, const ModelInput& input,
                         const ApproxStudyOptions& options = {});

std::string to_text(const ApproxStudy& study);  // means over heads, and the worst head
std::string to_json(const ApproxStudy& study);  // everything
std::string to_svg(const ApproxStudy& study);   // error against cost, and against features

}  // namespace qkv
