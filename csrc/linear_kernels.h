// The matmul functions of each ISA's KernelTable. Contracts: kernel_table.h.
#pragma once

#include "kernel_table.h"

namespace octavo::portable {

void quantize_row(const float* x, int64_t cols, const QuantizedRow& out);
void linear(const PackedMatrix& w, const Activations& x, int64_t m, int64_t tile_begin, int64_t tile_end,
            float* out, int64_t out_stride, bool accumulate);
void dequantize_row(const PackedMatrix& w, int64_t row, float* out);

}  // namespace octavo::portable

namespace octavo::avx2 {

void quantize_row(const float* x, int64_t cols, const QuantizedRow& out);
void linear(const PackedMatrix& w, const Activations& x, int64_t m, int64_t tile_begin, int64_t tile_end,
            float* out, int64_t out_stride, bool accumulate);
void dequantize_row(const PackedMatrix& w, int64_t row, float* out);

}  // namespace octavo::avx2
