// Python bindings of packing, quantisation and matmul, for tests and benchmarks.
#include "bind_linear.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "huge_memory.h"
#include "kernel_table.h"
#include "packed_layout.h"
#include "table.h"

namespace nb = nanobind;

namespace {

using octavo::GroupFormat;
using octavo::KernelTable;
using octavo::kGroupSize;
using octavo::kTileRows;
using octavo::WeightType;

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using RowIds = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatArray = nb::ndarray<nb::numpy, float>;

const KernelTable& table_for(const std::string& isa) {
  return isa.empty() ? octavo::default_table() : octavo::table_named(isa);
}

// A numpy array that owns its memory.
template <typename T>
nb::ndarray<nb::numpy, T> new_array(std::vector<size_t> shape) {
  size_t size = 1;
  for (const size_t extent : shape) size *= extent;
  T* data = new T[size]();
  nb::capsule owner(data, [](void* memory) noexcept { delete[] static_cast<T*>(memory); });
  return nb::ndarray<nb::numpy, T>(data, shape.size(), shape.data(), owner);
}

WeightType weight_type(int32_t type_id) {
  for (const WeightType type : {WeightType::F32, WeightType::F16, WeightType::BF16, WeightType::Q8_0,
                                WeightType::Q4_0, WeightType::Q4_1}) {
    if (static_cast<int32_t>(type) == type_id) return type;
  }
  throw std::invalid_argument("type: " + std::to_string(type_id) + " is not a weight type of this module");
}

// A packed matrix together with its memory.
class OwnedMatrix {
 public:
  OwnedMatrix(const Bytes& data, int32_t type_id, int64_t rows, int64_t cols) {
    const WeightType type = weight_type(type_id);
    const GroupFormat format = octavo::group_format(type);
    if (rows < 1) throw std::invalid_argument("rows: must be at least 1");
    if (cols < 1 || cols % format.size) {
      throw std::invalid_argument("cols: must be a positive multiple of " + std::to_string(format.size));
    }
    const int64_t expected = rows * (cols / format.size) * format.row_bytes();
    if (static_cast<int64_t>(data.size()) != expected) {
      throw std::invalid_argument("data: expected " + std::to_string(expected) + " bytes, got " +
                                  std::to_string(data.size()));
    }
    const int64_t num_tiles = (rows + kTileRows - 1) / kTileRows;
    const int64_t tile_bytes = octavo::packed_tile_bytes(type, cols);
    memory_ = octavo::HugeMemory(num_tiles * tile_bytes);
    octavo::pack_tiles(type, rows, cols, data.data(), 0, num_tiles, memory_.data());
    matrix_ = {type, rows, cols, num_tiles, tile_bytes, memory_.data()};
  }

  const octavo::PackedMatrix& matrix() const { return matrix_; }

 private:
  octavo::HugeMemory memory_;
  octavo::PackedMatrix matrix_;
};

// Rows of activations, quantised; the vectors stay empty for float weights.
struct QuantizedRows {
  std::vector<octavo::QuantizedGroup> groups;
  std::vector<float> units;

