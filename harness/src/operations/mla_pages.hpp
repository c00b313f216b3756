// The recorded MLA cache as the reference takes it.
#pragma once

#include "dsakit/core/tensor.hpp"
#include "dsakit/reference/mla_cache.hpp"

namespace dsakit::harness {

/// [pages, page_size, 656]. Byte = std::uint8_t for a cache to write.
template <class Byte, class TensorType>
reference::MlaCache<Byte> mla_pages(TensorType& cache) {
  const std::int64_t page_size = cache.shape[1];
  return {cache.template as<std::uint8_t>(), cache.shape[0], page_size,
          page_size * reference::kMlaRecord, reference::kMlaRecord};
}

/// [cached, 576] bfloat16: pages of one row.
inline reference::MlaCache<const std::uint8_t> dense_rows(const Tensor& cache) {
  return {cache.as<std::uint8_t>(), cache.shape[0], 1, reference::kMlaDenseRow,
          reference::kMlaDenseRow};
}

} // namespace dsakit::harness
