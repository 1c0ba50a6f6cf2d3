// Python binding of attention alone, for tests and benchmarks.
#include "bind_attention.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "paged_attention.h"
#include "table.h"

namespace nb = nanobind;

namespace {

using namespace octavo;
using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Tables = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

int64_t checked(const char* name, int64_t value) {
  if (value < 1) throw std::invalid_argument(std::string(name) + " must be at least 1, got " + std::to_string(value));
  return value;
}

// K and V memory, a team, and attention over them.
class AttentionBench {
 public:
  AttentionBench(const KVLayout& layout, int32_t group_heads, int num_threads, const KernelTable& kernels)
      : layout_(layout),
        group_heads_(group_heads),
        memory_(layout.num_bytes()),
        team_(num_threads, 1),
        attention_(layout, group_heads, num_threads, kernels) {}

  int64_t row_width() const { return int64_t{layout_.num_kv_heads} * group_heads_ * layout_.head_dim; }
  const KVLayout& layout() const { return layout_; }
  uint8_t* kv_data() const { return memory_.data(); }

  void run(const StepInputs& inputs, const float* q, int32_t layer, float scale, bool share_prefixes, float* out) {
    attention_.plan(inputs, share_prefixes);
    const KVView kv{memory_.data() + layer * layout_.layer_bytes(), layout_.is_half, layout_.num_kv_heads,
                    layout_.head_dim, layout_.block_size};
    const AttentionCall call{kv, q, out, row_width(), group_heads_, scale};
    team_.run({attention_.work()}, [&](int, int64_t begin, int64_t end, int thread) {
      attention_.run(call, begin, end, thread);
    });
  }

 private:
  const KVLayout layout_;
  const int32_t group_heads_;
  HugeMemory memory_;
  ThreadTeam team_;
  PagedAttention attention_;
};

void require_tables(const StepInputs& inputs, const KVLayout& layout) {
  for (int64_t seq = 0; seq < inputs.num_seqs(); ++seq) {
    const int64_t num_blocks = (inputs.context_lens[seq] + layout.block_size - 1) / layout.block_size;
    const int32_t num_tokens = inputs.query_start[seq + 1] - inputs.query_start[seq];
    if (num_tokens < 0 || num_tokens > inputs.context_lens[seq] || num_blocks > inputs.table_width) {
      throw std::invalid_argument("context_lens: does not fit query_start or block_tables");
    }
    for (int64_t i = 0; i < num_blocks; ++i) {
      const int32_t block = inputs.block_tables[seq * inputs.table_width + i];
      if (block < 0 || block >= layout.num_blocks) throw std::invalid_argument("block_tables: not within the cache");
    }
  }
}

nb::ndarray<nb::numpy, float> run(AttentionBench& self, const Rows& q, const Tables& block_tables,
                                  const Ints& query_start, const Ints& context_lens, int32_t layer, float scale,
                                  bool share_prefixes) {
  StepInputs inputs{};
  inputs.block_tables = {block_tables.data(), static_cast<int64_t>(block_tables.size())};
  inputs.table_width = static_cast<int64_t>(block_tables.shape(1));
  inputs.query_start = {query_start.data(), static_cast<int64_t>(query_start.size())};
  inputs.context_lens = {context_lens.data(), static_cast<int64_t>(context_lens.size())};
  const int64_t num_tokens = static_cast<int64_t>(q.shape(0));
  if (static_cast<int64_t>(q.shape(1)) != self.row_width()) throw std::invalid_argument("q: rows of another width");
  if (query_start.size() != context_lens.size() + 1 || block_tables.shape(0) != context_lens.size() ||
      query_start.data()[0] != 0 || query_start.data()[context_lens.size()] != num_tokens) {
    throw std::invalid_argument("query_start: does not fit q, block_tables and context_lens");
  }
  if (layer < 0 || layer >= self.layout().num_layers) throw std::invalid_argument("layer: not within the cache");
  require_tables(inputs, self.layout());
  float* out = new float[q.size()];
  const nb::capsule owner(out, [](void* memory) noexcept { delete[] static_cast<float*>(memory); });
  {
    nb::gil_scoped_release unlocked;
    self.run(inputs, q.data(), layer, scale, share_prefixes, out);
  }
  const size_t shape[2] = {q.shape(0), q.shape(1)};
  return nb::ndarray<nb::numpy, float>(out, 2, shape, owner);
}

}  // namespace

void bind_attention(nb::module_& module) {
  nb::class_<AttentionBench>(module, "PagedAttention",
                             "Attention over K and V memory of its own, with its own threads.")
      .def(
          "__init__",
          [](AttentionBench* self, int32_t num_layers, int32_t num_kv_heads, int32_t group_heads, int32_t head_dim,
             int32_t block_size, int32_t num_blocks, bool is_half, int num_threads, const std::string& isa) {
            checked("num_layers", num_layers);
            checked("num_kv_heads", num_kv_heads);
            checked("group_heads", group_heads);
            checked("num_blocks", num_blocks);
            checked("num_threads", num_threads);
            if (head_dim < 8 || head_dim % 8) throw std::invalid_argument("head_dim must be a multiple of 8");
            if (block_size < 4 || (block_size & (block_size - 1)) != 0) {
              throw std::invalid_argument("block_size must be a power of two, at least 4");
            }
            const KVLayout layout{num_layers, num_kv_heads, head_dim, block_size, num_blocks, is_half};
            const KernelTable& kernels = isa.empty() ? default_table() : table_named(isa);
            new (self) AttentionBench(layout, group_heads, num_threads, kernels);
          },
          nb::kw_only(), nb::arg("num_layers"), nb::arg("num_kv_heads"), nb::arg("group_heads"), nb::arg("head_dim"),
          nb::arg("block_size"), nb::arg("num_blocks"), nb::arg("is_half") = true, nb::arg("num_threads") = 1,
          nb::arg("isa") = "")
      .def_prop_ro("kv_memory",
                   [](nb::handle self) {
                     const AttentionBench& bench = nb::cast<AttentionBench&>(self);
                     const size_t shape[1] = {static_cast<size_t>(bench.layout().num_bytes())};
                     return nb::cast(nb::ndarray<nb::numpy, uint8_t>(bench.kv_data(), 1, shape, self));
                   })
      .def("run", &run, nb::arg("q"), nb::arg("block_tables"), nb::arg("query_start"), nb::arg("context_lens"),
           nb::kw_only(), nb::arg("layer") = 0, nb::arg("scale") = 1.0f, nb::arg("share_prefixes") = true,
           "Attention of the tokens q [T, heads * head_dim], float32: the same shape. The other arrays are int32, as "
           "in StepInputs.");
}
