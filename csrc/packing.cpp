// Repacks GGUF rows into tiles. Portable: the layout is the same for every ISA.
#include <string.h>

#include "packed_layout.h"

namespace octavo {

int64_t packed_tile_bytes(WeightType type, int64_t cols) {
  const GroupFormat format = group_format(type);
  const int64_t bytes = cols / format.size * kTileRows * (format.scale_bytes + format.quant_bytes);
  return (bytes + 63) / 64 * 64;
}

namespace {

// One row of a matrix into lane `lane` of its tile.
void pack_row(const GroupFormat& format, int64_t num_groups, const uint8_t* source, int lane, uint8_t* tile) {
  // A lane is 4 bytes of a vector of quants, 2 bytes of a vector of scales, one element of a float type.
  const int quant_lane = format.size == 1 ? format.quant_bytes : 4;
  uint8_t* quants = tile;
  uint8_t* scales = tile + num_groups * kTileRows * format.quant_bytes;
  for (int64_t g = 0; g < num_groups; ++g) {
    for (int byte = 0; byte < format.scale_bytes; byte += 2, source += 2, scales += 2 * kTileRows) {
      memcpy(scales + lane * 2, source, 2);
    }
    for (int byte = 0; byte < format.quant_bytes; byte += quant_lane) {
      memcpy(quants + lane * quant_lane, source, quant_lane);
      source += quant_lane;
      quants += quant_lane * kTileRows;
    }
  }
}

}  // namespace

void pack_tiles(WeightType type, int64_t rows, int64_t cols, const uint8_t* source, int64_t tile_begin,
                int64_t tile_end, uint8_t* data) {
  const GroupFormat format = group_format(type);
  const int64_t num_groups = cols / format.size;
  const int64_t row_bytes = num_groups * (format.scale_bytes + format.quant_bytes);
  const int64_t tile_bytes = packed_tile_bytes(type, cols);
  for (int64_t t = tile_begin; t < tile_end; ++t) {
    uint8_t* tile = data + t * tile_bytes;
    memset(tile, 0, tile_bytes);
    for (int lane = 0; lane < kTileRows && t * kTileRows + lane < rows; ++lane) {
      pack_row(format, num_groups, source + (t * kTileRows + lane) * row_bytes, lane, tile);
    }
  }
}

}  // namespace octavo
