// The kernel's side of a replay: which bound it gets, and what it may not write.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "dsakit/harness/operations.hpp"
#include "replay_fixture.hpp"
#include "support/forwarding_device.hpp"
#include "support/tiny_layer.hpp"

namespace dsakit::harness {
namespace {

using testing::ReplayTest;
using testing::tiny_recording;
using testing::TinyRecording;

OperationData data_of(const TinyRecording& recording, const std::string& operation) {
  return {{0, operation}, recording.contract, recording.operations.at(operation)};
}

TEST_F(ReplayTest, UsedIsTheErrorInUnitsOfTheBoundsOfBothProducers) {
  TinyRecording recording = tiny_recording();
  auto& logits = recording.operations["index_logits_decode"].outputs["logits"];
  for (std::int64_t i = 0; i < logits.tensor.elements(); ++i)
    logits.tensor.as<float>()[i] *= 1 + 0x1p-15f;
  logits.attributes["accumulation"] = "sm90_wgmma_fp8";
  const Report report = replay(recording);
  ASSERT_EQ(report.verdict(), Verdict::pass) << to_text(report, {});

  const OperationData data = data_of(recording, "index_logits_decode");
  const OperationAdapter& adapter = *find_adapter("index_logits_decode");
  const auto fp32 = *adapter.bound(data, "logits", Accumulation::fp32);
  const auto wgmma = *adapter.bound(data, "logits", Accumulation::sm90_wgmma_fp8);
  const auto check = [&](const char* subject, const char* against, double of_fp32,
                         double of_wgmma) {
    const ReportLine* line = find(report, "index_logits_decode", "logits", subject, against);
    const auto at = static_cast<std::size_t>(line->worst_at.at(0) * 5 + line->worst_at.at(1));
    const double bound = of_fp32 * fp32[at] + of_wgmma * wgmma[at];
    EXPECT_NEAR(*line->used, std::abs(line->got->value - line->want->value) / bound, 1e-9);
    EXPECT_GT(*line->used, 0);
  };
  check("kernel", "reference", 1, 0);
  check("reference", "recorded", 0, 1);
  check("kernel", "recorded", 1, 1);
}

/// A device whose kernels write one byte too much: it is changed on the way back.
class StrayingDevice final : public testing::ForwardingDevice {
public:
  /// The byte at `offset` of the tensor of `bytes` bytes; negative offsets lie before it.
  StrayingDevice(std::size_t bytes, std::ptrdiff_t offset) : bytes_(bytes), offset_(offset) {}

