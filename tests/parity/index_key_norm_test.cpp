// index_key_norm: kernel against the exact reference within its bound, and the cache that it writes
// against the quantised key that it emits, on every device.
#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "dsakit/optimized/index_key_norm.hpp"
#include "dsakit/reference/formats.hpp"
#include "dsakit/reference/index_cache.hpp"
#include "dsakit/reference/norms.hpp"
#include "support/compare.hpp"
#include "support/devices.hpp"
#include "support/index_problem.hpp"
#include "support/run_kernel.hpp"

namespace dsakit {
namespace index_key_norm_test {

using testing::IndexCase;
using testing::OnDevice;

constexpr std::uint16_t kPoison = 0xDEAD;
constexpr std::int64_t kStride = 136; // elements: rows of a wider tensor

struct NormCase {
  const char* name;
  IndexKNorm norm;
  RmsNormRounding rounding;
};
constexpr NormCase kNorms[] = {{"layernorm", IndexKNorm::layernorm, RmsNormRounding::one},
                               {"rmsnorm one", IndexKNorm::rmsnorm, RmsNormRounding::one},
                               {"rmsnorm two", IndexKNorm::rmsnorm, RmsNormRounding::two}};

struct Keys {
  std::vector<std::uint16_t> rows = {}; // [tokens, 128]
  std::vector<float> weight = {};       // [128] no bf16 values
  std::vector<float> bias = {};         // [128]
  float eps = 1e-5f;

  std::int64_t tokens() const { return static_cast<std::int64_t>(rows.size() / 128); }
};

Keys random_keys(std::int64_t tokens, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Keys keys;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const float size = std::ldexp(1.0f, static_cast<int>(random() % 30) - 15);
    const float mean = t % 3 == 0 ? 0.0f : 4 * normal(random);
    for (int d = 0; d < 128; ++d)
      keys.rows.push_back(testing::to_bf16((mean + normal(random)) * size));
  }
  for (int d = 0; d < 128; ++d) {
    keys.weight.push_back(1 + 0.3f * normal(random));
    keys.bias.push_back(0.2f * normal(random));
  }
  return keys;
}

class IndexKeyNorm : public ::testing::TestWithParam<std::string> {
protected:
  std::unique_ptr<optimized::Device> device_ = testing::open(GetParam());

  struct Cache {
    IndexCase pages;
    std::int64_t count;
    std::vector<std::int64_t> slots;
    float floor = 1e-4f;
  };
  struct Output {
    std::vector<std::uint16_t> index_k;
    std::vector<std::uint8_t> cache;
  };

  static float qmax(const Cache& cache) {
    return cache.pages.encoding == Fp8Encoding::e4m3fn ? 448.0f : 224.0f;
  }
  static std::vector<std::uint8_t> untouched(const Cache& cache) {
    return std::vector<std::uint8_t>(
        static_cast<std::size_t>(cache.count * cache.pages.page_stride()), 0xA5);
  }

  Output run(const NormCase& norm, const Keys& keys, const Cache* cache, bool emit) {
    std::vector<std::uint16_t> wide(static_cast<std::size_t>(keys.tokens() * kStride), 0x7FC0);
    for (std::int64_t t = 0; t < keys.tokens(); ++t)
      std::copy_n(keys.rows.begin() + t * 128, 128, wide.begin() + t * kStride);
    OnDevice<std::uint16_t> raw(*device_, wide);
    OnDevice<float> weight(*device_, keys.weight);
    OnDevice<float> bias(*device_, keys.bias);
    OnDevice<std::uint16_t> index_k(*device_,
                                    std::vector<std::uint16_t>(keys.rows.size(), kPoison));
    OnDevice<std::int64_t> slots(*device_, cache ? cache->slots : std::vector<std::int64_t>());
    OnDevice<std::uint8_t> pages(*device_, cache ? untouched(*cache) : std::vector<std::uint8_t>());
    optimized::IndexKeyNormParams params{};
    params.index_k_raw = raw.data();
    params.weight = weight.data();
    params.bias = norm.norm == IndexKNorm::layernorm ? bias.data() : nullptr;
    params.index_k = emit ? index_k.data() : nullptr;
    params.index_k_raw_stride = kStride;
    params.tokens = keys.tokens();
    params.eps = keys.eps;
    params.norm = norm.norm;
    params.rounding = norm.rounding;
    if (cache) {
      params.write_cache = true;
      params.cache.slot_mapping = slots.data();
      params.cache.cache = pages.data();
      params.cache.page_stride = cache->pages.page_stride();
      params.cache.tokens = static_cast<std::int64_t>(cache->slots.size());
      params.cache.pages = cache->count;
      params.cache.page_size = static_cast<std::int32_t>(cache->pages.page_size);
      params.cache.amax_floor = cache->floor;
      params.cache.qmax = qmax(*cache);
      params.cache.encoding = cache->pages.encoding;
      params.cache.layout = cache->pages.layout;
    }
    const Status status = testing::run_kernel(*device_, params);
    EXPECT_TRUE(status) << status.what();
    return {index_k.values(), pages.values()};
  }

