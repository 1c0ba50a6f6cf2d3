// Repacks GGUF rows into tiles. Portable: the layout is the same for every ISA.
#include <string.h>

#include "packed_layout.h"

namespace octavo {

int64_t packed_tile_bytes(WeightType type, int64_t cols) {
  const GroupFormat format = group_format(type);
  const int64_t bytes = cols / format.size * format.tile_bytes();
  return (bytes + 63) / 64 * 64;
}

namespace {

// Bytes [0, num_bytes) of a row go to lane `lane` of vectors that hold `lane_bytes` of each row.
void spread(const uint8_t* source, int num_bytes, int lane_bytes, int lane, uint8_t* vectors) {
  for (int byte = 0; byte < num_bytes; byte += lane_bytes) {
    memcpy(vectors + byte * kTileRows + lane * lane_bytes, source + byte, lane_bytes);
  }
}

void pack_row(const GroupFormat& format, int64_t num_groups, const uint8_t* source, int lane, uint8_t* tile) {
  const int quant_lane_bytes = format.size == 1 ? format.quant_bytes : 4;
  for (int64_t g = 0; g < num_groups; ++g, source += format.row_bytes(), tile += format.tile_bytes()) {
    spread(source, format.scale_bytes, 2, lane, tile);
    spread(source + format.scale_bytes, format.quant_bytes, quant_lane_bytes, lane,
           tile + format.scale_bytes * kTileRows);
  }
}

}  // namespace

void pack_tiles(WeightType type, int64_t rows, int64_t cols, const uint8_t* source, int64_t tile_begin,
                int64_t tile_end, uint8_t* data) {
  const GroupFormat format = group_format(type);
  const int64_t num_groups = cols / format.size;
  const int64_t row_bytes = num_groups * format.row_bytes();
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
