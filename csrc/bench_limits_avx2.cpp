// Limits of a core with AVX2 and FMA. The arithmetic is written in assembly: from intrinsics a compiler keeps
// sums in memory, shares them, or leaves work out, and what is measured is then no limit.
#include <immintrin.h>

#include "bench_limits.h"

namespace octavo {
namespace {

#define OCTAVO_FMA(sum) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #sum "\n\t"
#define OCTAVO_PRODUCT(to) "vpmaddubsw %%ymm14, %%ymm15, %%ymm" #to "\n\t"
#define OCTAVO_SUM(sum, product) "vpaddw %%ymm" #product ", %%ymm" #sum ", %%ymm" #sum "\n\t"
#define OCTAVO_SIX_PRODUCTS \
  OCTAVO_PRODUCT(8) OCTAVO_PRODUCT(9) OCTAVO_PRODUCT(10) OCTAVO_PRODUCT(11) OCTAVO_PRODUCT(12) OCTAVO_PRODUCT(13)

#define OCTAVO_ALL_REGISTERS                                                                                  \
  "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", \
      "xmm13", "xmm14", "xmm15"

// 12 sums: enough for two multiply-adds a cycle of up to six cycles each.
int64_t fma(int64_t rounds) {
  int64_t left = rounds;
  asm volatile(
      "vzeroall\n\t"
      ".p2align 6\n"
      "1:\n\t" OCTAVO_FMA(0) OCTAVO_FMA(1) OCTAVO_FMA(2) OCTAVO_FMA(3) OCTAVO_FMA(4) OCTAVO_FMA(5) OCTAVO_FMA(6)
          OCTAVO_FMA(7) OCTAVO_FMA(8) OCTAVO_FMA(9) OCTAVO_FMA(10) OCTAVO_FMA(11)
      "dec %0\n\t"
      "jnz 1b\n\t"
      "vzeroupper\n"
      : "+r"(left)
      :
      : OCTAVO_ALL_REGISTERS);
  return rounds * 12 * 8 * 2;
}

// Six products, then six sums: the order that keeps both multipliers busiest.
int64_t int8_multiply_add(int64_t rounds) {
  int64_t left = rounds;
  asm volatile(
      "vzeroall\n\t"
      ".p2align 6\n"
      "1:\n\t" OCTAVO_SIX_PRODUCTS OCTAVO_SUM(0, 8) OCTAVO_SUM(1, 9) OCTAVO_SUM(2, 10) OCTAVO_SUM(3, 11)
          OCTAVO_SUM(4, 12) OCTAVO_SUM(5, 13) OCTAVO_SIX_PRODUCTS OCTAVO_SUM(6, 8) OCTAVO_SUM(7, 9) OCTAVO_SUM(0, 10)
              OCTAVO_SUM(1, 11) OCTAVO_SUM(2, 12) OCTAVO_SUM(3, 13)
      "dec %0\n\t"
      "jnz 1b\n\t"
      "vzeroupper\n"
      : "+r"(left)
      :
      : OCTAVO_ALL_REGISTERS);
  return rounds * 12 * 32 * 2;
}

uint64_t read(const uint8_t* data, size_t num_bytes) {
  __m256i sums[8];
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  for (size_t at = 0; at < num_bytes; at += sizeof sums) {
    const __m256i* from = reinterpret_cast<const __m256i*>(data + at);
    for (int i = 0; i < 8; ++i) sums[i] = _mm256_xor_si256(sums[i], _mm256_load_si256(from + i));
  }
  for (int i = 1; i < 8; ++i) sums[0] = _mm256_xor_si256(sums[0], sums[i]);
  alignas(32) uint64_t words[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(words), sums[0]);
  return words[0] ^ words[1] ^ words[2] ^ words[3];
}

}  // namespace

const LimitLoops& avx2_limit_loops() {
  static const LimitLoops loops{&fma, &int8_multiply_add, &read};
  return loops;
}

}  // namespace octavo