  std::vector<std::uint16_t> expect_within_bound(const NormCase& norm, const Keys& keys) {
    const reference::Norm in{norm.norm,
                             norm.rounding,
                             ActivationDtype::bf16,
                             keys.eps,
                             keys.weight.data(),
                             norm.norm == IndexKNorm::layernorm ? keys.bias.data() : nullptr,
                             128};
    std::vector<double> exact(keys.rows.size());
    std::vector<double> bound(keys.rows.size());
    EXPECT_TRUE(reference::apply_norm_exact(in, keys.rows.data(), keys.tokens(), exact.data(),
                                            bound.data()));
    const Output got = run(norm, keys, nullptr, true);
    std::vector<float> values;
    for (std::uint16_t bits : got.index_k)
      values.push_back(reference::bf16_to_float(bits));
    testing::expect_within("index_k", values, exact, bound, 128);
    return got.index_k;
  }

  /// The bytes that the reference writes for these keys.
  std::vector<std::uint8_t> quantised(const std::vector<std::uint16_t>& index_k,
                                      const Cache& cache) {
    std::vector<std::uint8_t> want = untouched(cache);
    std::vector<std::int64_t> slots = cache.slots;
    for (std::int64_t& slot : slots) // the reference refuses what the kernel skips
      if (slot >= cache.count * cache.pages.page_size) slot = -1;
    EXPECT_TRUE(reference::index_cache_write(
        {cache.pages.pages(), ActivationDtype::bf16, ScaleKind::ue8m0, cache.floor, qmax(cache)},
        index_k.data(), static_cast<std::int64_t>(index_k.size() / 128), slots,
        {want.data(), cache.count, cache.pages.page_stride()}));
    return want;
  }

