#include "sampling_kernels.h"

namespace octavo::portable {

using Vector = double __attribute__((vector_size(16)));
using Bits = int64_t __attribute__((vector_size(16)));

void weigh(double* values, int64_t size, double best, double temperature) {
  weigh_all<Vector, Bits>(values, size, best, temperature);
}

}  // namespace octavo::portable
