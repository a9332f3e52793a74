#include "support/mirrored_ops.h"

#include <exception>
#include <vector>

#include "support/test_memory.h"

namespace weft::test {
namespace {

View bytes_view(std::byte* data, size_t bytes) { return View(data, DType::u8, {static_cast<int64_t>(bytes)}); }

/// The view with its data elsewhere.
template <typename AnyView>
AnyView moved(const AnyView& view, typename AnyView::Pointer data) {
  const auto size = [&](int d) { return view.size(d); };
  const auto stride = [&](int d) { return view.stride(d); };
  switch (view.dims()) {
    case 1:
      return AnyView(data, view.dtype(), {size(0)}, {stride(0)});
    case 2:
      return AnyView(data, view.dtype(), {size(0), size(1)}, {stride(0), stride(1)});
    case 3:
      return AnyView(data, view.dtype(), {size(0), size(1), size(2)}, {stride(0), stride(1), stride(2)});
    default:
      return AnyView(data, view.dtype(), {size(0), size(1), size(2), size(3)}, {stride(0), stride(1), stride(2), stride(3)});
  }
}

}  // namespace

/// One call of an operator: turns its arguments into the rank's, and brings everything back in the end.
class MirroredOps::Call {
 public:
  explicit Call(MirroredOps& ops) : ops_(ops) {}
  ~Call() noexcept(false) {
    if (std::uncaught_exceptions() > 0) return;
    ops_.rank_->synchronize();
    for (const auto& [data, mirror] : mirrors_) ops_.rank_->download(bytes_view(mirror.data(), mirror.bytes()), data);
  }

  template <typename T>
  T* operator()(T* pointer) {
    if (pointer == nullptr) return nullptr;
    const auto* at = reinterpret_cast<const std::byte*>(pointer);
    const TestBlock block = test_block_of(at);
    if (block.data == nullptr) {
      const auto next = ops_.own_.upper_bound(at);
      WEFT_CHECK(next != ops_.own_.begin() && at < std::prev(next)->first + std::prev(next)->second)
          << "an operator was given memory that is neither a test's nor the rank's";
      return pointer;
    }
    Buffer& mirror = mirrors_[block.data];
    if (mirror.data() == nullptr) {
      mirror = ops_.rank_->allocate(block.bytes);
      ops_.rank_->upload(block.data, bytes_view(mirror.data(), block.bytes));
    }
    return reinterpret_cast<T*>(mirror.data() + (at - block.data));
  }
  template <typename T>
  std::span<T> operator()(std::span<T> all) {
    return all.empty() ? all : std::span<T>((*this)(all.data()), all.size());
  }
  template <bool kConst>
  BasicView<kConst> operator()(const BasicView<kConst>& view) {
    if (view.empty() || view.count() == 0) return view;
    using Byte = std::conditional_t<kConst, const std::byte, std::byte>;
    return moved(view, (*this)(static_cast<Byte*>(view.data())));
  }
  ExpertRows operator()(const ExpertRows& rows) {
    return {.source = (*this)(rows.source), .place = (*this)(rows.place), .offsets = (*this)(rows.offsets)};
  }
  KvView operator()(KvView kv) {
    kv.k = (*this)(static_cast<std::byte*>(kv.k));
    kv.v = (*this)(static_cast<std::byte*>(kv.v));
    return kv;
  }
  SampledLogits operator()(SampledLogits in) {
    in.logits = (*this)(in.logits);
    in.rows = (*this)(in.rows);
    in.logit_row = (*this)(in.logit_row);
    in.penalty_tokens = (*this)(in.penalty_tokens);
    in.biases = (*this)(in.biases);
    in.token_masks = (*this)(in.token_masks);
    return in;
  }

