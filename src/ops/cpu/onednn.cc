#include "ops/cpu/onednn.h"

#include <algorithm>
#include <dnnl.hpp>
#include <map>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/tensor.h"

namespace weft::cpu {
namespace {

using dnnl::memory;

memory::data_type type_of(DType dtype) { return dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32; }

/// Moves a pointer that oneDNN only reads through.
void* readable(const void* p) { return const_cast<void*>(p); }

}  // namespace

/// A compiled product, and for each thread the arguments to run it with.
class OneDnn::Primitive {
 public:
  Primitive(const dnnl::engine& engine, const dnnl::matmul::primitive_desc& description, int threads)
      : matmul_(description), scratch_bytes_(description.scratchpad_desc().get_size()) {
    for (int thread = 0; thread < threads; ++thread) {
      Arguments& a = arguments_.emplace_back();
      a.stream = dnnl::stream(engine);
      a.scratch = Buffer::host(scratch_bytes_);
      for (auto [name, desc] : {std::pair{DNNL_ARG_SRC, description.src_desc()},
                                {DNNL_ARG_WEIGHTS, description.weights_desc()},
                                {DNNL_ARG_BIAS, description.bias_desc()},
                                {DNNL_ARG_DST, description.dst_desc()}}) {
        if (desc.get_size() != 0) a.memories.emplace(name, memory(desc, engine, DNNL_MEMORY_NONE));
      }
      a.memories.emplace(DNNL_ARG_SCRATCHPAD, memory(description.scratchpad_desc(), engine, a.scratch.data()));
    }
  }

  void run(int thread, const std::byte* x, const std::byte* panels, const float* bias, std::byte* out) {
    Arguments& a = arguments_[static_cast<size_t>(thread)];
    a.memories.at(DNNL_ARG_SRC).set_data_handle(readable(x));
    a.memories.at(DNNL_ARG_WEIGHTS).set_data_handle(readable(panels));
    a.memories.at(DNNL_ARG_DST).set_data_handle(out);
    if (bias != nullptr) a.memories.at(DNNL_ARG_BIAS).set_data_handle(readable(bias));
    matmul_.execute(a.stream, a.memories);
  }

 private:
  struct Arguments {
    dnnl::stream stream;
    Buffer scratch;
    std::unordered_map<int, memory> memories;
  };
  dnnl::matmul matmul_;
  size_t scratch_bytes_;
  std::vector<Arguments> arguments_;
};

struct OneDnn::State {
  int threads;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::map<Shape, std::unique_ptr<Primitive>> primitives;  // Null: oneDNN refused this shape.

  std::unique_ptr<Primitive> make(const Shape& shape) const {
    using tag = memory::format_tag;
    const memory::desc x({shape.rows, shape.depth}, type_of(shape.x), tag::ab);
    const memory::desc w({shape.depth, shape.columns}, type_of(shape.x),
                         shape.x == DType::bf16 ? tag::BA16a64b2a : tag::BA16a64b);
    const memory::desc out({shape.rows, shape.columns}, type_of(shape.out), tag::ab);
    const memory::desc bias({1, shape.columns}, memory::data_type::f32, tag::ab);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const auto matmul = shape.bias ? dnnl::matmul::desc(x, w, bias, out) : dnnl::matmul::desc(x, w, out);
    const dnnl::matmul::primitive_desc description(matmul, attributes, engine, /*allow_empty=*/true);
    // Its blocked kernels are called brg:..., gemm:... and ref:... are a copy and many times slower.
    if (!description || std::string_view(description.impl_info_str()).substr(0, 4) != "brg:") return nullptr;
    return std::make_unique<Primitive>(engine, description, threads);
  }
};

OneDnn::OneDnn(int threads) : state_(new State{.threads = threads, .primitives = {}}) {}
OneDnn::~OneDnn() = default;

bool OneDnn::is_faster() { return dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx512_core_amx; }

OneDnn::Primitive* OneDnn::primitive(const Shape& shape) {
  const auto [at, is_new] = state_->primitives.try_emplace(shape);
  if (is_new) at->second = state_->make(shape);
  return at->second.get();
}

void OneDnn::multiply(Primitive& primitive, int thread, const std::byte* x, const std::byte* panels, const float* bias,
                      std::byte* out) {
  primitive.run(thread, x, panels, bias, out);
}

}  // namespace weft::cpu