  /// S05: the fused launch writes what quantising its own key gives, emitted or not.
  void expect_fused_bytes(const NormCase& norm, const Keys& keys, const Cache& cache) {
    const std::vector<std::uint16_t> alone = run(norm, keys, nullptr, true).index_k;
    const std::vector<std::uint8_t> want = quantised(alone, cache);
    const auto columns = static_cast<std::size_t>(cache.pages.page_stride());
    const Output fused = run(norm, keys, &cache, true);
    testing::expect_same("index_k", fused.index_k, alone, 128);
    testing::expect_same("cache", fused.cache, want, columns);
    const Output silent = run(norm, keys, &cache, false);
    testing::expect_same("index_k", silent.index_k,
                         std::vector<std::uint16_t>(keys.rows.size(), kPoison), 128);
    testing::expect_same("cache", silent.cache, want, columns);
  }
};

TEST_P(IndexKeyNorm, S31_EachNormWithinItsBound) {
  for (const NormCase& norm : kNorms) {
    SCOPED_TRACE(norm.name);
    for (float eps : {1e-5f, 1e-6f}) {
      Keys keys = random_keys(53, 1);
      keys.eps = eps;
      expect_within_bound(norm, keys);
    }
  }
}

// The simulated tier rounds where the kernel does and sums in another order: nearly every element
// has its bits. RMSNorm's two roundings are told from one by that.
TEST_P(IndexKeyNorm, SimulatedReferenceHasNearlyAllTheBits) {
  for (const NormCase& norm : kNorms) {
    SCOPED_TRACE(norm.name);
    const Keys keys = random_keys(97, 4);
    std::vector<std::uint16_t> want(keys.rows.size());
    ASSERT_TRUE(reference::index_key_norm(
        {norm.norm, norm.rounding, ActivationDtype::bf16, keys.eps, keys.weight.data(),
         norm.norm == IndexKNorm::layernorm ? keys.bias.data() : nullptr, 128},
        keys.rows.data(), keys.tokens(), want.data()));
    const std::vector<std::uint16_t> got = run(norm, keys, nullptr, true).index_k;
    std::size_t different = 0;
    for (std::size_t i = 0; i < got.size(); ++i)
      different += got[i] != want[i];
    EXPECT_LE(different, got.size() / 100);
  }
}

// S31: rows whose variance is of the size of eps, or 0; and a mean far above the deviation.
TEST_P(IndexKeyNorm, S31_NearConstantRows) {
  Keys keys = random_keys(6, 2);
  for (std::size_t d = 0; d < 128; ++d) {
    keys.rows[d] = testing::to_bf16(3.0f);                            // constant
    keys.rows[128 + d] = testing::to_bf16(d % 4 == 3 ? 3.02f : 3.0f); // one bf16 step
    keys.rows[256 + d] = 0;                                           // zeros
    keys.rows[384 + d] = testing::to_bf16(d % 4 == 3 ? 1e-3f : 0.0f); // below eps
    keys.rows[512 + d] = testing::to_bf16(100.0f + static_cast<float>(d % 3));
  }
  for (const NormCase& norm : kNorms) {
    SCOPED_TRACE(norm.name);
    expect_within_bound(norm, keys);
  }
}

// S48: the element that sets the norm may lie in any lane.
TEST_P(IndexKeyNorm, S48_EveryElementCounts) {
  Keys keys = random_keys(128, 3);
  for (std::size_t t = 0; t < 128; ++t)
    for (std::size_t d = 0; d < 128; ++d)
      keys.rows[t * 128 + d] = testing::to_bf16(d == t ? 300.0f : 0.01f * static_cast<float>(d));
  for (const NormCase& norm : kNorms) {
    SCOPED_TRACE(norm.name);
    expect_within_bound(norm, keys);
  }
}

TEST_P(IndexKeyNorm, S05_FusedCacheHoldsTheQuantisedKeyInEveryLayout) {
  for (const IndexCase& c : testing::index_cases()) {
    SCOPED_TRACE(std::string(name(c.encoding)) + " " + std::string(name(c.layout)) + " page " +
                 std::to_string(c.page_size));
    const std::int64_t pages = 1 + 50 / c.page_size;
    Cache cache{c, pages, {}};
    const std::int64_t pool = pages * c.page_size;
    for (std::int64_t t = 0; t < 37; ++t)
      cache.slots.push_back(t < pool ? t * 7 % pool : -1);
    if (pool % 7 == 0)
      for (std::int64_t t = 0; t < 37; ++t)
        cache.slots[static_cast<std::size_t>(t)] = t < pool ? pool - 1 - t : -1;
    cache.slots[3] = -1;
    cache.slots[5] = pool; // the first slot past the pool
    for (const NormCase& norm : kNorms)
      expect_fused_bytes(norm, random_keys(37, static_cast<unsigned>(c.page_size)), cache);
  }
}

// S20: tokens beyond the slots are normed and not written.
TEST_P(IndexKeyNorm, S20_FewerSlotsThanTokens) {
  const Cache cache{{Fp8Encoding::e4m3fn, IndexPageLayout::block_flat, 5, 12}, 3, {11, -1, 0, 7}};
  expect_fused_bytes(kNorms[0], random_keys(19, 5), cache);
  expect_fused_bytes(kNorms[2], random_keys(19, 6), {cache.pages, 3, {}});
}

TEST_P(IndexKeyNorm, NaNFillsItsRowAndNoOther) {
  Keys keys = random_keys(5, 7);
  keys.rows[2 * 128 + 99] = 0x7FC0;
  for (const NormCase& norm : kNorms) {
    SCOPED_TRACE(norm.name);
    const std::vector<std::uint16_t> got = expect_within_bound(norm, keys);
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(std::isnan(reference::bf16_to_float(got[i])), i / 128 == 2) << i;
    expect_fused_bytes(
        norm, keys,
        {{Fp8Encoding::e4m3fnuz, IndexPageLayout::mfma_preshuffle, 16, 0}, 1, {1, 3, 15, 0, 8}});
  }
}

TEST_P(IndexKeyNorm, NoTokensWriteNothing) {
  expect_fused_bytes(kNorms[0], random_keys(0, 8),
                     {{Fp8Encoding::e4m3fn, IndexPageLayout::block_flat, 64, 0}, 1, {}});
}

TEST_P(IndexKeyNorm, RefusesWhatItCannotNorm) {
  float bias[128] = {};
  optimized::IndexKeyNormParams params{};
  params.bias = bias;
  const auto refusal = [&](auto change) {
    optimized::IndexKeyNormParams changed = params;
    change(changed);
    const Status status = testing::run_kernel(*device_, changed);
    EXPECT_EQ(status.code(), Code::unsupported);
    return status.what();
  };
  EXPECT_TRUE(testing::run_kernel(*device_, params));
  EXPECT_NE(refusal([](auto& p) { p.bias = nullptr; }).find("layernorm without a bias"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.index_k_raw_stride = 130; }).find("130 elements"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.tokens = std::int64_t{1} << 40; }).find("workgroups"),
            std::string::npos);
  params.write_cache = true;
  params.cache.page_size = 64;
  params.cache.page_stride = 64 * 132;
  params.cache.amax_floor = 1e-4f;
  EXPECT_TRUE(testing::run_kernel(*device_, params));
  EXPECT_NE(refusal([](auto& p) { p.cache.page_stride = 8444; }).find("8444 bytes"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.cache.tokens = 3; }).find("3 slots for 0 tokens"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Devices, IndexKeyNorm, ::testing::ValuesIn(testing::device_names()),
                         [](const auto& info) { return info.param; });

} // namespace index_key_norm_test
} // namespace dsakit
