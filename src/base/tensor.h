#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <type_traits>

#include "base/check.h"
#include "base/dtype.h"

namespace weft {

/// Owns bytes of some memory (host or device) and knows how to give them back. Move-only.
class Buffer {
 public:
  using Deleter = std::function<void(void*)>;
  Buffer() = default;
  Buffer(void* data, size_t bytes, Deleter deleter) : data_(data, std::move(deleter)), bytes_(bytes) {}

  /// Host memory, zeroed, aligned to 64 bytes (2 MiB and backed by huge pages where the system grants them, from 4 MiB on).
  /// Throws SystemError when the system has no more.
  static Buffer host(size_t bytes);

  std::byte* data() const { return static_cast<std::byte*>(data_.get()); }
  size_t bytes() const { return bytes_; }

 private:
  std::unique_ptr<void, Deleter> data_{nullptr, [](void*) {}};
  size_t bytes_ = 0;
};

/// Looks at a tensor of up to four dimensions: a pointer, an element type, sizes and strides in elements. Never owns.
/// `BasicView<false>` (View) may be written through, `BasicView<true>` (ConstView) not.
template <bool kConst>
class BasicView {
 public:
  static constexpr int kMaxDims = 4;
  using Pointer = std::conditional_t<kConst, const void*, void*>;

  BasicView() = default;
  /// A contiguous tensor, last dimension fastest.
  BasicView(Pointer data, DType dtype, std::initializer_list<int64_t> sizes)
      : data_(data), dtype_(dtype), dims_(static_cast<int>(sizes.size())) {
    WEFT_CHECK_LE(sizes.size(), static_cast<size_t>(kMaxDims));
    std::copy(sizes.begin(), sizes.end(), sizes_.begin());
    int64_t stride = 1;
    for (int d = dims_ - 1; d >= 0; --d) {
      strides_[d] = stride;
      stride *= sizes_[d];
    }
  }
  /// A tensor with explicit strides, in elements.
  BasicView(Pointer data, DType dtype, std::initializer_list<int64_t> sizes, std::initializer_list<int64_t> strides)
      : BasicView(data, dtype, sizes) {
    WEFT_CHECK_EQ(sizes.size(), strides.size());
    std::copy(strides.begin(), strides.end(), strides_.begin());
  }
  // NOLINTNEXTLINE(google-explicit-constructor): a View is a ConstView wherever one is read.
  operator BasicView<true>() const requires(!kConst) {
    BasicView<true> view;
    view.data_ = data_;
    view.dtype_ = dtype_;
    view.dims_ = dims_;
    view.sizes_ = sizes_;
    view.strides_ = strides_;
    return view;
  }

  Pointer data() const { return data_; }
  bool empty() const { return data_ == nullptr; }
  DType dtype() const { return dtype_; }
  int dims() const { return dims_; }
  int64_t size(int d) const { return sizes_[d]; }
  int64_t stride(int d) const { return strides_[d]; }
  int64_t count() const {
    int64_t n = 1;
    for (int d = 0; d < dims_; ++d) n *= sizes_[d];
    return n;
  }
  /// Bytes of the elements, holes between strides not counted.
  size_t bytes() const { return static_cast<size_t>(count()) * size_of(dtype_); }
  bool is_contiguous() const {
    int64_t stride = 1;
    for (int d = dims_ - 1; d >= 0; --d) {
      if (sizes_[d] != 1 && strides_[d] != stride) return false;
      stride *= sizes_[d];
    }
    return true;
  }

  /// The first element, as T. Requires: T is the element type.
  template <typename T>
  auto as() const {
    WEFT_CHECK(dtype_ == dtype_of<std::remove_const_t<T>>::value) << "view holds " << to_string(dtype_);
    return static_cast<std::conditional_t<kConst, const T*, T*>>(data_);
  }
  /// Elements [begin, begin + count) of dimension `dim`.
  BasicView slice(int dim, int64_t begin, int64_t count) const {
    WEFT_CHECK(dim < dims_ && begin >= 0 && count >= 0 && begin + count <= sizes_[dim])
        << "slice [" << begin << ", +" << count << ") of dimension " << dim << " of size " << sizes_[dim];
    BasicView view = *this;
    view.data_ = offset(begin * strides_[dim]);
    view.sizes_[dim] = count;
    return view;
  }
  BasicView rows(int64_t begin, int64_t count) const { return slice(0, begin, count); }
  /// Drops dimension 0 at `index`.
  BasicView at(int64_t index) const {
    WEFT_CHECK(dims_ > 1 && index >= 0 && index < sizes_[0]) << "index " << index;
    BasicView view;
    view.data_ = offset(index * strides_[0]);
    view.dtype_ = dtype_;
    view.dims_ = dims_ - 1;
    std::copy(sizes_.begin() + 1, sizes_.end(), view.sizes_.begin());
    std::copy(strides_.begin() + 1, strides_.end(), view.strides_.begin());
    return view;
  }
  /// The same elements with the last dimension split into [parts, size / parts].
  BasicView split_last(int64_t parts) const {
    WEFT_CHECK(dims_ < kMaxDims && parts > 0 && sizes_[dims_ - 1] % parts == 0) << "parts " << parts;
    BasicView view = *this;
    const int last = dims_ - 1;
    view.dims_ = dims_ + 1;
    view.sizes_[last] = parts;
    view.sizes_[last + 1] = sizes_[last] / parts;
    view.strides_[last] = view.sizes_[last + 1] * strides_[last];
    view.strides_[last + 1] = strides_[last];
    return view;
  }

 private:
  template <bool>
  friend class BasicView;
  Pointer offset(int64_t elements) const {
    using Byte = std::conditional_t<kConst, const std::byte, std::byte>;
    return static_cast<Byte*>(data_) + elements * static_cast<int64_t>(size_of(dtype_));
  }

  Pointer data_ = nullptr;
  DType dtype_ = DType::f32;
  int dims_ = 0;
  std::array<int64_t, kMaxDims> sizes_{};
  std::array<int64_t, kMaxDims> strides_{};
};

using View = BasicView<false>;
using ConstView = BasicView<true>;

}  // namespace weft
