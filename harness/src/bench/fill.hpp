// Values of tensors of problems by shape: fast, a function of the seed alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dsakit/core/contract_enums.hpp"
#include "dsakit/core/tensor.hpp"

namespace dsakit::harness {

/// Draws of numbered elements: a pool of normal values, taken from in an order that hashing gives.
class ValuePool {
public:
  explicit ValuePool(std::uint64_t seed);

  std::uint64_t bits(std::uint64_t stream, std::uint64_t i) const;
  float normal(std::uint64_t stream, std::uint64_t i) const {
    return normal_[bits(stream, i) % normal_.size()];
  }
  /// 0, ..., n - 1 in random order.
  std::vector<std::int32_t> permutation(std::uint64_t stream, std::int64_t n) const;

private:
  std::uint64_t seed_;
  std::vector<float> normal_;
};

/// Normal values times `scale`, plus `mean`; floats, bf16, or fp8 codes of 8 times as much.
void fill_values(Tensor& tensor, const ValuePool& pool, std::uint64_t stream, float scale = 1,
                 float mean = 0);
/// Random codes with fitting scales: pages of page_size tokens, scales behind the codes.
void fill_index_cache(Tensor& cache, std::int64_t page_size, bool mxfp4, Fp8Encoding encoding,
                      const ValuePool& pool, std::uint64_t stream);
/// Records of 512 codes, four scales and 64 bf16 values.
void fill_mla_cache(Tensor& cache, Fp8Encoding encoding, const ValuePool& pool,
                    std::uint64_t stream);
/// Logits of topk: normal, narrow, constant, huge, sparse, inf_tail or sorted.
void fill_logits(Tensor& logits, const std::string& input, const ValuePool& pool,
                 std::uint64_t stream);

/// `k` positions of each row in [0, context), each at most once, -1 behind them where the context
/// is shorter: random, sorted, shared by 16 neighbouring rows, or local, the last ones in order.
void fill_positions(Tensor& positions, std::int64_t context, const std::string& sets,
                    const ValuePool& pool, std::uint64_t stream);

} // namespace dsakit::harness
