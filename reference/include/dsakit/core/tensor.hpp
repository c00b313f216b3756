// Row-major tensors: an owning one, and the view that references and adapters take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dsakit/core/dtype.hpp"

namespace dsakit {

using Shape = std::vector<std::int64_t>;

/// Elements of a shape; 1 for a scalar (no axes).
inline std::int64_t element_count(const Shape& shape) {
  std::int64_t n = 1;
  for (std::int64_t extent : shape)
    n *= extent;
  return n;
}

/// "[3, 2, 128]"
inline std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i)
    text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

/// Contiguous row-major tensor that owns its bytes.
struct Tensor {
  Dtype dtype = Dtype::uint8;
  Shape shape;
  std::vector<std::byte> bytes;

  Tensor() = default;
  /// Zero-filled.
  Tensor(Dtype d, Shape s)
      : dtype(d), shape(std::move(s)),
        bytes(static_cast<std::size_t>(element_count(shape)) * size_of(d)) {}

  std::int64_t elements() const { return element_count(shape); }

  /// The payload as T; the caller has checked `dtype` (bfloat16 as std::uint16_t, fp8 as
  /// std::uint8_t).
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(bytes.data());
  }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(bytes.data());
  }
};

} // namespace dsakit
