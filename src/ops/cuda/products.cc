#include "ops/cuda/products.h"

#include <algorithm>

#include "ops/cuda/error.h"

namespace weft::cuda {
namespace {

// What NVIDIA recommends for Hopper; algorithms that would need more are not proposed.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr size_t kProposals = 4096;

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) throw SystemError("cublasLt: {} failed: {}", what, cublasLtGetStatusString(status));
}

cudaDataType_t type_of(DType dtype) { return dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16BF; }

/// The largest power of two up to 256 that divides the address.
unsigned alignment_of(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data) | 256u;
  return static_cast<unsigned>(address & (~address + 1));
}

template <typename From, typename To>
void convert_rows(ConstView rows, int64_t stride, To* out) {
  const auto* from = rows.as<From>();
  for (int64_t r = 0; r < rows.size(0); ++r, out += stride) {
    for (int64_t c = 0; c < rows.size(1); ++c) {
      const From value = from[r * rows.stride(0) + c * rows.stride(1)];
      if constexpr (std::is_same_v<From, To>) {
        out[c] = value;
      } else {
        out[c] = To(static_cast<float>(value));
      }
    }
    std::fill(out + rows.size(1), out + stride, To(0.0f));
  }
}

}  // namespace

int64_t DeviceMatrix::stride_of(int64_t in, DType dtype) {
  const auto unit = static_cast<int64_t>(16 / size_of(dtype));
  return (in + unit - 1) / unit * unit;
}

size_t DeviceMatrix::bytes_for(int64_t out, int64_t in, DType dtype) {
  return static_cast<size_t>(out * stride_of(in, dtype)) * size_of(dtype);
}

DeviceMatrix::DeviceMatrix(const Device& device, UploadRing& ring, ConstView matrix, DType dtype)
    : Matrix(matrix.size(0), matrix.size(1), dtype),
      storage_(device.allocate(bytes_for(matrix.size(0), matrix.size(1), dtype))) {
  WEFT_CHECK_EQ(matrix.dims(), 2);
  for (const DType type : {matrix.dtype(), dtype})
    WEFT_CHECK(type == DType::f32 || type == DType::bf16) << "matrices of " << to_string(type) << " are not multiplied";
  if (storage_.bytes() == 0) return;
  const size_t row_bytes = static_cast<size_t>(stride()) * size_of(dtype);
  WEFT_CHECK_LE(row_bytes, UploadRing::kHalf) << "a matrix with rows of " << in() << " elements";
  const auto at_once = static_cast<int64_t>(UploadRing::kHalf / row_bytes);
  for (int64_t first = 0; first < out(); first += at_once) {
    const ConstView rows = matrix.rows(first, std::min(at_once, out() - first));
    std::byte* pinned = ring.take(static_cast<size_t>(rows.size(0)) * row_bytes);
    const bool from_f32 = matrix.dtype() == DType::f32;
    if (dtype == DType::f32) {
      auto* target = reinterpret_cast<float*>(pinned);
      from_f32 ? convert_rows<float>(rows, stride(), target) : convert_rows<bf16>(rows, stride(), target);
    } else {
      auto* target = reinterpret_cast<bf16*>(pinned);
      from_f32 ? convert_rows<float>(rows, stride(), target) : convert_rows<bf16>(rows, stride(), target);
    }
    ring.send(storage_.data() + static_cast<size_t>(first) * row_bytes);
  }
}

// --- cublasLt -------------------------------------------------------------------------------------------------------------

/// The library's description of one product. It counts columns first, so out^T = w x^T: our rows are its columns.
struct CublasProducts::Layouts {
  explicit Layouts(const Shape& s) {
    check(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescInit");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check(cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
          "cublasLtMatmulDescSetAttribute");
    const auto layout = [](cublasLtMatrixLayoutOpaque_t& which, DType dtype, int64_t rows, int64_t columns, int64_t stride) {
      check(
          cublasLtMatrixLayoutInit(&which, type_of(dtype), static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), stride),
          "cublasLtMatrixLayoutInit");
    };
    layout(w, s.dtype, s.in, s.out, s.w_stride);
    layout(x, s.dtype, s.in, s.rows, s.x_stride);
    layout(out, s.result, s.out, s.rows, s.out_stride);
  }
  cublasLtMatmulDescOpaque_t operation{};
  cublasLtMatrixLayoutOpaque_t w{}, x{}, out{};
};

