// Python bindings of the machine's limits and of timed kernels. The GIL is released while a clock runs.
#include "bind_bench.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench_kernels.h"
#include "packed_layout.h"
#include "table.h"

namespace nb = nanobind;

namespace {

using octavo::KernelTable;
using octavo::LinearTimer;
using octavo::WeightType;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rates = std::vector<double>;

const KernelTable& table_for(const std::string& isa) {
  return isa.empty() ? octavo::default_table() : octavo::table_named(isa);
}

void require_positive(const char* name, int64_t value) {
  if (value < 1) throw std::invalid_argument(std::string(name) + ": must be at least 1");
}

Rates stream_rates(size_t num_bytes, int num_threads, int repeats, const std::string& isa) {
  require_positive("num_threads", num_threads);
  require_positive("repeats", repeats);
  require_positive("num_bytes", static_cast<int64_t>(num_bytes >> 20));
  nb::gil_scoped_release unlocked;
  return octavo::stream_rates(octavo::limit_loops_of(table_for(isa)), num_bytes, num_threads, repeats);
}

std::optional<Rates> loop_rates(const std::string& kind, int num_threads, int repeats, const std::string& isa) {
  require_positive("num_threads", num_threads);
  require_positive("repeats", repeats);
  const octavo::LimitLoops& loops = octavo::limit_loops_of(table_for(isa));
  const std::map<std::string, int64_t (*)(int64_t)> by_kind{
      {"fma", loops.fma}, {"int8", loops.int8_multiply_add}, {"groups", loops.int8_groups}};
  const auto found = by_kind.find(kind);
  if (found == by_kind.end()) throw std::invalid_argument("kind: must be fma, int8 or groups, got " + kind);
  const auto loop = found->second;
  if (loop == nullptr) return std::nullopt;
  nb::gil_scoped_release unlocked;
  return octavo::loop_rates(loop, num_threads, repeats);
}

Rates phase_seconds(int num_threads, int repeats) {
  require_positive("num_threads", num_threads);
  require_positive("repeats", repeats);
  nb::gil_scoped_release unlocked;
  return octavo::phase_seconds(num_threads, repeats);
}

void make_linear_timer(LinearTimer* self, const Bytes& data, int32_t type_id, int64_t rows, int64_t cols,
                       int num_copies, int num_threads, const std::string& isa) {
  require_positive("rows", rows);
  require_positive("cols", cols);
  require_positive("num_copies", num_copies);
  require_positive("num_threads", num_threads);
  const auto type = static_cast<WeightType>(type_id);
  // An unknown type has the format of F32.
  if (type != WeightType::F32 && octavo::group_format(type).row_bytes() == 4) {
    throw std::invalid_argument("type: " + std::to_string(type_id) + " is not a weight type of this module");
  }
  const octavo::GroupFormat format = octavo::group_format(type);
  if (cols % format.size || rows * (cols / format.size) * format.row_bytes() != static_cast<int64_t>(data.size())) {
    throw std::invalid_argument("data: not as many bytes as rows, cols and type need");
  }
  const KernelTable& kernels = table_for(isa);
  nb::gil_scoped_release unlocked;
  new (self) LinearTimer(type, rows, cols, data.data(), num_copies, num_threads, kernels);
}

Rates measure(LinearTimer& self, int64_t m, int repeats) {
  require_positive("m", m);
  require_positive("repeats", repeats);
  nb::gil_scoped_release unlocked;
  return self.measure(m, repeats);
}

}  // namespace

void bind_bench(nb::module_& module) {
  module.def("stream_rates", &stream_rates, nb::arg("num_bytes"), nb::arg("num_threads"), nb::arg("repeats"),
             nb::arg("isa") = "", "Bytes a second of reading num_bytes (whole MiB) from memory once, a repetition.");
  module.def("loop_rates", &loop_rates, nb::arg("kind"), nb::arg("num_threads"), nb::arg("repeats"),
             nb::arg("isa") = "", "Operations a second of a loop, a repetition; None where the ISA has none.");
  module.def("phase_seconds", &phase_seconds, nb::arg("num_threads"), nb::arg("repeats"),
             "Seconds that a phase of the thread team takes beyond its work, a repetition.");
  nb::class_<LinearTimer>(module, "LinearTimer", "A matmul under a clock, on all threads.")
      .def("__init__", &make_linear_timer, nb::arg("data"), nb::arg("type"), nb::arg("rows"), nb::arg("cols"),
           nb::kw_only(), nb::arg("num_copies"), nb::arg("num_threads"), nb::arg("isa") = "")
      .def("measure", &measure, nb::arg("m"), nb::arg("repeats"), "Seconds of a matmul with m rows, a repetition.")
      .def_prop_ro("matrix_bytes", &LinearTimer::matrix_bytes, "Bytes of one packed copy.");
}
