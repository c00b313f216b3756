// output_gate: kernel against the exact reference within its bound, on every device.
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "dsakit/optimized/output_gate.hpp"
#include "dsakit/reference/dense.hpp"
#include "dsakit/reference/formats.hpp"
#include "support/compare.hpp"
#include "support/devices.hpp"
#include "support/index_problem.hpp"
#include "support/run_kernel.hpp"

namespace dsakit {
namespace output_gate_test {

using testing::OnDevice;

constexpr std::uint16_t kPoison = 0xDEAD;
constexpr std::uint16_t kNaN = 0x7FC0;
constexpr GateRounding kRoundings[] = {GateRounding::one, GateRounding::two};

struct Problem {
  std::int64_t rows;
  std::int64_t width;
  std::int64_t beside = 0; ///< columns of a wider tensor after these
  std::vector<std::uint16_t> value = {};
  std::vector<std::uint16_t> gate = {};
  std::vector<std::int32_t> row_lens = {}; ///< empty: each row sees a key

  std::int64_t stride() const { return width + beside; }
};

Problem random_problem(Problem p, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < p.rows * p.width; ++i) {
    p.value.push_back(testing::to_bf16(normal(random)));
    p.gate.push_back(testing::to_bf16(4 * normal(random)));
  }
  return p;
}

class OutputGate : public ::testing::TestWithParam<std::string> {
protected:
  std::unique_ptr<optimized::Device> device_ = testing::open(GetParam());

  static std::vector<std::uint16_t> widened(const Problem& p,
                                            const std::vector<std::uint16_t>& values) {
    std::vector<std::uint16_t> wide(static_cast<std::size_t>(p.rows * p.stride()), kNaN);
    for (std::int64_t row = 0; row < p.rows; ++row)
      std::copy_n(values.begin() + row * p.width, p.width, wide.begin() + row * p.stride());
    return wide;
  }

  /// attn_gated [rows, width]; columns beside it must stay.
  std::vector<std::uint16_t> run(const Problem& p, GateRounding rounding) {
    OnDevice<std::uint16_t> value(*device_, widened(p, p.value));
    OnDevice<std::uint16_t> gate(*device_, widened(p, p.gate));
    OnDevice<std::uint16_t> gated(
        *device_,
        std::vector<std::uint16_t>(static_cast<std::size_t>(p.rows * p.stride()), kPoison));
    optimized::OutputGateParams params{
        value.data(), gate.data(), nullptr,
        gated.data(), p.stride(),  p.stride(),
        p.stride(),   p.rows,      static_cast<std::int32_t>(p.width),
        rounding};
    OnDevice<std::int32_t> lens(*device_, p.row_lens);
    if (!p.row_lens.empty()) params.row_lens = lens.data();
    const Status status = testing::run_kernel(*device_, params);
    EXPECT_TRUE(status) << status.what();
    const std::vector<std::uint16_t> all = gated.values();
    std::vector<std::uint16_t> inside;
    std::size_t strayed = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (static_cast<std::int64_t>(i) % p.stride() < p.width)
        inside.push_back(all[i]);
      else
        strayed += all[i] != kPoison;
    }
    EXPECT_EQ(strayed, 0u) << "columns beside those of the gate were written";
    return inside;
  }

  static reference::OutputGate reference_of(const Problem& p, GateRounding rounding) {
    return {p.value.data(), p.gate.data(), static_cast<std::int64_t>(p.value.size()), rounding,
            ActivationDtype::bf16};
  }

  std::vector<std::uint16_t> expect_within_bound(const Problem& p, GateRounding rounding) {
    std::vector<double> exact(p.value.size());
    std::vector<double> bound(p.value.size());
    EXPECT_TRUE(
        reference::output_gate_exact(reference_of(p, rounding), exact.data(), bound.data()));
    const std::vector<std::uint16_t> got = run(p, rounding);
    std::vector<float> values;
    for (const std::uint16_t bits : got)
      values.push_back(reference::bf16_to_float(bits));
    testing::expect_within("attn_gated", values, exact, bound, static_cast<std::size_t>(p.width));
    return got;
  }
};

