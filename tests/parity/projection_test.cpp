// Device::project, plain and as both absorptions, against the exact reference within its bound, and
// Device::copy_rows. A GPU without its library is skipped, and says so.
#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "dsakit/optimized/projection.hpp"
#include "dsakit/reference/dense.hpp"
#include "dsakit/reference/formats.hpp"
#include "support/compare.hpp"
#include "support/devices.hpp"
#include "support/index_problem.hpp"

namespace dsakit {
namespace projection_test {

using optimized::ProjectionParams;
using testing::OnDevice;

constexpr std::uint16_t kPoison = 0xDEAD;

std::vector<std::uint16_t> random_bf16(std::int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> values(static_cast<std::size_t>(n));
  for (std::uint16_t& value : values)
    value = testing::to_bf16(normal(random));
  return values;
}

std::vector<float> widened(const std::vector<std::uint16_t>& bits) {
  std::vector<float> values;
  for (const std::uint16_t b : bits)
    values.push_back(reference::bf16_to_float(b));
  return values;
}

reference::Weight weight_of(const std::vector<std::uint16_t>& bits, std::int64_t out,
                            std::int64_t in) {
  reference::Weight weight{};
  weight.values = bits.data();
  weight.outputs = out;
  weight.inputs = in;
  return weight;
}

class Projection : public ::testing::TestWithParam<std::string> {
protected:
  std::unique_ptr<optimized::Device> device_ = testing::open(GetParam());

  void SetUp() override {
    if (GetParam() == "hip" || GetParam() == "cuda") {
      const auto one = random_bf16(64, 0);
      OnDevice<std::uint16_t> x(*device_, one), w(*device_, one), y(*device_, one);
      const Status status =
          device_->project(optimized::projection(x.data(), w.data(), y.data(), 8, 8, 8));
      if (status.code() == Code::unsupported) GTEST_SKIP() << status.what();
    }
  }

