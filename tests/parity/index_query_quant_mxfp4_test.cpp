// index_query_quant to MXFP4: kernel against reference, bit for bit, on every device.
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "dsakit/optimized/index_query_quant.hpp"
#include "dsakit/reference/mxfp4.hpp"
#include "support/compare.hpp"
#include "support/devices.hpp"
#include "support/index_problem.hpp"
#include "support/run_kernel.hpp"

namespace dsakit {
namespace index_query_quant_mxfp4_test {

using testing::OnDevice;

struct Queries {
  std::int64_t tokens;
  std::int64_t heads;
  std::vector<std::uint16_t> index_q; // [tokens, heads, 128]
};

/// Groups of very different sizes.
Queries random_queries(std::int64_t tokens, std::int64_t heads) {
  std::mt19937 random(static_cast<unsigned>(heads));
  std::normal_distribution<float> normal;
  Queries q{tokens, heads, {}};
  for (std::int64_t group = 0; group < tokens * heads * 4; ++group) {
    const float size = std::ldexp(1.0f, static_cast<int>(random() % 60) - 40);
    for (int d = 0; d < 32; ++d)
      q.index_q.push_back(testing::to_bf16(normal(random) * size));
  }
  return q;
}

class IndexQueryQuantMxfp4 : public ::testing::TestWithParam<std::string> {
protected:
  std::unique_ptr<optimized::Device> device_ = testing::open(GetParam());

  struct Quantised {
    std::vector<std::uint8_t> packed; // [tokens, heads, 64]
    std::vector<std::uint8_t> scale;  // [tokens, heads, 4]
  };

  /// The kernel reads tokens out of a wider tensor, padded with NaN.
  Quantised quantise(const Queries& q, Hadamard hadamard) {
    const auto rows = static_cast<std::size_t>(q.tokens * q.heads);
    const std::int64_t stride = q.heads * 128 + 24;
    std::vector<std::uint16_t> wide(static_cast<std::size_t>(q.tokens * stride), 0x7FC0);
    for (std::int64_t t = 0; t < q.tokens; ++t)
      std::copy_n(q.index_q.begin() + t * q.heads * 128, q.heads * 128, wide.begin() + t * stride);
    OnDevice<std::uint16_t> index_q(*device_, wide);
    OnDevice<std::uint8_t> q_packed(*device_, std::vector<std::uint8_t>(rows * 64, 0xA5));
    OnDevice<std::uint8_t> q_scale(*device_, std::vector<std::uint8_t>(rows * 4, 0xA5));
    optimized::IndexQueryQuantMxfp4Params params{};
    params.index_q = index_q.data();
    params.q_packed = q_packed.data();
    params.q_scale = q_scale.data();
    params.index_q_stride = stride;
    params.tokens = q.tokens;
    params.heads = static_cast<std::int32_t>(q.heads);
    params.hadamard = hadamard == Hadamard::query_and_key;
    const Status status = testing::run_kernel(*device_, params);
    EXPECT_TRUE(status) << status.what();
    return {q_packed.values(), q_scale.values()};
  }

