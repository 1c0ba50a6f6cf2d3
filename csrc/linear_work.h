// How a matmul is shared out among threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "thread_team.h"

namespace octavo {

// Its units are the tiles of all its matrices in one line; num_bytes: of their packed weights. `rows` of activations.
inline PhaseWork linear_work(int64_t rows, int64_t num_tiles, int64_t num_bytes, int num_threads) {
  constexpr int64_t kTiles = 2;                // that kernels take together: a cache line of output
  constexpr int64_t kRowTiles = 4;             // the same for one row
  constexpr int64_t kStreamBytes = 128 << 10;  // of weights for one row: shorter pieces are read more slowly
  if (rows == 0) return {0, 1};
  if (rows > 1) return {num_tiles, kTiles};
  const int64_t num_chunks = std::max<int64_t>(num_bytes / kStreamBytes, num_threads);
  const int64_t chunk = (num_tiles + num_chunks - 1) / num_chunks;
  return {num_tiles, (chunk + kRowTiles - 1) / kRowTiles * kRowTiles};
}

}  // namespace octavo
