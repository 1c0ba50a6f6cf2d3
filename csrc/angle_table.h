// cos and sin of the rotary angles, by position, kept for all positions seen so far.
#pragma once

#include <vector>

#include "program.h"

namespace octavo {

class AngleTable {
 public:
  explicit AngleTable(const AngleSpec& spec);

  // Makes positions [0, num_positions) available. Angles are computed in double and rounded once.
  void extend(int64_t num_positions);

  // [rotary_dim / 2][2]: cos, sin.
  const float* row(int64_t position) const { return cos_sin_.data() + position * 2 * frequencies_.size(); }

 private:
  std::vector<double> frequencies_;  // [rotary_dim / 2]
  std::vector<float> cos_sin_;       // [positions][rotary_dim / 2][2]
};

}  // namespace octavo