  QuantizedRows(const KernelTable& table, const Rows& x)
      : groups(x.size() / kGroupSize), units(x.shape(0)) {
    const int64_t cols = x.shape(1);
    for (size_t i = 0; i < x.shape(0); ++i) {
      table.quantize_row(x.data() + i * cols, cols, {groups.data() + i * (cols / kGroupSize), &units[i]});
    }
  }
};

void check_groups(int64_t cols) {
  if (cols % kGroupSize) throw std::invalid_argument("x: cols must be a multiple of 32");
}

FloatArray linear(const OwnedMatrix& packed, const Rows& x, const std::string& isa,
                  std::optional<Rows> accumulate_into, std::optional<std::pair<int64_t, int64_t>> tiles) {
  const octavo::PackedMatrix& w = packed.matrix();
  const KernelTable& table = table_for(isa);
  const size_t m = x.shape(0);
  if (static_cast<int64_t>(x.shape(1)) != w.cols) throw std::invalid_argument("x: must have the matrix's cols");
  const auto [begin, end] = tiles.value_or(std::pair<int64_t, int64_t>(0, w.num_tiles));
  if (begin < 0 || begin > end || end > w.num_tiles) throw std::invalid_argument("tiles: not within the matrix");
  FloatArray out = new_array<float>({m, static_cast<size_t>(w.rows)});
  if (accumulate_into) {
    if (accumulate_into->shape(0) != m || static_cast<int64_t>(accumulate_into->shape(1)) != w.rows) {
      throw std::invalid_argument("accumulate_into: must have the output's shape");
    }
    memcpy(out.data(), accumulate_into->data(), out.nbytes());
  }
  octavo::Activations activations{x.data(), w.cols, nullptr, nullptr};
  std::optional<QuantizedRows> quantized;
  if (octavo::is_quantized(w.type)) {
    quantized.emplace(table, x);
    activations.groups = quantized->groups.data();
    activations.units = quantized->units.data();
  }
  table.linear(w, activations, m, begin, end, out.data(), w.rows, accumulate_into.has_value());
  return out;
}

nb::tuple quantize_row(const Rows& x, const std::string& isa) {
  check_groups(x.shape(1));
  const QuantizedRows rows(table_for(isa), x);
  const size_t m = x.shape(0);
  const size_t groups = x.shape(1) / kGroupSize;
  auto quants = new_array<int8_t>({m, x.shape(1)});
  auto factors = new_array<int32_t>({m, groups});
  auto sums = new_array<float>({m, groups});
  auto units = new_array<float>({m});
  for (size_t i = 0; i < rows.groups.size(); ++i) {
    const octavo::QuantizedGroup& group = rows.groups[i];
    std::copy(std::begin(group.quants), std::end(group.quants), quants.data() + i * kGroupSize);
    factors.data()[i] = group.factor & 0x7fff;
    sums.data()[i] = group.sum;
  }
  std::copy(rows.units.begin(), rows.units.end(), units.data());
  return nb::make_tuple(quants, factors, sums, units);
}

FloatArray dequantize_rows(const OwnedMatrix& packed, const RowIds& row_ids, const std::string& isa) {
  const octavo::PackedMatrix& w = packed.matrix();
  const KernelTable& table = table_for(isa);
  FloatArray out = new_array<float>({row_ids.size(), static_cast<size_t>(w.cols)});
  for (size_t i = 0; i < row_ids.size(); ++i) {
    const int64_t row = row_ids.data()[i];
    if (row < 0 || row >= w.rows) throw std::invalid_argument("row_ids: not within the matrix");
    table.dequantize_row(w, row, out.data() + i * w.cols);
  }
  return out;
}

}  // namespace

void bind_linear(nb::module_& module) {
  nb::class_<OwnedMatrix>(module, "PackedMatrix", "A weight matrix, repacked for the kernels.")
      .def(nb::init<const Bytes&, int32_t, int64_t, int64_t>(), nb::arg("data"), nb::arg("type"), nb::arg("rows"),
           nb::arg("cols"), "data: uint8, all rows in GGUF format; type: GGUF's type id.")
      .def_prop_ro("num_bytes",
                   [](const OwnedMatrix& self) { return self.matrix().num_tiles * self.matrix().tile_bytes; });
  module.def("linear", &linear, nb::arg("packed"), nb::arg("x"), nb::arg("isa") = "",
             nb::arg("accumulate_into") = nb::none(), nb::arg("tiles") = nb::none(),
             "x [m, cols] float32 times the matrix, transposed: float32 [m, rows], plus accumulate_into if given "
             "(a copy of it; it is not changed). tiles: a range of tiles of 8 rows to compute; others stay 0.");
  module.def("quantize_row", &quantize_row, nb::arg("x"), nb::arg("isa") = "",
             "Quantises x [m, cols] float32, row by row, in groups of 32: quants int8 [m, cols], factors int32 "
             "[m, cols / 32], factor times sum of quants float32 [m, cols / 32], units float32 [m]. A value is "
             "unit times factor times quant.");
  module.def("dequantize_rows", &dequantize_rows, nb::arg("packed"), nb::arg("row_ids"), nb::arg("isa") = "",
             "Rows of the matrix as float32 [num_ids, cols]; row_ids: int64.");
}