  Status download(void* host, const void* device, std::size_t bytes) override {
    DSAKIT_TRY(real_->download(host, device, bytes));
    // The tensor comes first, then what lies before and after it.
    const auto* from = static_cast<const std::byte*>(device);
    if (bytes == bytes_) tensor_ = from;
    if (!tensor_) return {};
    const std::ptrdiff_t at = tensor_ - from + offset_;
    if (at >= 0 && at < static_cast<std::ptrdiff_t>(bytes))
      static_cast<std::byte*>(host)[at] ^= std::byte{1};
    return {};
  }

private:
  std::size_t bytes_;
  std::ptrdiff_t offset_;
  const std::byte* tensor_ = nullptr; ///< on the device, once it was downloaded
};

TEST(KernelRun, AByteBesideAnOutputIsAStrayWrite) {
  const TinyRecording recording = tiny_recording();
  for (const auto& [operation, output] :
       {std::pair("index_cache_write", "index_cache"), std::pair("index_cache_gather", "k_fp8"),
        std::pair("index_logits_decode", "logits")}) {
    const std::size_t bytes =
        recording.operations.at(operation).outputs.at(output).tensor.bytes.size();
    for (const std::ptrdiff_t offset : {std::ptrdiff_t{-1}, static_cast<std::ptrdiff_t>(bytes)}) {
      StrayingDevice device(bytes, offset);
      const auto run = find_adapter(operation)->run(data_of(recording, operation), device);
      ASSERT_TRUE(run) << run.status().what();
      ASSERT_TRUE(run->stray) << operation << " " << offset;
      EXPECT_EQ(run->stray->output, output);
      EXPECT_TRUE(run->stray->at.empty());
    }
  }
}

TEST(KernelRun, ALogitBeyondItsRowIsAStrayWrite) {
  const TinyRecording recording = tiny_recording(); // rows of 3, 4 and 1 in 5 columns
  const std::size_t bytes = 3 * 5 * sizeof(float);
  const auto stray = [&](std::ptrdiff_t element) {
    StrayingDevice device(bytes, element * 4);
    const auto run =
        find_adapter("index_logits_decode")->run(data_of(recording, "index_logits_decode"), device);
    EXPECT_TRUE(run) << run.status().what();
    return run->stray ? run->stray->at : std::vector<std::int64_t>{};
  };
  EXPECT_EQ(stray(3), (std::vector<std::int64_t>{0, 3}));
  EXPECT_EQ(stray(9), (std::vector<std::int64_t>{1, 4}));
  EXPECT_EQ(stray(14), (std::vector<std::int64_t>{2, 4}));
  EXPECT_TRUE(stray(2).empty()) << "inside its row it is a value to compare";
}

TEST(KernelRun, ALogitOutsideItsWindowIsAStrayWrite) {
  const TinyRecording recording = testing::tiny_layer(); // 1, 2 and 3 of 4 columns
  const auto stray = [&](std::ptrdiff_t element) {
    StrayingDevice device(3 * 4 * sizeof(float), element * 4);
    const auto run = find_adapter("index_logits_prefill")
                         ->run(data_of(recording, "index_logits_prefill"), device);
    EXPECT_TRUE(run) << run.status().what();
    return run->stray ? run->stray->at : std::vector<std::int64_t>{};
  };
  EXPECT_EQ(stray(1), (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(stray(11), (std::vector<std::int64_t>{2, 3}));
  EXPECT_TRUE(stray(8).empty()) << "inside its window it is a value to compare";
}

/// A device whose kernels write nothing: what comes back is what was sent.
class IdleDevice final : public testing::ForwardingDevice {
public:
  Status upload(void* device, const void* host, std::size_t bytes) override {
    const auto* begin = static_cast<const std::byte*>(host);
    sent_[device].assign(begin, begin + bytes);
    return real_->upload(device, host, bytes);
  }
  Status download(void* host, const void* device, std::size_t bytes) override {
    std::memcpy(host, sent_.at(device).data(), bytes);
    return {};
  }

private:
  std::map<const void*, std::vector<std::byte>> sent_;
};

/// -1 is a right id, so that 0xFF would be no poison there.
TEST(KernelRun, OutputsThatNobodyWroteArePoison) {
  TinyRecording recording = testing::tiny_layer();
  recording.contract["mla_scale_read"] = "fp32";
  for (const auto& [operation, tensors] : recording.operations) {
    if (operation == "mla_cache_write") continue; // holds what it held before
    IdleDevice device;
    OperationData data = data_of(recording, operation);
    data.config = recording.config;
    const auto run = find_adapter(operation)->run(data, device);
    ASSERT_TRUE(run) << run.status().what();
    EXPECT_EQ(run->outputs.size(), tensors.outputs.size());
    for (const auto& [output, tensor] : run->outputs) {
      const std::byte poison{tensor.dtype == Dtype::int32 ? std::uint8_t{0xFE}
                                                          : std::uint8_t{0xFF}};
      EXPECT_EQ(std::count(tensor.bytes.begin(), tensor.bytes.end(), poison),
                std::ssize(tensor.bytes))
          << output;
    }
  }
}

TEST(KernelRun, AByteBesideAnyOutputOfALayerIsAStrayWrite) {
  TinyRecording recording = testing::tiny_layer();
  recording.contract["mla_scale_read"] = "fp32";
  for (const auto& [operation, tensors] : recording.operations)
    for (const auto& [output, tensor] : tensors.outputs) {
      const std::size_t bytes = tensor.tensor.bytes.size();
      StrayingDevice device(bytes, static_cast<std::ptrdiff_t>(bytes));
      OperationData data = data_of(recording, operation);
      data.config = recording.config;
      const auto run = find_adapter(operation)->run(data, device);
      ASSERT_TRUE(run) << run.status().what();
      ASSERT_TRUE(run->stray) << operation;
      EXPECT_TRUE(run->stray->at.empty());
    }
}

} // namespace
} // namespace dsakit::harness
