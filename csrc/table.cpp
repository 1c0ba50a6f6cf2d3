#include "table.h"

#include <cstdlib>
#include <stdexcept>

#include "linear_kernels.h"
#include "ops_kernels.h"
#include "sampling_kernels.h"

namespace octavo {

const KernelTable& portable_table() {
  static const KernelTable table = {
      "portable",         portable::quantize_row, portable::linear, portable::dequantize_row, portable::rms_norm,
      portable::silu_mul, portable::add,          portable::rope,   portable::kv_write,       portable::attention,
      portable::merge_partial, portable::weigh,
  };
  return table;
}

const KernelTable* avx2_table() {
#if defined(__x86_64__)
  static const KernelTable table = {
      "avx2",         avx2::quantize_row, avx2::linear, avx2::dequantize_row, avx2::rms_norm,
      avx2::silu_mul, avx2::add,          avx2::rope,   avx2::kv_write,       avx2::attention,
      avx2::merge_partial, avx2::weigh,
  };
  const bool can_run =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  return can_run ? &table : nullptr;
#else
  return nullptr;
#endif
}

namespace {

std::vector<const KernelTable*> available_tables() {
  std::vector<const KernelTable*> tables = {&portable_table()};
  if (const KernelTable* table = avx2_table()) tables.push_back(table);
  return tables;
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const KernelTable* table : available_tables()) names.push_back(table->name);
  return names;
}

const KernelTable& table_named(const std::string& isa) {
  std::string names;
  for (const KernelTable* table : available_tables()) {
    if (isa == table->name) return *table;
    names += names.empty() ? table->name : std::string(", ") + table->name;
  }
  const bool is_known = isa == "avx2";
  throw std::invalid_argument("isa '" + isa + "' is " + (is_known ? "not available on this CPU" : "unknown") +
                              "; this machine has: " + names);
}

const KernelTable& default_table() {
  static const KernelTable& table = []() -> const KernelTable& {
    const char* isa = std::getenv("OCTAVO_ISA");
    if (isa == nullptr || *isa == '\0') return *available_tables().back();
    try {
      return table_named(isa);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(std::string("OCTAVO_ISA: ") + error.what());
    }
  }();
  return table;
}

}  // namespace octavo
