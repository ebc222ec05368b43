// What the curves say about what people say. Every number in these sentences, and every verdict,
// comes from the study at hand.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/order.h"
#include "study/curves.h"
#include "study/words.h"

namespace qkv {
namespace study {
namespace {

using Verdict = Finding::Verdict;
using Member = double CurvePoint::*;

enum Group : std::size_t { none, usual, inverse };

std::vector<SpreadPoint> curve(const TrainStudy& study, Group group, Member member) {
  return spread(study.groups[group], member);
}
double at_first(const TrainStudy& study, Group group, Member member) {
  return curve(study, group, member).front().mean;
}

// The median over the second half of the run, and the largest there.
struct LateValues {
  double median, largest;
};
LateValues late(const TrainStudy& study, Group group, Member member) {
  std::vector<double> values;
  const std::vector<SpreadPoint> points = curve(study, group, member);
  for (std::size_t i = points.size() / 2; i < points.size(); ++i) values.push_back(points[i].mean);
  std::sort(values.begin(), values.end(), is_smaller<double>);
  return {values[values.size() / 2], values.back()};
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

Finding beginning(const TrainStudy& study) {
  const auto part = [&](Group group) {
    return fmt::format("the largest logit is {} and the entropy {} of its largest",
                       digits(at_first(study, group, &CurvePoint::max_logit), 3),
                       percent(at_first(study, group, &CurvePoint::entropy)));
  };
  const bool holds =
      at_first(study, none, &CurvePoint::entropy) < at_first(study, usual, &CurvePoint::entropy) &&
      at_first(study, none, &CurvePoint::saturation) >
          at_first(study, usual, &CurvePoint::saturation);
  return {
      holds ? Verdict::holds : Verdict::disagrees,
      fmt::format("Unscaled scores saturate the softmax before anything is learnt. At the first "
                  "step without a scale {}, {} of the rows are saturated; with 1/sqrt(d_k) {} "
                  "({} saturated); with 1/d_k {} ({}).",
                  part(none), percent(at_first(study, none, &CurvePoint::saturation)), part(usual),
                  percent(at_first(study, usual, &CurvePoint::saturation)), part(inverse),
                  percent(at_first(study, inverse, &CurvePoint::saturation)))};
}

// The first step at which a curve is at or below a loss; empty: never.
std::string reached(const TrainStudy& study, Group group, double loss) {
  for (const SpreadPoint& p : curve(study, group, &CurvePoint::loss)) {
    if (p.mean <= loss) return fmt::format("by step {:.0f}", p.step);
  }
  return {};
}

Finding learning(const TrainStudy& study) {
  const SpreadPoint a = curve(study, none, &CurvePoint::loss).back();
  const SpreadPoint b = curve(study, usual, &CurvePoint::loss).back();
  std::string text = fmt::format(
      "A saturated softmax learns slowly. After {:.0f} steps the loss is {} without a scale and {} "
      "with 1/sqrt(d_k) (guessing: {})",
      a.step, digits(a.mean), digits(b.mean), digits(study.guessing));
  if (b.mean < a.mean) {
    text += fmt::format("; 1/sqrt(d_k) is where the other ends {}", reached(study, usual, a.mean));
  }
  if (study.options.seeds > 1) {
    text += fmt::format(". Over {} seeds: {} to {} against {} to {}", study.options.seeds,
                        digits(a.low), digits(a.high), digits(b.low), digits(b.high));
  }
  // Apart with every seed, or apart on the whole, or not.
  const Verdict verdict = b.high < a.low    ? Verdict::holds
                          : b.mean < a.mean ? Verdict::loose
                                            : Verdict::disagrees;
  return {verdict, text + "."};
}

Finding growth(const TrainStudy& study) {
  const auto part = [&](Group group) {
    const std::vector<SpreadPoint> logits = curve(study, group, &CurvePoint::max_logit);
    const std::vector<SpreadPoint> rows = curve(study, group, &CurvePoint::saturation);
    return fmt::format("from {} to {}, with {} of the rows saturated at the end",
                       digits(logits.front().mean, 3), digits(logits.back().mean, 3),
                       percent(rows.back().mean));
  };
  const double first = at_first(study, none, &CurvePoint::saturation);
  const double last = curve(study, none, &CurvePoint::saturation).back().mean;
  return {
      last >= first ? Verdict::holds : Verdict::disagrees,
      fmt::format("Training does not undo it. The largest logit goes {} without a scale; {} with "
                  "1/sqrt(d_k); {} with 1/d_k.",
                  part(none), part(usual), part(inverse))};
}

Finding gradients(const TrainStudy& study) {
  const Member q = &CurvePoint::q_gradient;
  const LateValues a = late(study, none, q), b = late(study, usual, q);
  const bool vanishes = at_first(study, none, q) < at_first(study, usual, q) && a.median < b.median;
  return {
      vanishes ? Verdict::holds : Verdict::loose,
      fmt::format("\"Without the scale the gradient vanishes.\" At the first step the gradient at "
                  "Q is {} than with 1/sqrt(d_k) ({} against {}): the scale multiplies it too. "
                  "In the second half its median is {} ({} against {}), and its largest value is "
                  "{:.3g} times its median, {:.3g} times with 1/sqrt(d_k).",
                  compare(at_first(study, none, q), at_first(study, usual, q)),
                  digits(at_first(study, none, q), 3), digits(at_first(study, usual, q), 3),
                  compare(a.median, b.median), digits(a.median, 3), digits(b.median, 3),
                  a.largest / a.median, b.largest / b.median)};
}

Finding flatness(const TrainStudy& study) {
  const SpreadPoint b = curve(study, usual, &CurvePoint::loss).back();
  const SpreadPoint c = curve(study, inverse, &CurvePoint::loss).back();
  const Member q = &CurvePoint::q_gradient;
  std::string text = fmt::format(
      "\"1/d_k is too flat to learn from.\" It begins with an entropy of {} of its largest and a "
      "gradient at Q that is {} than with 1/sqrt(d_k). It ends with loss {} against {}",
      percent(at_first(study, inverse, &CurvePoint::entropy)),
      compare(at_first(study, inverse, q), at_first(study, usual, q)), digits(c.mean),
      digits(b.mean));
  const bool is_slower = c.low > b.high;
  if (!is_slower && study.options.rule != OptimizerRule::sgd) {
    text += fmt::format(
        ": {} takes steps that do not depend on the size of a gradient, so weights can grow until "
        "they make up for the scale. --optimizer sgd shows the study without that",
        to_string(study.options.rule));
  }
  return {is_slower ? Verdict::holds : Verdict::loose, text + "."};
}

}  // namespace
}  // namespace study

std::vector<Finding> findings(const TrainStudy& study) {
  return {study::beginning(study), study::learning(study), study::growth(study),
          study::gradients(study), study::flatness(study)};
}

}  // namespace qkv
