// The weights of a program, packed for the kernels.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "huge_memory.h"
#include "op.h"

namespace octavo {

// Matrices (of Embed and Linear) are packed once each, however many ops name them, into one arena; vectors (of
// norms, biases and rope factors) become floats. Nothing of the source is kept.
class WeightStore {
 public:
  // Throws std::invalid_argument for a weight that is named but not given.
  WeightStore(const ProgramSource& program, const KernelTable& kernels, int num_threads);

  const PackedMatrix& matrix(const std::string& name) const { return matrices_.at(name); }
  const std::vector<float>& vector(const std::string& name) const { return vectors_.at(name); }

 private:
  void add_matrix(const ProgramSource& program, const std::string& name);
  void add_vector(const ProgramSource& program, const KernelTable& kernels, const std::string& name);
  void pack(const ProgramSource& program, int num_threads);

  std::map<std::string, PackedMatrix> matrices_;
  std::map<std::string, std::vector<float>> vectors_;
  HugeMemory arena_;
};

}  // namespace octavo
