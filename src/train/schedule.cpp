#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/check.h"
#include "qkv/train.h"

namespace qkv {

std::string to_string(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::linear: return "linear";
    case ScheduleKind::cosine: return "cosine";
    case ScheduleKind::inverse_sqrt: return "inverse_sqrt";
    default: return "constant";
  }
}

ScheduleKind schedule_from_string(const std::string& name) {
  for (const ScheduleKind kind : {ScheduleKind::constant, ScheduleKind::linear,
                                  ScheduleKind::cosine, ScheduleKind::inverse_sqrt}) {
    if (name == to_string(kind)) return kind;
  }
  fail("schedule '{}' is none of constant, linear, cosine, inverse_sqrt", name);
}

double schedule_factor(const ScheduleOptions& schedule, std::int64_t step, std::int64_t steps) {
  const auto at = static_cast<double>(step), warmup = static_cast<double>(schedule.warmup);
  if (step <= schedule.warmup) return at / warmup;
  const double left = static_cast<double>(std::max<std::int64_t>(steps - schedule.warmup, 1));
  const double done = std::min((at - warmup) / left, 1.0);
  const double span = 1 - schedule.floor;
  switch (schedule.kind) {
    case ScheduleKind::linear: return schedule.floor + span * (1 - done);
    case ScheduleKind::cosine:
      return schedule.floor + span * (1 + std::cos(std::numbers::pi * done)) / 2;
    case ScheduleKind::inverse_sqrt: return std::sqrt(std::max(warmup, 1.0) / at);
    default: return 1;
  }
}

}  // namespace qkv
