// weight_dequant: kernel against reference, bit for bit, on every device.
#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "dsakit/optimized/weight_dequant.hpp"
#include "dsakit/reference/dense.hpp"
#include "dsakit/reference/formats.hpp"
#include "support/devices.hpp"
#include "support/run_kernel.hpp"

namespace dsakit {
namespace weight_dequant_test {

using testing::OnDevice;

struct Problem {
  WeightFormat format;
  Fp8Encoding encoding;
  std::int64_t outputs;
  std::int64_t inputs;
  std::vector<std::uint8_t> codes = {};
  std::vector<float> scales = {};

  std::int64_t scale_count() const {
    return format == WeightFormat::fp8_channel ? outputs
                                               : (outputs + 127) / 128 * ((inputs + 127) / 128);
  }
};

/// Every code in turn, under scales of any size.
Problem make_problem(Problem p) {
  std::mt19937 random(static_cast<unsigned>(p.outputs));
  std::uniform_real_distribution<float> exponent(-40, 40);
  for (std::int64_t i = 0; i < p.outputs * p.inputs; ++i)
    p.codes.push_back(static_cast<std::uint8_t>(i));
  for (std::int64_t i = 0; i < p.scale_count(); ++i)
    p.scales.push_back(std::exp2(exponent(random)));
  return p;
}

class WeightDequant : public ::testing::TestWithParam<std::string> {
protected:
  std::unique_ptr<optimized::Device> device_ = testing::open(GetParam());

  void expect_as_reference(const Problem& p) {
    const auto elements = static_cast<std::size_t>(p.outputs * p.inputs);
    OnDevice<std::uint8_t> codes(*device_, p.codes);
    OnDevice<float> scales(*device_, p.scales);
    OnDevice<std::uint16_t> weight(*device_, std::vector<std::uint16_t>(elements, 0xDEAD));
    const Status status = testing::run_kernel(
        *device_, optimized::WeightDequantParams{codes.data(), scales.data(), weight.data(),
                                                 p.outputs, p.inputs, p.format, p.encoding});
    ASSERT_TRUE(status) << status.what();
    std::vector<std::uint16_t> want(elements);
    ASSERT_TRUE(reference::weight_dequant(
        {p.format, p.encoding, p.codes.data(), p.scales.data(), p.outputs, p.inputs}, want.data()));
    const std::vector<std::uint16_t> got = weight.values();
    std::size_t nan = 0;
    for (std::size_t i = 0; i < elements; ++i) {
      const bool none = std::isnan(reference::bf16_to_float(want[i]));
      nan += none;
      ASSERT_TRUE(none ? std::isnan(reference::bf16_to_float(got[i])) : got[i] == want[i])
          << i << ": got " << got[i] << ", want " << want[i];
    }
    EXPECT_EQ(nan > 0, elements > 0x80) << "NaN is among the codes";
  }
};

TEST_P(WeightDequant, EveryCodeUnderEveryKindOfScale) {
  for (const Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz})
    for (const WeightFormat format : {WeightFormat::fp8_channel, WeightFormat::fp8_block})
      for (const auto& [outputs, inputs] : {std::pair{1, 8}, {130, 136}, {256, 384}, {7, 1000}}) {
        SCOPED_TRACE(std::string(name(encoding)) + " " + std::string(name(format)) + " " +
                     std::to_string(outputs) + " x " + std::to_string(inputs));
        expect_as_reference(make_problem({format, encoding, outputs, inputs}));
      }
}

TEST_P(WeightDequant, ProductsThatRoundOverflowAndVanish) {
  constexpr float kTiny = std::numeric_limits<float>::min(), kHuge = 0x1p126f;
  for (const float scale : {1 / 3.0f, 1.001f, kTiny, kTiny / 8, kHuge, 0.0f}) {
    Problem p = make_problem({WeightFormat::fp8_channel, Fp8Encoding::e4m3fn, 4, 256});
    p.scales.assign(4, scale);
    SCOPED_TRACE(scale);
    expect_as_reference(p);
  }
}

TEST_P(WeightDequant, NothingAndRefusals) {
  const auto status = [&](auto change) {
    optimized::WeightDequantParams p{};
    p.format = WeightFormat::fp8_channel;
    p.inputs = 8;
    change(p);
    return testing::run_kernel(*device_, p);
  };
  EXPECT_TRUE(status([](auto&) {}));
  EXPECT_NE(status([](auto& p) { p.inputs = 12; }).what().find("inputs is 12 elements"),
            std::string::npos);
  EXPECT_NE(status([](auto& p) { p.format = WeightFormat::bf16; }).what().find("is bf16"),
            std::string::npos);
  EXPECT_NE(status([](auto& p) { p.outputs = std::int64_t{1} << 40; }).what().find("workgroups"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Devices, WeightDequant, ::testing::ValuesIn(testing::device_names()),
                         [](const auto& info) { return info.param; });

} // namespace weight_dequant_test
} // namespace dsakit