TEST_P(OutputGate, WithinItsBound) {
  for (const GateRounding rounding : kRoundings) {
    SCOPED_TRACE(name(rounding));
    for (const std::int64_t width : {8, 512, 776, 1536})
      expect_within_bound(random_problem({11, width}, static_cast<unsigned>(width)), rounding);
    expect_within_bound(random_problem({300, 264, 24}, 1), rounding);
  }
}

TEST_P(OutputGate, SimulatedReferenceHasNearlyAllTheBitsOfItsOwnRoundingOnly) {
  const Problem p = random_problem({64, 512}, 2);
  for (const GateRounding rounding : kRoundings) {
    const std::vector<std::uint16_t> got = run(p, rounding);
    for (const GateRounding other : kRoundings) {
      std::vector<std::uint16_t> want(p.value.size());
      ASSERT_TRUE(reference::output_gate(reference_of(p, other), want.data()));
      std::size_t different = 0;
      for (std::size_t i = 0; i < got.size(); ++i)
        different += got[i] != want[i];
      if (other == rounding)
        EXPECT_LE(different, got.size() / 1000);
      else
        EXPECT_GE(different, got.size() / 10);
    }
  }
}

// Every bf16 gate, the sigmoid's tails and what is not finite included.
TEST_P(OutputGate, EveryGate) {
  Problem p{256, 256};
  for (std::int64_t i = 0; i < p.rows * p.width; ++i) {
    p.value.push_back(testing::to_bf16(i % 2 ? 1.0f : -3.0f));
    p.gate.push_back(static_cast<std::uint16_t>(i));
  }
  for (const GateRounding rounding : kRoundings) {
    SCOPED_TRACE(name(rounding));
    const std::vector<std::uint16_t> got = expect_within_bound(p, rounding);
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(std::isnan(reference::bf16_to_float(got[i])),
                std::isnan(reference::bf16_to_float(p.gate[i])))
          << i;
  }
}

TEST_P(OutputGate, S24_ARowWithoutAKeyIsZeroWhateverItHolds) {
  Problem p = random_problem({5, 264}, 4);
  const std::vector<std::uint16_t> plain = run(p, GateRounding::two);
  p.row_lens = {3, 0, 1, -2, 7};
  for (const std::int64_t row : {1, 3}) {
    std::fill_n(p.gate.begin() + row * p.width, p.width, kNaN);
    std::fill_n(p.value.begin() + row * p.width, p.width, kPoison);
  }
  const std::vector<std::uint16_t> got = run(p, GateRounding::two);
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::int64_t row = static_cast<std::int64_t>(i) / p.width;
    EXPECT_EQ(got[i], row == 1 || row == 3 ? 0 : plain[i]) << i;
  }
}

TEST_P(OutputGate, InPlace) {
  const Problem p = random_problem({5, 768}, 3);
  const std::vector<std::uint16_t> apart = run(p, GateRounding::two);
  OnDevice<std::uint16_t> value(*device_, p.value);
  OnDevice<std::uint16_t> gate(*device_, p.gate);
  const optimized::OutputGateParams params{
      value.data(), gate.data(), nullptr, value.data(), 768, 768, 768, 5, 768, GateRounding::two};
  ASSERT_TRUE(testing::run_kernel(*device_, params));
  testing::expect_same("attn_gated", value.values(), apart, 768);
}

TEST_P(OutputGate, NoRowsAndRefusals) {
  optimized::OutputGateParams params{};
  params.width = 512;
  EXPECT_TRUE(testing::run_kernel(*device_, params));
  const auto refusal = [&](auto change) {
    optimized::OutputGateParams changed = params;
    change(changed);
    const Status status = testing::run_kernel(*device_, changed);
    EXPECT_EQ(status.code(), Code::unsupported);
    return status.what();
  };
  EXPECT_NE(refusal([](auto& p) { p.width = 0; }).find("width is 0"), std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.width = 500; }).find("500 elements"), std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.gate_stride = 516; }).find("gate_stride is 516"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& p) { p.rows = std::int64_t{1} << 40; }).find("workgroups"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Devices, OutputGate, ::testing::ValuesIn(testing::device_names()),
                         [](const auto& info) { return info.param; });

} // namespace output_gate_test
} // namespace dsakit
