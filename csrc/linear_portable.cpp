// Matmul kernels in plain C++: the definition of what a tile means, and the fallback for any CPU.
#include "linear_kernels.h"

#include <math.h>

#include "packed_layout.h"

namespace octavo::portable {
namespace {

// Element k of a group for lane `lane`, as the integer that the scale multiplies (Q4_0: plus 8).
inline int32_t quant_at(WeightType type, const uint8_t* quants, int k, int lane) {
  if (type == WeightType::Q8_0) return static_cast<int8_t>(quants[k / 4 * 32 + lane * 4 + k % 4]);
  const uint8_t pair = quants[k % 16 / 4 * 32 + lane * 4 + k % 4];
  return k < 16 ? pair & 15 : pair >> 4;
}

// The quants of a group of a tile, [element][lane].
using GroupQuants = int32_t[kGroupSize][kTileRows];

void unpack_group(WeightType type, const uint8_t* packed, GroupQuants& quants) {
  for (int k = 0; k < kGroupSize; ++k) {
    for (int lane = 0; lane < kTileRows; ++lane) quants[k][lane] = quant_at(type, packed, k, lane);
  }
}

// Lane `lane` of the f16 vector number `index`.
float half_at(const uint8_t* halves, int64_t index, int lane) {
  uint16_t half;
  memcpy(&half, halves + (index * kTileRows + lane) * 2, 2);
  return half_to_float(half);
}

float element_at(WeightType type, const uint8_t* tile, int64_t col, int lane) {
  const int64_t index = col * kTileRows + lane;
  if (type == WeightType::F32) {
    float value;
    memcpy(&value, tile + index * 4, 4);
    return value;
  }
  uint16_t bits;
  memcpy(&bits, tile + index * 2, 2);
  return type == WeightType::F16 ? half_to_float(bits) : bfloat_to_float(bits);
}

// acc[lane] += the group's share of the dot product with one row of activations.
void add_group(WeightType type, const GroupQuants& quants, const uint8_t* scales, const int8_t* x,
               float x_scale, float x_scaled_sum, float* acc) {
  int32_t dots[kTileRows] = {};
  for (int k = 0; k < kGroupSize; ++k) {
    for (int lane = 0; lane < kTileRows; ++lane) dots[lane] += quants[k][lane] * x[k];
  }
  for (int lane = 0; lane < kTileRows; ++lane) {
    float product = static_cast<float>(dots[lane]) * x_scale;
    if (type == WeightType::Q4_0) product -= 8.0f * x_scaled_sum;
    acc[lane] += half_at(scales, 0, lane) * product;
    if (type == WeightType::Q4_1) acc[lane] += half_at(scales, 1, lane) * x_scaled_sum;
  }
}

constexpr int kMaxRows = 8;  // rows of activations that share the unpacking of a tile

// acc[i][lane] = dot of row first + i with the tile's row `lane`, for i in [0, count).
void quantized_dots(const PackedMatrix& w, const uint8_t* tile, const Activations& x, int64_t first, int count,
                    float (*acc)[kTileRows]) {
  const GroupFormat format = group_format(w.type);
  const int64_t num_groups = w.cols / kGroupSize;
  for (int64_t g = 0; g < num_groups; ++g, tile += format.tile_bytes()) {
    GroupQuants quants;
    unpack_group(w.type, tile + format.scale_bytes * kTileRows, quants);
    for (int i = 0; i < count; ++i) {
      const int64_t group = (first + i) * num_groups + g;
      add_group(w.type, quants, tile, x.quants + group * kGroupSize, x.scales[group], x.scaled_sums[group],
                acc[i]);
    }
  }
}

void float_dots(const PackedMatrix& w, const uint8_t* tile, const Activations& x, int64_t first, int count,
                float (*acc)[kTileRows]) {
  for (int64_t k = 0; k < w.cols; ++k) {
    float weights[kTileRows];
    for (int lane = 0; lane < kTileRows; ++lane) weights[lane] = element_at(w.type, tile, k, lane);
    for (int i = 0; i < count; ++i) {
      const float value = x.values[(first + i) * x.value_stride + k];
      for (int lane = 0; lane < kTileRows; ++lane) acc[i][lane] += weights[lane] * value;
    }
  }
}

}  // namespace

void quantize_row(const float* x, int64_t cols, int8_t* quants, float* scales, float* scaled_sums) {
  for (int64_t g = 0; g < cols / kGroupSize; ++g, x += kGroupSize, quants += kGroupSize) {
    // As integers, magnitudes keep their order and NaN is the greatest: it reaches the scale.
    uint32_t greatest = 0;
    for (int k = 0; k < kGroupSize; ++k) {
      const uint32_t magnitude = bits_of(x[k]) & 0x7fffffff;
      greatest = magnitude > greatest ? magnitude : greatest;
    }
    const float scale = float_of(greatest) / 127.0f;
    int32_t sum = 0;
    for (int k = 0; k < kGroupSize; ++k) {
      // The bounds matter where the scale is subnormal or not finite; NaN becomes 127.
      float quotient = scale == 0.0f ? 0.0f : x[k] / scale;
      quotient = quotient < 127.0f ? quotient : 127.0f;
      quotient = quotient > -127.0f ? quotient : -127.0f;
      quants[k] = static_cast<int8_t>(lrintf(quotient));
      sum += quants[k];
    }
    scales[g] = scale;
    scaled_sums[g] = scale * static_cast<float>(sum);
  }
}

void linear(const PackedMatrix& w, const Activations& x, int64_t m, int64_t tile_begin, int64_t tile_end,
            float* out, int64_t out_stride, bool accumulate) {
  const bool quantized = is_quantized(w.type);
  for (int64_t t = tile_begin; t < tile_end; ++t) {
    const uint8_t* tile = w.data + t * w.tile_bytes;
    for (int64_t first = 0; first < m; first += kMaxRows) {
      const int count = static_cast<int>(m - first < kMaxRows ? m - first : kMaxRows);
      float acc[kMaxRows][kTileRows] = {};
      (quantized ? quantized_dots : float_dots)(w, tile, x, first, count, acc);
      for (int i = 0; i < count; ++i) {
        float* row = out + (first + i) * out_stride + t * kTileRows;
        for (int lane = 0; lane < kTileRows && t * kTileRows + lane < w.rows; ++lane) {
          row[lane] = accumulate ? row[lane] + acc[i][lane] : acc[i][lane];
        }
      }
    }
  }
}

void dequantize_row(const PackedMatrix& w, int64_t row, float* out) {
  const uint8_t* tile = w.data + row / kTileRows * w.tile_bytes;
  const int lane = static_cast<int>(row % kTileRows);
  if (!is_quantized(w.type)) {
    for (int64_t k = 0; k < w.cols; ++k) out[k] = element_at(w.type, tile, k, lane);
    return;
  }
  const GroupFormat format = group_format(w.type);
  const float bias = w.type == WeightType::Q4_0 ? -8.0f : 0.0f;
  for (int64_t g = 0; g < w.cols / kGroupSize; ++g, tile += format.tile_bytes()) {
    const uint8_t* quants = tile + format.scale_bytes * kTileRows;
    const float scale = half_at(tile, 0, lane);
    const float minimum = w.type == WeightType::Q4_1 ? half_at(tile, 1, lane) : 0.0f;
    for (int k = 0; k < kGroupSize; ++k) {
      *out++ = scale * (static_cast<float>(quant_at(w.type, quants, k, lane)) + bias) + minimum;
    }
  }
}

}  // namespace octavo::portable