  /// y [rows, out] of contiguous tensors.
  std::vector<std::uint16_t> run(const std::vector<std::uint16_t>& x,
                                 const std::vector<std::uint16_t>& w, std::int64_t rows,
                                 std::int64_t in, std::int64_t out) {
    OnDevice<std::uint16_t> device_x(*device_, x);
    OnDevice<std::uint16_t> device_w(*device_, w);
    OnDevice<std::uint16_t> y(
        *device_, std::vector<std::uint16_t>(static_cast<std::size_t>(rows * out), kPoison));
    const Status status = device_->project(
        optimized::projection(device_x.data(), device_w.data(), y.data(), rows, in, out));
    EXPECT_TRUE(status) << status.what();
    EXPECT_TRUE(device_->synchronize());
    return y.values();
  }
};

TEST_P(Projection, WithinItsBound) {
  struct Case {
    std::int64_t rows, in, out;
  };
  for (const Case& c : {Case{1, 8, 8}, Case{5, 192, 672}, Case{16, 96, 768}, Case{17, 64, 65},
                        Case{33, 7168, 130}, Case{130, 512, 32}}) {
    SCOPED_TRACE(std::to_string(c.rows) + " x " + std::to_string(c.in) + " x " +
                 std::to_string(c.out));
    const auto x = random_bf16(c.rows * c.in, 1);
    const auto w = random_bf16(c.out * c.in, 2);
    std::vector<double> exact(static_cast<std::size_t>(c.rows * c.out));
    std::vector<double> bound(exact.size());
    ASSERT_TRUE(reference::project_exact(
        {x.data(), c.rows, weight_of(w, c.out, c.in), ActivationDtype::bf16}, exact.data(),
        bound.data()));
    testing::expect_within("y", widened(run(x, w, c.rows, c.in, c.out)), exact, bound,
                           static_cast<std::size_t>(c.out));
  }
}

// A sum of 2,048 ones and then a small one: bf16 or fp16 accumulation would lose it.
TEST_P(Projection, SumsAreFp32) {
  constexpr std::int64_t kIn = 4096;
  std::vector<std::uint16_t> x(kIn * 8, testing::to_bf16(1.0f));
  std::vector<std::uint16_t> w(kIn * 8, testing::to_bf16(0x1p-9f));
  const auto y = run(x, w, 8, kIn, 8);
  EXPECT_EQ(y, std::vector<std::uint16_t>(64, testing::to_bf16(8.0f)));
}

TEST_P(Projection, SameBitsEveryTime) {
  const auto x = random_bf16(40 * 512, 3);
  const auto w = random_bf16(200 * 512, 4);
  const auto first = run(x, w, 40, 512, 200);
  for (int i = 0; i < 3; ++i)
    testing::expect_same("y", run(x, w, 40, 512, 200), first, 200);
}

// On the host alone: a library chooses another order for another number of rows.
TEST_P(Projection, ARowHasItsBitsInAnyCompany) {
  if (device_->kind() != optimized::DeviceKind::host) GTEST_SKIP() << "of the host device";
  const auto x = random_bf16(37 * 768, 5);
  const auto w = random_bf16(100 * 768, 6);
  const auto together = run(x, w, 37, 768, 100);
  for (const std::int64_t row : {0, 1, 2, 3, 15, 16, 31, 36}) {
    const std::vector<std::uint16_t> alone(x.begin() + row * 768, x.begin() + (row + 1) * 768);
    testing::expect_same("row " + std::to_string(row), run(alone, w, 1, 768, 100),
                         {together.begin() + row * 100, together.begin() + (row + 1) * 100}, 100);
  }
}

// A weight [in, 1] is a column or a row.
TEST_P(Projection, OneOutputOfATransposedWeight) {
  const auto x = random_bf16(9 * 40, 13);
  const auto w = random_bf16(40, 14);
  OnDevice<std::uint16_t> device_x(*device_, x), device_w(*device_, w);
  OnDevice<std::uint16_t> y(*device_, std::vector<std::uint16_t>(9, kPoison));
  ProjectionParams params =
      optimized::projection(device_x.data(), device_w.data(), y.data(), 9, 40, 1);
  params.weight_out_stride = params.weight_in_stride = 1;
  const Status status = device_->project(params);
  ASSERT_TRUE(status) << status.what();
  ASSERT_TRUE(device_->synchronize());
  std::vector<double> exact(9);
  std::vector<double> bound(9);
  ASSERT_TRUE(reference::project_exact({x.data(), 9, weight_of(w, 1, 40), ActivationDtype::bf16},
                                       exact.data(), bound.data()));
  testing::expect_within("y", widened(y.values()), exact, bound, 1);
}

// The heads' products lie beside one another in q, kv_b_proj and the query.
TEST_P(Projection, AbsorbQ) {
  constexpr std::int64_t kTokens = 21, kHeads = 3, kNope = 128, kPe = 64, kValue = 64,
                         kLatent = 512;
  constexpr std::int64_t kQ = kNope + kPe, kQuery = kLatent + kPe;
  const auto q = random_bf16(kTokens * kHeads * kQ, 7);
  const auto kv_b = random_bf16(kHeads * (kNope + kValue) * kLatent, 8);
  OnDevice<std::uint16_t> device_q(*device_, q);
  OnDevice<std::uint16_t> weight(*device_, kv_b);
  OnDevice<std::uint16_t> query(*device_,
                                std::vector<std::uint16_t>(kTokens * kHeads * kQuery, kPoison));
  const Status status = device_->project(
      {device_q.data(), weight.data(), query.data(), kQ, kHeads * kQ, (kNope + kValue) * kLatent, 1,
       kLatent, kQuery, kHeads * kQuery, kTokens, kNope, kLatent, kHeads});
  ASSERT_TRUE(status) << status.what();
  ASSERT_TRUE(device_->synchronize());
  for (std::int64_t row = 0; row < kTokens * kHeads; ++row)
    for (std::int64_t i = kLatent; i < kQuery; ++i)
      ASSERT_EQ(query.values()[static_cast<std::size_t>(row * kQuery + i)], kPoison);
  ASSERT_TRUE(device_->copy_rows(query.data() + kLatent, 2 * kQuery, device_q.data() + kNope,
                                 2 * kQ, 2 * kPe, kTokens * kHeads));
  ASSERT_TRUE(device_->synchronize());

  std::vector<double> exact(kTokens * kHeads * kQuery);
  std::vector<double> bound(exact.size());
  ASSERT_TRUE(reference::absorb_q_exact({q.data(),
                                         kTokens,
                                         kHeads,
                                         {kNope, kPe, kValue, kLatent},
                                         weight_of(kv_b, kHeads * (kNope + kValue), kLatent),
                                         ActivationDtype::bf16},
                                        exact.data(), bound.data()));
  testing::expect_within("mla_query", widened(query.values()), exact, bound, kQuery);
}

TEST_P(Projection, AbsorbV) {
  constexpr std::int64_t kTokens = 21, kHeads = 3, kNope = 64, kValue = 128, kLatent = 512;
  const auto latent = random_bf16(kTokens * kHeads * kLatent, 9);
  const auto kv_b = random_bf16(kHeads * (kNope + kValue) * kLatent, 10);
  OnDevice<std::uint16_t> x(*device_, latent);
  OnDevice<std::uint16_t> weight(*device_, kv_b);
  OnDevice<std::uint16_t> y(*device_,
                            std::vector<std::uint16_t>(kTokens * kHeads * kValue, kPoison));
  const Status status =
      device_->project({x.data(), weight.data() + kNope * kLatent, y.data(), kLatent,
                        kHeads * kLatent, (kNope + kValue) * kLatent, kLatent, 1, kValue,
                        kHeads * kValue, kTokens, kLatent, kValue, kHeads});
  ASSERT_TRUE(status) << status.what();
  ASSERT_TRUE(device_->synchronize());

  std::vector<double> exact(kTokens * kHeads * kValue);
  std::vector<double> bound(exact.size());
  ASSERT_TRUE(reference::absorb_v_exact({latent.data(),
                                         kTokens,
                                         kHeads,
                                         {kNope, 0, kValue, kLatent},
                                         weight_of(kv_b, kHeads * (kNope + kValue), kLatent),
                                         ActivationDtype::bf16},
                                        exact.data(), bound.data()));
  testing::expect_within("attn_value", widened(y.values()), exact, bound, kHeads * kValue);
}

TEST_P(Projection, NaNStaysInItsRow) {
  auto x = random_bf16(20 * 96, 11);
  x[7 * 96 + 95] = 0x7FC0;
  const auto y = run(x, random_bf16(72 * 96, 12), 20, 96, 72);
  for (std::size_t i = 0; i < y.size(); ++i)
    EXPECT_EQ(std::isnan(reference::bf16_to_float(y[i])), i / 72 == 7) << i;
}

TEST_P(Projection, NoRowsAndRefusals) {
  ProjectionParams params = optimized::projection(nullptr, nullptr, nullptr, 0, 64, 32);
  EXPECT_TRUE(device_->project(params));
  const auto refusal = [&](auto change) {
    ProjectionParams changed = params;
    change(changed);
    const Status status = device_->project(changed);
    EXPECT_EQ(status.code(), Code::unsupported);
    return status.what();
  };
  EXPECT_EQ(refusal([](auto& p) { p.rows = -1; }), "rows is -1, want at least 0");
  EXPECT_EQ(refusal([](auto& p) { p.in = 0; }), "in is 0, want at least 1");
  EXPECT_EQ(refusal([](auto& p) { p.out = 0; }), "out is 0, want at least 1");
  EXPECT_EQ(refusal([](auto& p) { p.batch = 0; }), "batch is 0, want at least 1");
  EXPECT_EQ(refusal([](auto& p) { p.x_row_stride = 63; }), "x_row_stride is 63, want at least 64");
  EXPECT_EQ(refusal([](auto& p) { p.y_row_stride = 31; }), "y_row_stride is 31, want at least 32");
  EXPECT_EQ(refusal([](auto& p) { p.weight_out_stride = 63; }),
            "weight_out_stride is 63, want at least 64");
  EXPECT_EQ(refusal([](auto& p) { p.weight_in_stride = 2; }),
            "weight_out_stride and weight_in_stride are 64 and 2, want one of them to be 1");
}

INSTANTIATE_TEST_SUITE_P(Devices, Projection, ::testing::ValuesIn(testing::device_names()),
                         [](const auto& info) { return info.param; });

} // namespace projection_test
} // namespace dsakit
