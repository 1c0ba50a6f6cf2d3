// Limits of a core with AVX2 and FMA. The arithmetic is written in assembly: from intrinsics a compiler keeps
// sums in memory, shares them, or leaves work out, and what is measured is then no limit.
#include <immintrin.h>
#include <string.h>

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

// A group of 32 columns: 512 bytes of weights of two tiles, one each; scales; minima.
#define OCTAVO_WEIGHTS(half) \
  "vmovdqa " #half "*64(%1), %%ymm12\n\t" \
  "vmovdqa " #half "*64+32(%1), %%ymm13\n\t"
// Rows of activations stand 960 bytes apart: quants, factor and sum of 24 groups.
#define OCTAVO_QUANTS(row, half) "vpbroadcastd " #row "*960+" #half "*4(%2), %%ymm14\n\t"
#define OCTAVO_FIRST_OF_ROW(row, a, b)                  \
  OCTAVO_QUANTS(row, 0)                                 \
  "vpmaddubsw %%ymm14, %%ymm12, %%ymm" #a "\n\t"        \
  "vpmaddubsw %%ymm14, %%ymm13, %%ymm" #b "\n\t"
#define OCTAVO_NEXT_OF_ROW(half, row, a, b)             \
  OCTAVO_QUANTS(row, half)                              \
  "vpmaddubsw %%ymm14, %%ymm12, %%ymm15\n\t"            \
  "vpmaddubsw %%ymm14, %%ymm13, %%ymm14\n\t"            \
  OCTAVO_SUM(a, 15) OCTAVO_SUM(b, 14)
#define OCTAVO_HALF(half)                                                                             \
  OCTAVO_WEIGHTS(half)                                                                                \
  OCTAVO_NEXT_OF_ROW(half, 0, 0, 1) OCTAVO_NEXT_OF_ROW(half, 1, 2, 3) OCTAVO_NEXT_OF_ROW(half, 2, 4, 5) \
  OCTAVO_NEXT_OF_ROW(half, 3, 6, 7) OCTAVO_NEXT_OF_ROW(half, 4, 8, 9) OCTAVO_NEXT_OF_ROW(half, 5, 10, 11)
// sum = sum + scale * (factor * dot) + minimum * (sum of quants), for the two tiles.
#define OCTAVO_END_OF_ROW(row, a, b)                                   \
  "vpbroadcastd " #row "*960+32(%2), %%ymm14\n\t"                      \
  "vpmaddwd %%ymm14, %%ymm" #a ", %%ymm" #a "\n\t"                     \
  "vpmaddwd %%ymm14, %%ymm" #b ", %%ymm" #b "\n\t"                     \
  "vcvtdq2ps %%ymm" #a ", %%ymm" #a "\n\t"                             \
  "vcvtdq2ps %%ymm" #b ", %%ymm" #b "\n\t"                             \
  "vbroadcastss " #row "*960+36(%2), %%ymm15\n\t"                      \
  "vfmadd213ps " #row "*64(%3), %%ymm12, %%ymm" #a "\n\t"              \
  "vfmadd213ps " #row "*64+32(%3), %%ymm13, %%ymm" #b "\n\t"           \
  "vfmadd231ps 576(%1), %%ymm15, %%ymm" #a "\n\t"                      \
  "vfmadd231ps 608(%1), %%ymm15, %%ymm" #b "\n\t"                      \
  "vmovaps %%ymm" #a ", " #row "*64(%3)\n\t"                           \
  "vmovaps %%ymm" #b ", " #row "*64+32(%3)\n\t"

int64_t int8_groups(int64_t rounds) {
  constexpr int64_t kGroups = 24, kRows = 6, kOutputs = 16, kColumns = 32;
  constexpr int64_t kRoundsOfPass = 192;  // of int8_multiply_add, that are as much work as all groups once
  struct alignas(64) Memory {
    uint8_t weights[kGroups][640];
    uint8_t activations[kRows][960];
    float sums[kRows][kOutputs];
  } memory;
  memset(&memory, 0, sizeof memory);  // pages of its own: of one that all share, addresses are mistaken for each other
  const int64_t num_passes = (rounds + kRoundsOfPass - 1) / kRoundsOfPass;
  for (int64_t pass = 0; pass < num_passes; ++pass) {
    const uint8_t* weights = memory.weights[0];
    const uint8_t* activations = memory.activations[0];
    int64_t left = kGroups;
    asm volatile(
        ".p2align 6\n"
        "1:\n\t" OCTAVO_WEIGHTS(0) OCTAVO_FIRST_OF_ROW(0, 0, 1) OCTAVO_FIRST_OF_ROW(1, 2, 3)
            OCTAVO_FIRST_OF_ROW(2, 4, 5) OCTAVO_FIRST_OF_ROW(3, 6, 7) OCTAVO_FIRST_OF_ROW(4, 8, 9)
                OCTAVO_FIRST_OF_ROW(5, 10, 11) OCTAVO_HALF(1) OCTAVO_HALF(2) OCTAVO_HALF(3) OCTAVO_HALF(4)
                    OCTAVO_HALF(5) OCTAVO_HALF(6) OCTAVO_HALF(7)
        "vmovaps 512(%1), %%ymm12\n\t"
        "vmovaps 544(%1), %%ymm13\n\t" OCTAVO_END_OF_ROW(0, 0, 1) OCTAVO_END_OF_ROW(1, 2, 3)
            OCTAVO_END_OF_ROW(2, 4, 5) OCTAVO_END_OF_ROW(3, 6, 7) OCTAVO_END_OF_ROW(4, 8, 9) OCTAVO_END_OF_ROW(5, 10, 11)
        "add $640, %1\n\t"
        "add $40, %2\n\t"
        "dec %0\n\t"
        "jnz 1b\n\t"
        "vzeroupper\n"
        : "+r"(left), "+r"(weights), "+r"(activations)
        : "r"(memory.sums)
        : "memory", OCTAVO_ALL_REGISTERS);
  }
  return num_passes * kGroups * kRows * kOutputs * kColumns * 2;
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
  static const LimitLoops loops{&fma, &int8_multiply_add, &int8_groups, &read};
  return loops;
}

}  // namespace octavo
