// index_key_norm: LayerNorm or RMSNorm of indexer keys (spec 1), alone or fused with
// index_cache_write, so that a key is read once.
#pragma once

#include <cstdint>

#include "dsakit/core/contract_enums.hpp"
#include "dsakit/optimized/index_cache_write.hpp"

namespace dsakit::optimized {

/// layernorm: y = bf16((x - mean) * rsqrt(var + eps) * bf16(w) + bf16(b)), var over 128, biased
/// rmsnorm:   y = bf16(bf16(x * rsqrt(mean(x^2) + eps)) * bf16(w)); rounding one: the inner bf16
/// out
struct IndexKeyNormParams {
  const std::uint16_t* index_k_raw; // [tokens, 128] bf16, rows 16-byte aligned
  const float* weight;              // [128] fp32 as in the checkpoint, cast to bf16 at use
  const float* bias;                // [128] likewise; nullptr for rmsnorm
  std::uint16_t* index_k;           // [tokens, 128] bf16, or nullptr where only the cache is wanted
  std::int64_t index_k_raw_stride;  // ELEMENTS between rows, a multiple of 8
  std::int64_t tokens;
  float eps;
  IndexKNorm norm;
  RmsNormRounding rounding;
  bool write_cache;            // also quantise and write, as `cache` says
  IndexCacheWriteParams cache; // index_k and index_k_stride are not read; tokens beyond
                               // cache.tokens (the slots) are normed and not written
};

} // namespace dsakit::optimized
