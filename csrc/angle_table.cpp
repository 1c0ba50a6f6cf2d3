#include "angle_table.h"

#include <algorithm>
#include <cmath>

namespace octavo {

AngleTable::AngleTable(const AngleSpec& spec) {
  for (int32_t i = 0; i < spec.rotary_dim / 2; ++i) {
    const double factor = spec.factors != nullptr ? (*spec.factors)[i] : 1.0;
    frequencies_.push_back(std::pow(spec.base, -2.0 * i / spec.rotary_dim) / factor);
  }
}

void AngleTable::extend(int64_t num_positions) {
  const int64_t known = static_cast<int64_t>(cos_sin_.size() / (2 * frequencies_.size()));
  if (num_positions <= known) return;
  const int64_t wanted = std::max(num_positions, 2 * known);  // doubled, so that decoding seldom comes here
  cos_sin_.reserve(wanted * 2 * frequencies_.size());
  for (int64_t position = known; position < wanted; ++position) {
    for (const double frequency : frequencies_) {
      const double angle = static_cast<double>(position) * frequency;
      cos_sin_.push_back(static_cast<float>(std::cos(angle)));
      cos_sin_.push_back(static_cast<float>(std::sin(angle)));
    }
  }
}

}  // namespace octavo
