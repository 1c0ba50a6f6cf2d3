// Matmul kernels for any CPU, and the definition of what a tile means. Vectors are the compiler's own: it knows
// what the target has for them.
#include "linear_kernels.h"

#include <math.h>

#include "packed_layout.h"
#include "quantized_row.h"

namespace octavo::portable {
namespace {

// One float for each row of a tile, as two vectors of a size that every target has.
struct Lanes {
  using Half = float __attribute__((vector_size(kTileRows / 2 * sizeof(float))));
  Half low, high;

  static Lanes load(const float* lanes) {
    Lanes result;
    memcpy(&result, lanes, sizeof result);
    return result;
  }
  void add_product(const Lanes& a, const Lanes& b) {
    low += a.low * b.low;
    high += a.high * b.high;
  }
  void add_product(const Lanes& a, float b) {
    low += a.low * b;
    high += a.high * b;
  }
};

// Element k of a group for lane `lane`, as the integer that the scale multiplies.
inline int quant_at(WeightType type, const uint8_t* quants, int k, int lane) {
  if (type == WeightType::Q8_0) return static_cast<int8_t>(quants[k / 4 * 32 + lane * 4 + k % 4]);
  const uint8_t pair = quants[k % 16 / 4 * 32 + lane * 4 + k % 4];
  const int quant = k < 16 ? pair & 15 : pair >> 4;
  return type == WeightType::Q4_0 ? quant - 8 : quant;
}

// Lane `lane` of the f16 vector number `index`.
inline float half_at(const uint8_t* halves, int index, int lane) {
  uint16_t half;
  memcpy(&half, halves + (index * kTileRows + lane) * 2, 2);
  return half_to_float(half);
}

// A group of a tile, unpacked: element k of each row is quants[k] * scales, and + minima in Q4_1 alone.
struct Group {
  Lanes quants[kGroupSize];
  Lanes scales;
  Lanes minima;
};

template <WeightType W>
void unpack(const uint8_t* packed, Group& group) {
  const uint8_t* quants = packed + group_format(W).scale_bytes * kTileRows;
  float lanes[kTileRows];
  for (int k = 0; k < kGroupSize; ++k) {
    for (int lane = 0; lane < kTileRows; ++lane) lanes[lane] = static_cast<float>(quant_at(W, quants, k, lane));
    group.quants[k] = Lanes::load(lanes);
  }
  for (int lane = 0; lane < kTileRows; ++lane) lanes[lane] = half_at(packed, 0, lane);
  group.scales = Lanes::load(lanes);
  if (W != WeightType::Q4_1) return;
  for (int lane = 0; lane < kTileRows; ++lane) lanes[lane] = half_at(packed, 1, lane);
  group.minima = Lanes::load(lanes);
}

inline float element_at(WeightType type, const uint8_t* tile, int64_t col, int lane) {
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

// acc += the group's share of the dot product with one row of activations. Products and sums of quants are
// whole numbers below 2^24: exact as floats, which every target multiplies well.
template <WeightType W>
inline void add_group(const Group& group, const QuantizedGroup& x, Lanes& acc) {
  const auto factor = static_cast<float>(x.factor & 0x7fff);
  Lanes dots = {};
  for (int k = 0; k < kGroupSize; ++k) dots.add_product(group.quants[k], static_cast<float>(x.quants[k]));
  acc.add_product(group.scales, Lanes{dots.low * factor, dots.high * factor});
  if (W == WeightType::Q4_1) acc.add_product(group.minima, x.sum);
}

constexpr int kMaxRows = 8;  // rows of activations that share the unpacking of a tile

// acc[i] = dots of row first + i with the rows of the tile, for i in [0, count).
template <WeightType W>
void quantized_dots(const PackedMatrix& w, const uint8_t* tile, const Activations& x, int64_t first, int count,
                    Lanes* acc) {
  const int64_t num_groups = w.cols / kGroupSize;
  for (int64_t g = 0; g < num_groups; ++g, tile += group_format(W).tile_bytes()) {
    Group group;
    unpack<W>(tile, group);
    for (int i = 0; i < count; ++i) {
      const int64_t at = (first + i) * num_groups + g;
      add_group<W>(group, x.groups[at], acc[i]);
    }
  }
}

template <WeightType W>
void float_dots(const PackedMatrix& w, const uint8_t* tile, const Activations& x, int64_t first, int count,
                Lanes* acc) {
  for (int64_t k = 0; k < w.cols; ++k) {
    float lanes[kTileRows];
    for (int lane = 0; lane < kTileRows; ++lane) lanes[lane] = element_at(W, tile, k, lane);
    const Lanes weights = Lanes::load(lanes);
    for (int i = 0; i < count; ++i) acc[i].add_product(weights, x.values[(first + i) * x.value_stride + k]);
  }
}

using Dots = void (*)(const PackedMatrix& w, const uint8_t* tile, const Activations& x, int64_t first, int count,
                      Lanes* acc);

Dots dots_of(WeightType type) {
  switch (type) {
    case WeightType::F32: return float_dots<WeightType::F32>;
    case WeightType::F16: return float_dots<WeightType::F16>;
    case WeightType::BF16: return float_dots<WeightType::BF16>;
    case WeightType::Q8_0: return quantized_dots<WeightType::Q8_0>;
    case WeightType::Q4_0: return quantized_dots<WeightType::Q4_0>;
    case WeightType::Q4_1: break;
  }
  return quantized_dots<WeightType::Q4_1>;
}

// As integers, magnitudes keep their order and NaN is the greatest: it reaches the unit.
uint32_t greatest_magnitude(const float* x, int64_t count) {
  uint32_t greatest = 0;
  for (int64_t k = 0; k < count; ++k) {
    const uint32_t magnitude = bits_of(x[k]) & 0x7fffffff;
    greatest = magnitude > greatest ? magnitude : greatest;
  }
  return greatest;
}

}  // namespace

void quantize_row(const float* x, int64_t cols, const QuantizedRow& out) {
  const float unit = unit_of(float_of(greatest_magnitude(x, cols)));
  *out.unit = unit;
  for (int64_t g = 0; g < cols / kGroupSize; ++g, x += kGroupSize) {
    const float factor = factor_of(float_of(greatest_magnitude(x, kGroupSize)), unit);
    const float inverse = inverse_of(factor, unit);
    QuantizedGroup& group = out.groups[g];
    int32_t sum = 0;
    for (int k = 0; k < kGroupSize; ++k) {
      // The bounds matter where a value is not finite; NaN becomes 127.
      float quotient = x[k] * inverse;
      quotient = quotient < 127.0f ? quotient : 127.0f;
      quotient = quotient > -127.0f ? quotient : -127.0f;
      group.quants[k] = static_cast<int8_t>(lrintf(quotient));
      sum += group.quants[k];
    }
    group.factor = static_cast<int32_t>(factor) * 65537;
    group.sum = factor * static_cast<float>(sum);
  }
}

void linear(const PackedMatrix& w, const Activations& x, int64_t m, int64_t tile_begin, int64_t tile_end,
            float* out, int64_t out_stride, bool accumulate) {
  const Dots dots = dots_of(w.type);
  for (int64_t t = tile_begin; t < tile_end; ++t) {
    const uint8_t* tile = w.data + t * w.tile_bytes;
    for (int64_t first = 0; first < m; first += kMaxRows) {
      const int count = static_cast<int>(m - first < kMaxRows ? m - first : kMaxRows);
      Lanes acc[kMaxRows] = {};
      dots(w, tile, x, first, count, acc);
      for (int i = 0; i < count; ++i) {
        const float unit = is_quantized(w.type) ? x.units[first + i] : 1.0f;
        float lanes[kTileRows];
        memcpy(lanes, &acc[i], sizeof lanes);
        for (float& dot : lanes) dot *= unit;
        float* row = out + (first + i) * out_stride + t * kTileRows;
        for (int lane = 0; lane < kTileRows && t * kTileRows + lane < w.rows; ++lane) {
          row[lane] = accumulate ? row[lane] + lanes[lane] : lanes[lane];
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
  for (int64_t g = 0; g < w.cols / kGroupSize; ++g, tile += format.tile_bytes()) {
    const uint8_t* quants = tile + format.scale_bytes * kTileRows;
    const float scale = half_at(tile, 0, lane);
    const float minimum = w.type == WeightType::Q4_1 ? half_at(tile, 1, lane) : 0.0f;
    for (int k = 0; k < kGroupSize; ++k) {
      *out++ = scale * static_cast<float>(quant_at(w.type, quants, k, lane)) + minimum;
    }
  }
}

}  // namespace octavo::portable
