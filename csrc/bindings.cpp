// The Python module octavo._native. Its face is described in src/octavo/_native.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "bind_attention.h"
#include "bind_bench.h"
#include "bind_linear.h"
#include "bind_sampling.h"
#include "executor.h"
#include "packed_layout.h"
#include "table.h"

namespace nb = nanobind;

namespace octavo {
namespace {

using AnyArray = nb::ndarray<nb::ro, nb::device::cpu>;
using Name = std::string;
using OptionalName = std::optional<std::string>;

template <class T>
T field(const nb::dict& from, const char* name) {
  return nb::cast<T>(from[name]);
}

Op op_from(const nb::dict& d) {
  const Name kind = field<Name>(d, "op");
  const auto name = [&](const char* key) { return field<Name>(d, key); };
  const auto number = [&](const char* key) { return field<int32_t>(d, key); };
  if (kind == "Embed") return Embed{name("weight"), name("out")};
  if (kind == "RmsNorm") return RmsNorm{name("x"), name("weight"), name("out"), field<float>(d, "eps")};
  if (kind == "Linear") return Linear{name("x"), name("weight"), name("out"), field<OptionalName>(d, "bias")};
  if (kind == "Rope") {
    return Rope{name("x"),           number("num_heads"),       number("head_dim"),
                number("rotary_dim"), field<double>(d, "base"), field<bool>(d, "interleaved"),
                field<OptionalName>(d, "factors")};
  }
  if (kind == "KVWrite") return KVWrite{name("k"), name("v"), number("layer")};
  if (kind == "Attention") {
    return Attention{name("q"), name("out"), number("layer"), number("num_heads"), field<float>(d, "scale")};
  }
  if (kind == "SiluMul") return SiluMul{name("gate"), name("up"), name("out")};
  if (kind == "Add") return Add{name("x"), name("y")};
  if (kind == "TakeRows") return TakeRows{name("x"), name("out")};
  throw std::invalid_argument("op '" + kind + "' is unknown");
}

WeightSource weight_from(const Name& name, const nb::dict& d) {
  const auto type = static_cast<WeightType>(field<int32_t>(d, "type"));
  const auto data = field<nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>>(d, "data");
  const WeightSource source{type, field<int64_t>(d, "rows"), field<int64_t>(d, "cols"), data.data()};
  const GroupFormat format = group_format(type);
  const int64_t row_bytes = source.cols / format.size * (format.scale_bytes + format.quant_bytes);
  if (source.rows < 1 || source.cols < 1 || source.cols % format.size ||
      source.rows * row_bytes != static_cast<int64_t>(data.size())) {
    throw std::invalid_argument("weight '" + name + "' has " + std::to_string(data.size()) + " bytes, not " +
                                std::to_string(source.rows) + " rows of " + std::to_string(row_bytes));
  }
  return source;
}

// The result points into the arrays of `d`.
ProgramSource program_from(const nb::dict& d) {
  ProgramSource program;
  for (const nb::handle op : field<nb::list>(d, "ops")) program.ops.push_back(op_from(nb::cast<nb::dict>(op)));
  for (const auto [name, width] : field<nb::dict>(d, "buffers")) {
    program.buffers[nb::cast<Name>(name)] = nb::cast<int64_t>(width);
  }
  for (const auto [key, weight] : field<nb::dict>(d, "weights")) {
    const Name name = nb::cast<Name>(key);
    program.weights[name] = weight_from(name, nb::cast<nb::dict>(weight));
  }
  program.vocab_size = field<int64_t>(d, "vocab_size");
  return program;
}

KVLayout layout_from(const nb::dict& d) {
  const Name dtype = field<Name>(d, "dtype");
  if (dtype != "float16" && dtype != "float32") {
    throw std::invalid_argument("dtype must be float16 or float32, got " + dtype);
  }
  return {field<int32_t>(d, "num_layers"), field<int32_t>(d, "num_kv_heads"), field<int32_t>(d, "head_dim"),
          field<int32_t>(d, "block_size"), field<int32_t>(d, "num_blocks"),   dtype == "float16"};
}

IntSpan span_of(const AnyArray& array, const char* name, size_t num_dims) {
  if (array.dtype() != nb::dtype<int32_t>() || array.ndim() != num_dims) {
    throw std::invalid_argument(std::string(name) + " must be int32 with " + std::to_string(num_dims) + " axes");
  }
  int64_t stride = 1;
  for (size_t axis = num_dims; axis-- > 0; stride *= static_cast<int64_t>(array.shape(axis))) {
    if (array.size() > 0 && array.shape(axis) > 1 && array.stride(axis) != stride) {
      throw std::invalid_argument(std::string(name) + " must be C-contiguous");
    }
  }
  return {static_cast<const int32_t*>(array.data()), static_cast<int64_t>(array.size())};
}

StepInputs inputs_from(const AnyArray& token_ids, const AnyArray& positions, const AnyArray& slot_mapping,
                       const AnyArray& block_tables, const AnyArray& query_start, const AnyArray& context_lens,
                       const AnyArray& logits_rows, const AnyArray& copies) {
  StepInputs inputs{};
  inputs.token_ids = span_of(token_ids, "token_ids", 1);
  inputs.positions = span_of(positions, "positions", 1);
  inputs.slot_mapping = span_of(slot_mapping, "slot_mapping", 1);
  inputs.block_tables = span_of(block_tables, "block_tables", 2);
  inputs.table_width = static_cast<int64_t>(block_tables.shape(1));
  inputs.query_start = span_of(query_start, "query_start", 1);
  inputs.context_lens = span_of(context_lens, "context_lens", 1);
  inputs.logits_rows = span_of(logits_rows, "logits_rows", 1);
  inputs.copies = span_of(copies, "copies", 2);
  if (copies.shape(1) != 2) throw std::invalid_argument("copies must have 2 columns");
  return inputs;
}

nb::object run(nb::handle self, const AnyArray& token_ids, const AnyArray& positions, const AnyArray& slot_mapping,
               const AnyArray& block_tables, const AnyArray& query_start, const AnyArray& context_lens,
               const AnyArray& logits_rows, const AnyArray& copies) {
  const StepInputs inputs = inputs_from(token_ids, positions, slot_mapping, block_tables, query_start, context_lens,
                                        logits_rows, copies);
  Executor& executor = nb::cast<Executor&>(self);
  const float* logits = nullptr;
  {
    nb::gil_scoped_release unlocked;
    logits = executor.run(inputs);
  }
  const size_t shape[2] = {static_cast<size_t>(inputs.num_logits()), static_cast<size_t>(executor.vocab_size())};
  return nb::cast(nb::ndarray<nb::numpy, float>(const_cast<float*>(logits), 2, shape, self));
}

// A numpy array with memory of its own.
template <class T>
nb::ndarray<nb::numpy, T> new_array(size_t rows, size_t cols) {
  T* data = new T[rows * cols];
  const nb::capsule owner(data, [](void* memory) noexcept { delete[] static_cast<T*>(memory); });
  return nb::ndarray<nb::numpy, T>(data, {rows, cols}, owner);
}

nb::tuple run_best(Executor& executor, const AnyArray& token_ids, const AnyArray& positions,
                   const AnyArray& slot_mapping, const AnyArray& block_tables, const AnyArray& query_start,
                   const AnyArray& context_lens, const AnyArray& logits_rows, const AnyArray& copies,
                   int64_t num_rounds, const std::vector<int32_t>& stop_token_ids) {
  const StepInputs inputs = inputs_from(token_ids, positions, slot_mapping, block_tables, query_start, context_lens,
                                        logits_rows, copies);
  const IntSpan stop_ids{stop_token_ids.data(), static_cast<int64_t>(stop_token_ids.size())};
  std::vector<BestLogit> best;
  {
    nb::gil_scoped_release unlocked;
    best = executor.run_best(inputs, num_rounds, stop_ids);
  }
  const size_t num_rows = inputs.num_logits(), rounds_done = num_rows == 0 ? 1 : best.size() / num_rows;
  auto ids = new_array<int32_t>(rounds_done, num_rows);
  auto logits = new_array<float>(rounds_done, num_rows);
  for (size_t i = 0; i < best.size(); ++i) {
    ids.data()[i] = best[i].id;
    logits.data()[i] = best[i].logit;
  }
  return nb::make_tuple(ids, logits);
}

void bind_executor(nb::module_& m) {
  nb::class_<Executor>(m, "Executor")
      .def(
          "__init__",
          [](Executor* self, const nb::dict& program, const nb::dict& layout, int num_threads, int64_t max_num_tokens,
             const OptionalName& isa) {
            const KernelTable& kernels = isa ? table_named(*isa) : default_table();
            const ProgramSource source = program_from(program);
            const KVLayout kv = layout_from(layout);
            nb::gil_scoped_release unlocked;
            new (self) Executor(source, kv, num_threads, max_num_tokens, kernels);
          },
          nb::arg("program"), nb::arg("layout"), nb::kw_only(), nb::arg("num_threads"), nb::arg("max_num_tokens"),
          nb::arg("isa") = nb::none())
      .def("run", &run)
      .def("run_best", &run_best, nb::arg("token_ids"), nb::arg("positions"), nb::arg("slot_mapping"),
           nb::arg("block_tables"), nb::arg("query_start"), nb::arg("context_lens"), nb::arg("logits_rows"),
           nb::arg("copies"), nb::kw_only(), nb::arg("num_rounds") = 1,
           nb::arg("stop_token_ids") = std::vector<int32_t>())
      .def("measure_phases", [](Executor& self, bool on) { self.phase_times().turn(on); }, nb::arg("on"))
      .def("phase_times",
           [](Executor& self) {
             nb::dict times;
             for (const auto& [name, seconds] : self.phase_times().take()) times[name] = seconds;
             return times;
           })
      .def_prop_ro("isa", [](const Executor& self) { return self.kernels().name; })
      .def_prop_ro("kv_memory", [](nb::handle self) {
        const Executor& executor = nb::cast<Executor&>(self);
        const size_t shape[1] = {static_cast<size_t>(executor.kv_bytes())};
        return nb::cast(nb::ndarray<nb::numpy, uint8_t>(executor.kv_data(), 1, shape, self));
      });
}

}  // namespace
}  // namespace octavo

NB_MODULE(_native, m) {
  m.doc() = "Compiled kernels and the executor of octavo";
  // Chosen now, so that a wrong OCTAVO_ISA fails the import and not the first request.
  m.attr("default_isa") = octavo::default_table().name;
  m.attr("available_isas") = nb::cast(octavo::available_isas());
  octavo::bind_executor(m);
  bind_linear(m);
  bind_attention(m);
  bind_bench(m);
  bind_sampling(m);
}
