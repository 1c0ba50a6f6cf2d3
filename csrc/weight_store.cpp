#include "weight_store.h"

#include <cstdlib>
#include <memory>
#include <stdexcept>

#include "thread_team.h"

namespace octavo {
namespace {

const WeightSource& find(const ProgramSource& program, const std::string& name) {
  const auto found = program.weights.find(name);
  if (found == program.weights.end()) throw std::invalid_argument("weight '" + name + "' is not given");
  return found->second;
}

PackedMatrix unpacked(const WeightSource& source) {
  return {source.type,
          source.rows,
          source.cols,
          (source.rows + kTileRows - 1) / kTileRows,
          packed_tile_bytes(source.type, source.cols),
          nullptr};
}

}  // namespace

WeightStore::WeightStore(const ProgramSource& program, const KernelTable& kernels, int num_threads) {
  for (const Op& op : program.ops) {
    if (const auto* embed = std::get_if<Embed>(&op)) add_matrix(program, embed->weight);
    if (const auto* norm = std::get_if<RmsNorm>(&op)) add_vector(program, kernels, norm->weight);
    if (const auto* linear = std::get_if<Linear>(&op)) {
      add_matrix(program, linear->weight);
      if (linear->bias) add_vector(program, kernels, *linear->bias);
    }
    if (const auto* rope = std::get_if<Rope>(&op); rope != nullptr && rope->factors) {
      add_vector(program, kernels, *rope->factors);
    }
  }
  pack(program, num_threads);
}

void WeightStore::add_matrix(const ProgramSource& program, const std::string& name) {
  matrices_.emplace(name, unpacked(find(program, name)));
}

void WeightStore::add_vector(const ProgramSource& program, const KernelTable& kernels, const std::string& name) {
  if (vectors_.count(name)) return;
  const WeightSource& source = find(program, name);
  if (source.rows != 1) throw std::invalid_argument("weight '" + name + "' must have one row");
  PackedMatrix row = unpacked(source);
  const std::unique_ptr<void, decltype(&std::free)> packed(std::aligned_alloc(64, row.tile_bytes), &std::free);
  if (!packed) throw std::bad_alloc();
  pack_tiles(row.type, row.rows, row.cols, source.data, 0, 1, static_cast<uint8_t*>(packed.get()));
  row.data = static_cast<const uint8_t*>(packed.get());
  std::vector<float> values(row.cols);
  kernels.dequantize_row(row, 0, values.data());
  vectors_.emplace(name, std::move(values));
}

void WeightStore::pack(const ProgramSource& program, int num_threads) {
  size_t num_bytes = 0;
  for (const auto& [name, matrix] : matrices_) num_bytes += matrix.num_tiles * matrix.tile_bytes;
  arena_ = HugeMemory(num_bytes);
  uint8_t* next = arena_.data();
  std::vector<const std::string*> names;
  std::vector<PhaseWork> phases;  // a matrix each
  for (auto& [name, matrix] : matrices_) {
    matrix.data = next;
    next += matrix.num_tiles * matrix.tile_bytes;
    names.push_back(&name);
    phases.push_back({matrix.num_tiles, 64});
  }
  ThreadTeam team(num_threads, static_cast<int>(phases.size()));
  team.run(phases, [&](int phase, int64_t begin, int64_t end, int) {
    const PackedMatrix& matrix = matrices_.at(*names[phase]);
    uint8_t* data = arena_.data() + (matrix.data - arena_.data());
    pack_tiles(matrix.type, matrix.rows, matrix.cols, find(program, *names[phase]).data, begin, end, data);
  });
}

}  // namespace octavo