CublasProducts::CublasProducts(const Device& device)
    : device_(device), workspace_(device.allocate(kWorkspaceBytes)), proposals_(kProposals) {
  check(cublasLtCreate(&handle_), "cublasLtCreate");
  check(cublasLtMatmulPreferenceCreate(&preference_), "cublasLtMatmulPreferenceCreate");
  check(cublasLtMatmulPreferenceSetAttribute(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes,
                                             sizeof kWorkspaceBytes),
        "cublasLtMatmulPreferenceSetAttribute");
  // Where the depth is cut, parts are added up in float32: other schemes round them to the type of the result first.
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  check(cublasLtMatmulPreferenceSetAttribute(preference_, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                             sizeof reductions),
        "cublasLtMatmulPreferenceSetAttribute");
}

CublasProducts::~CublasProducts() {
  cublasLtMatmulPreferenceDestroy(preference_);
  cublasLtDestroy(handle_);
}

const CublasProducts::Proposal& CublasProducts::proposal_for(const Shape& s, Layouts& layouts) {
  uint64_t hash = 0;
  for (const int64_t value : {s.out, s.rows, s.in, s.x_stride, s.out_stride, int64_t{s.x_alignment}, int64_t{s.out_alignment},
                              static_cast<int64_t>(s.dtype), static_cast<int64_t>(s.result)})
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15u;
  Proposal& entry = proposals_[hash >> 52];
  static_assert(kProposals == size_t{1} << 12);
  if (entry.shape == s) return entry;

  entry = {.shape = s};
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t which, unsigned alignment) {
    check(cublasLtMatmulPreferenceSetAttribute(preference_, which, &alignment, sizeof alignment),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, s.x_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, s.out_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, s.out_alignment);
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle_, &layouts.operation, &layouts.w, &layouts.x,
                                                               &layouts.out, &layouts.out, preference_, 1, &best, &found);
  // Not supported is an answer, anything else a failure.
  if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE)
    check(status, "cublasLtMatmulAlgoGetHeuristic");
  entry.found = status == CUBLAS_STATUS_SUCCESS && found > 0 && best.state == CUBLAS_STATUS_SUCCESS;
  entry.algorithm = best.algo;
  return entry;
}

bool CublasProducts::multiply(const DeviceMatrix& w, ConstView x, View out) {
  const Shape shape{.out = w.out(),
                    .rows = x.size(0),
                    .in = w.in(),
                    .w_stride = w.stride(),
                    .x_stride = std::max(x.stride(0), w.in()),
                    .out_stride = std::max(out.stride(0), w.out()),
                    .dtype = w.dtype(),
                    .result = out.dtype(),
                    .x_alignment = alignment_of(x.data()),
                    .out_alignment = alignment_of(out.data())};
  // Rows that overlap, as those of a broadcast view do, are no matrix to the library.
  if (shape.rows > 1 && (x.stride(0) < w.in() || out.stride(0) < w.out())) return false;
  Layouts layouts(shape);
  const Proposal& proposal = proposal_for(shape, layouts);
  if (!proposal.found) return false;
  const float one = 1, zero = 0;
  check(cublasLtMatmul(handle_, &layouts.operation, &one, w.data(), &layouts.w, x.data(), &layouts.x, &zero, out.data(),
                       &layouts.out, out.data(), &layouts.out, &proposal.algorithm, workspace_.data(), kWorkspaceBytes,
                       device_.stream()),
        "cublasLtMatmul");
  return true;
}

}  // namespace weft::cuda
