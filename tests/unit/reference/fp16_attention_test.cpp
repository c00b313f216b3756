// Sparse attention with fp16 activations: query, records' values, probabilities and latent in fp16.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "dsakit/reference/formats.hpp"
#include "dsakit/reference/sparse_attention.hpp"
#include "support/mla_problem.hpp"

namespace dsakit::reference {
namespace fp16_attention_test {

TEST(Fp16Attention, StaysWithinItsBoundAndIsCloserThanBf16) {
  constexpr std::int64_t kTokens = 3, kHeads = 4, kK = 20, kPages = 4, kPage = 8;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<std::uint8_t> cache(kPages * kPage * 656);
  std::vector<std::uint16_t> query;
  for (std::int64_t slot = 0; slot < kPages * kPage; ++slot) {
    testing::random_mla_record(cache.data() + slot * 656, random);
    for (std::int64_t d = 0; d < 64; ++d) {
      const std::uint16_t bits = float_to_fp16(normal(random));
      std::memcpy(cache.data() + slot * 656 + 528 + 2 * d, &bits, sizeof bits);
    }
  }
  for (std::int64_t i = 0; i < kTokens * kHeads * 576; ++i)
    query.push_back(float_to_fp16(normal(random)));
  std::vector<std::int32_t> slots;
  for (std::int64_t i = 0; i < kTokens * kK; ++i)
    slots.push_back(static_cast<std::int32_t>(i * 7 % (kPages * kPage)));
  const SparseAttention in{query.data(),
                           {cache.data(), kPages, kPage, kPage * 656, 656},
                           slots.data(),
                           kTokens,
                           kHeads,
                           kK,
                           0.0721687824,
                           Fp8Encoding::e4m3fn,
                           MlaScaleRead::fp32,
                           LseBase::e,
                           ActivationDtype::fp16};
  const std::size_t latents = kTokens * kHeads * 512, rows = kTokens * kHeads;
  std::vector<double> exact(latents), exact_lse(rows), bound(latents), lse_bound(rows);
  std::vector<std::uint16_t> latent(latents);
  std::vector<float> lse(rows);
  ASSERT_TRUE(sparse_attention_exact(in, exact.data(), exact_lse.data()));
  ASSERT_TRUE(sparse_attention_bound(in, bound.data(), lse_bound.data()));
  ASSERT_TRUE(sparse_attention(in, latent.data(), lse.data()));
  double worst = 0;
  for (std::size_t i = 0; i < latents; ++i)
    worst = std::max(worst, std::fabs(fp16_to_float(latent[i]) - exact[i]) / bound[i]);
  EXPECT_LE(worst, 1);
  EXPECT_LT(worst, 0.25); // of a bound for 8 bits, with 11 bits: a bf16 rounding would use more
  for (std::size_t i = 0; i < rows; ++i)
    EXPECT_LE(std::fabs(lse[i] - exact_lse[i]), lse_bound[i]);

  // One key: its values, rounded to fp16, are the answer; k_pe bits are fp16.
  float values[576];
  read_mla_record(Fp8Encoding::e4m3fn, MlaScaleRead::fp32, cache.data() + 5 * 656, values,
                  ActivationDtype::fp16);
  const std::int32_t one = 5;
  SparseAttention single = in;
  single.slots = &one;
  single.tokens = 1;
  single.k = 1;
  ASSERT_TRUE(sparse_attention(single, latent.data(), lse.data()));
  for (std::size_t d = 0; d < 512; ++d)
    EXPECT_EQ(fp16_to_float(latent[d]), values[d]);
  std::uint16_t pe = 0;
  std::memcpy(&pe, cache.data() + 5 * 656 + 528, sizeof pe);
  EXPECT_EQ(values[512], fp16_to_float(pe));
}

} // namespace fp16_attention_test
} // namespace dsakit::reference