  void expect_same_bits(const Queries& q, Hadamard hadamard) {
    const auto rows = static_cast<std::size_t>(q.tokens * q.heads);
    Quantised want{std::vector<std::uint8_t>(rows * 64, 0xA5),
                   std::vector<std::uint8_t>(rows * 4, 0xA5)};
    ASSERT_TRUE(reference::index_query_quant_mxfp4({ActivationDtype::bf16, hadamard},
                                                   q.index_q.data(), q.tokens * q.heads,
                                                   want.packed.data(), want.scale.data()));
    const Quantised got = quantise(q, hadamard);
    testing::expect_same("q_packed", got.packed, want.packed, 64);
    testing::expect_same("q_scale", got.scale, want.scale, 4);
  }
};

constexpr Hadamard kBoth[] = {Hadamard::none, Hadamard::query_and_key};

// S32: head counts that fill no workgroup.
TEST_P(IndexQueryQuantMxfp4, S32_EveryHeadCount) {
  for (std::int64_t heads = 1; heads <= 64; ++heads) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    expect_same_bits(random_queries(3, heads), kBoth[heads % 2]);
  }
}

// Every bf16 value beside its neighbours, and beside an element that sets the group's scale: with 6
// times a power of two, every value that a code can have and every tie between two comes up.
TEST_P(IndexQueryQuantMxfp4, All65536Inputs) {
  for (const Hadamard hadamard : kBoth)
    for (std::uint32_t anchor :
         {0x0000u, 0x3F80u, 0x40C0u, 0x40C1u, 0x4040u, 0x2EC0u, 0x0180u, 0x7F40u, 0x7F7Fu}) {
      SCOPED_TRACE(std::string(name(hadamard)) + " anchor " + std::to_string(anchor));
      Queries q{1, 529, {}};
      for (std::uint32_t first = 0; first < 2116 * 31; first += 31) {
        for (std::uint32_t i = 0; i < 31; ++i)
          q.index_q.push_back(static_cast<std::uint16_t>(std::min(first + i, 0xFFFFu)));
        q.index_q.push_back(static_cast<std::uint16_t>(anchor));
      }
      ASSERT_EQ(q.index_q.size(), std::size_t{529} * 128);
      expect_same_bits(q, hadamard);
    }
}

// S02: an all-zero group has scale 2^-126, byte 1, and its -0 keep their sign; so has one below the
// floor.
TEST_P(IndexQueryQuantMxfp4, S02_ZeroAndTinyGroups) {
  Queries q{1, 1, std::vector<std::uint16_t>(128, 0)};
  for (std::size_t d = 32; d < 64; ++d)
    q.index_q[d] = 0x8000; // -0
  for (std::size_t d = 64; d < 96; ++d)
    q.index_q[d] = static_cast<std::uint16_t>(d); // subnormal
  q.index_q[100] = 0x01C0;                        // 6 * 2^-126, the floor
  for (const Hadamard hadamard : kBoth)
    expect_same_bits(q, hadamard);
}

// S06: the exponent is rounded up, so that nothing clips; 6 itself needs no step.
TEST_P(IndexQueryQuantMxfp4, S06_TheExponentIsRoundedUp) {
  Queries q{1, 2, std::vector<std::uint16_t>(256, 0)};
  const float largest[] = {5, 6, 6.5f, 7, 7.96875f, 8, 12, 12.0625f};
  for (std::size_t group = 0; group < 8; ++group)
    q.index_q[32 * group + 3] = testing::to_bf16(largest[group]);
  EXPECT_EQ(quantise(q, Hadamard::none).scale,
            (std::vector<std::uint8_t>{127, 127, 128, 128, 128, 128, 128, 129}));
}

// S07: the even element is in the low nibble.
TEST_P(IndexQueryQuantMxfp4, S07_TheEvenElementIsInTheLowNibble) {
  Queries q{1, 1, {}};
  for (int pair = 0; pair < 64; ++pair) {
    q.index_q.push_back(testing::to_bf16(pair % 2 ? -0.5f : 1));
    q.index_q.push_back(testing::to_bf16(6));
  }
  const std::vector<std::uint8_t> packed = quantise(q, Hadamard::none).packed;
  for (std::size_t i = 0; i < 64; ++i)
    EXPECT_EQ(packed[i], i % 2 ? 0x79 : 0x72) << i;
}

// S08, S48: the maximum may lie in any element, hence in any lane.
TEST_P(IndexQueryQuantMxfp4, S08_S48_TheMaximumMayLieAnywhere) {
  Queries q{128, 1, std::vector<std::uint16_t>(std::size_t{128} * 128, 0x3F80)};
  for (std::size_t d = 0; d < 128; ++d)
    q.index_q[d * 128 + d] = d % 2 ? 0xC47A : 0x447A; // -1000, 1000
  for (const Hadamard hadamard : kBoth)
    expect_same_bits(q, hadamard);
}

// Spec 11: NaN takes no part in amax and becomes code 0; an infinity saturates. Rotated, one of
// them reaches every element of its row, and finite ones may overflow.
TEST_P(IndexQueryQuantMxfp4, NonFiniteElements) {
  Queries q{5, 1, std::vector<std::uint16_t>(std::size_t{5} * 128, testing::to_bf16(1.5f))};
  q.index_q[9] = 0x7FC0;         // NaN
  q.index_q[128 + 127] = 0xFF80; // -inf
  q.index_q[256] = 0x7F80;       // inf beside NaN
  q.index_q[257] = 0xFFFF;       // NaN
  for (std::size_t d = 0; d < 128; ++d) {
    q.index_q[384 + d] = 0xFFC1; // nothing but NaN
    q.index_q[512 + d] = d % 3 ? 0x7F7F : 0xFF7F;
  }
  for (const Hadamard hadamard : kBoth)
    expect_same_bits(q, hadamard);
}

TEST_P(IndexQueryQuantMxfp4, NoTokensWriteNothing) {
  expect_same_bits({0, 16, {}}, Hadamard::none);
}

TEST_P(IndexQueryQuantMxfp4, RefusesWhatItCannotQuantise) {
  optimized::IndexQueryQuantMxfp4Params params{};
  params.heads = 2;
  const auto refusal = [&](auto change) {
    optimized::IndexQueryQuantMxfp4Params changed = params;
    change(changed);
    const Status status = testing::run_kernel(*device_, changed);
    EXPECT_EQ(status.code(), Code::unsupported);
    return status.what();
  };
  EXPECT_TRUE(testing::run_kernel(*device_, params));
  EXPECT_NE(refusal([](auto& p) { p.heads = 0; }).find("heads is 0, want at least 1"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.index_q_stride = 130; }).find("130 elements"),
            std::string::npos);
  std::uint8_t bytes[8];
  EXPECT_NE(refusal([&](auto& p) {
              p.q_packed = bytes + (reinterpret_cast<std::uintptr_t>(bytes) % 4 == 3 ? 2 : 1);
            }).find("q_packed is not aligned to 4 bytes"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.tokens = std::int64_t{1} << 40; }).find("workgroups"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Devices, IndexQueryQuantMxfp4,
                         ::testing::ValuesIn(testing::device_names()),
                         [](const auto& info) { return info.param; });

} // namespace index_query_quant_mxfp4_test
} // namespace dsakit