 private:
  MirroredOps& ops_;
  std::map<std::byte*, Buffer> mirrors_;
};

MirroredOps::MirroredOps(std::unique_ptr<Ops> rank) : rank_(std::move(rank)) {}
MirroredOps::~MirroredOps() = default;

Buffer MirroredOps::allocate(size_t bytes) {
  if (bytes == 0) return {};
  auto inner = std::make_shared<Buffer>(rank_->allocate(bytes));
  own_[inner->data()] = bytes;
  return Buffer(inner->data(), bytes, [this, inner](void* data) { own_.erase(static_cast<const std::byte*>(data)); });
}

void MirroredOps::upload(const void* host, View device) {
  Call at(*this);
  rank_->upload(host, at(device));
}

void MirroredOps::download(ConstView device, void* host) {
  Call at(*this);
  rank_->download(at(device), host);
}

void MirroredOps::synchronize() { rank_->synchronize(); }

void MirroredOps::copy(std::span<const CopyRun> runs) {
  Call at(*this);
  std::vector<CopyRun> moved_runs;
  for (const CopyRun& run : runs) moved_runs.push_back({at(run.target), at(run.source), run.bytes});
  rank_->copy(moved_runs);
}

void MirroredOps::copy(ConstView in, View out) {
  Call at(*this);
  rank_->copy(at(in), at(out));
}

void MirroredOps::run_recorded(uint64_t key, const std::function<void()>& body) { rank_->run_recorded(key, body); }

std::unique_ptr<Matrix> MirroredOps::pack(ConstView matrix, DType dtype) { return rank_->pack(matrix, dtype); }

size_t MirroredOps::packed_bytes(int64_t out, int64_t in, DType dtype) const { return rank_->packed_bytes(out, in, dtype); }

void MirroredOps::linear(const Matrix& w, ConstView x, const float* bias, View out) {
  Call at(*this);
  rank_->linear(w, at(x), at(bias), at(out));
}

void MirroredOps::head_linear(std::span<const std::unique_ptr<Matrix>> w, ConstView x, View out) {
  Call at(*this);
  rank_->head_linear(w, at(x), at(out));
}

void MirroredOps::expert_linear(std::span<const std::unique_ptr<Matrix>> w, ConstView x, const ExpertRows& rows, bool gather,
                                View out) {
  Call at(*this);
  rank_->expert_linear(w, at(x), at(rows), gather, at(out));
}

void MirroredOps::embed(const int32_t* ids, ConstView table, int64_t first_row, View out) {
  Call at(*this);
  rank_->embed(at(ids), at(table), first_row, at(out));
}

void MirroredOps::rms_norm(ConstView x, const float* weight, float eps, View out) {
  Call at(*this);
  rank_->rms_norm(at(x), at(weight), eps, at(out));
}

void MirroredOps::add_rms_norm(ConstView delta, View residual, const float* weight, float eps, View out) {
  Call at(*this);
  rank_->add_rms_norm(at(delta), at(residual), at(weight), eps, at(out));
}

void MirroredOps::add(ConstView y, View x) {
  Call at(*this);
  rank_->add(at(y), at(x));
}

void MirroredOps::silu_mul(ConstView gate_up, View out) {
  Call at(*this);
  rank_->silu_mul(at(gate_up), at(out));
}

void MirroredOps::route(ConstView logits, const Routing& routing, View experts, View weights) {
  Call at(*this);
  Routing routed = routing;
  routed.bias = at(routing.bias);
  rank_->route(at(logits), routed, at(experts), at(weights));
}

void MirroredOps::group_by_expert(ConstView experts, int num_experts, const ExpertRows& rows) {
  Call at(*this);
  rank_->group_by_expert(at(experts), num_experts, at(rows));
}

void MirroredOps::combine_experts(ConstView y, const ExpertRows& rows, ConstView weights, ConstView shared, View out) {
  Call at(*this);
  rank_->combine_experts(at(y), at(rows), at(weights), at(shared), at(out));
}

void MirroredOps::rope_table(const int32_t* positions, std::span<const double> inv_freq, double factor, View cos, View sin) {
  Call at(*this);
  rank_->rope_table(at(positions), inv_freq, factor, at(cos), at(sin));
}

void MirroredOps::rope_append(const RopeAppend& args) {
  Call at(*this);
  RopeAppend moved_args = args;
  for (ConstView* view : {&moved_args.cos, &moved_args.sin, &moved_args.q, &moved_args.k, &moved_args.v, &moved_args.latent})
    *view = at(*view);
  moved_args.q_out = at(args.q_out);
  moved_args.k_out = at(args.k_out);
  moved_args.slots = at(args.slots);
  moved_args.kv = at(args.kv);
  rank_->rope_append(moved_args);
}

void MirroredOps::gather_rows(const KvView& kv, const int32_t* slots, View k, View v) {
  Call at(*this);
  rank_->gather_rows(at(kv), at(slots), at(k), at(v));
}

void MirroredOps::attend(const Attention& args) {
  Call at(*this);
  Attention moved_args = args;
  moved_args.q = at(args.q);
  moved_args.paged.kv = at(args.paged.kv);
  moved_args.paged.tables = at(args.paged.tables);
  moved_args.rows.k = at(args.rows.k);
  moved_args.rows.v = at(args.rows.v);
  moved_args.seq_of = at(args.seq_of);
  moved_args.begin = at(args.begin);
  moved_args.end = at(args.end);
  moved_args.out = at(args.out);
  moved_args.lse = at(args.lse);
  rank_->attend(moved_args);
}

void MirroredOps::reserve(const AttentionLimits& limits) { rank_->reserve(limits); }

size_t MirroredOps::reserved_bytes(const AttentionLimits& limits) const { return rank_->reserved_bytes(limits); }

void MirroredOps::merge(std::span<const Partial> partials, View out, View lse) {
  Call at(*this);
  std::vector<Partial> moved_partials;
  for (const Partial& partial : partials) moved_partials.push_back({.out = at(partial.out), .lse = at(partial.lse)});
  rank_->merge(moved_partials, at(out), at(lse));
}

size_t MirroredOps::sampling_workspace_bytes(int64_t logit_rows, int64_t vocab) const {
  return rank_->sampling_workspace_bytes(logit_rows, vocab);
}

void MirroredOps::sample(const SampledLogits& in, View workspace, int32_t* ids) {
  Call at(*this);
  rank_->sample(at(in), at(workspace), at(ids));
}

void MirroredOps::log_probs(const SampledLogits& in, View workspace, const int32_t* ids, const LogProbs& out) {
  Call at(*this);
  rank_->log_probs(at(in), at(workspace), at(ids),
                   {.of_ids = at(out.of_ids),
                    .of_targets = at(out.of_targets),
                    .max_top = out.max_top,
                    .top_ids = at(out.top_ids),
                    .top_log_probs = at(out.top_log_probs)});
}

}  // namespace weft::test
