// The HIP device against a stand-in runtime, since no AMD GPU is at hand: what it asks of HIP, and
// what it says when there is none.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

#include "dsakit/optimized/code_objects.hpp"
#include "dsakit/optimized/device.hpp"
#include "dsakit/optimized/index_cache_gather.hpp"
#include "dsakit/optimized/index_cache_write.hpp"
#include "dsakit/optimized/index_logits_decode.hpp"
#include "dsakit/optimized/native_stream.hpp"
#include "support/fake_hip/fake_hip.hpp"

namespace dsakit::optimized {
namespace {

const char* mach(Arch arch) {
  return arch == Arch::gfx942 ? "0x4c" : "0x4f";
}

/// Launches are written down, not run: these problems have no memory.
void pretend(const char* devices, const char* mach, const char* launch_error = "0") {
  setenv("FAKE_HIP_DEVICES", devices, 1);
  setenv("FAKE_HIP_MACH", mach, 1);
  setenv("FAKE_HIP_LAUNCH_ERROR", launch_error, 1);
  setenv("FAKE_HIP_DRY_RUN", "1", 1);
}

template <class Function>
Function* runtime_function(const char* name) {
  void* library = dlopen("libamdhip64.so.7", RTLD_NOW);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

std::vector<FakeLaunch>& launches() {
  return *runtime_function<FakeLaunches>("fake_hip_launches")();
}

class HipRuntime : public testing::Test {
protected:
  void SetUp() override {
    if (code_objects().empty())
      GTEST_SKIP() << "this build has no AMD compiler, so there is no code object to load";
  }
};

std::vector<Arch> embedded() {
  std::vector<Arch> archs;
  for (const CodeObject& object : code_objects())
    if (archs.empty() || archs.back() != object.arch) archs.push_back(object.arch);
  return archs;
}

TEST_F(HipRuntime, SaysWhyThereIsNoDevice) {
  pretend("0", "0");
  const auto device = open_device(DeviceKind::hip);
  ASSERT_FALSE(device);
  EXPECT_EQ(device.status().code(), Code::no_device);
  EXPECT_NE(device.status().what().find("hipErrorNoDevice"), std::string::npos);
}

TEST_F(HipRuntime, NamesTheDeviceThatNoCodeObjectFits) {
  pretend("1", "0x3f"); // gfx90a
  const auto device = open_device(DeviceKind::hip);
  ASSERT_FALSE(device);
  EXPECT_EQ(device.status().code(), Code::no_device);
  EXPECT_NE(device.status().what().find("Fake Instinct"), std::string::npos);
  for (const Arch arch : embedded())
    EXPECT_NE(device.status().what().find(name(arch)), std::string::npos) << device.status().what();
}

TEST_F(HipRuntime, FindsTheArchByLoadingItsCodeObjects) {
  for (const Arch arch : embedded()) {
    pretend("1", mach(arch));
    const auto device = open_device(DeviceKind::hip);
    ASSERT_TRUE(device) << device.status().what();
    EXPECT_EQ((*device)->kind(), DeviceKind::hip);
    EXPECT_EQ((*device)->arch(), arch);
    EXPECT_EQ((*device)->description(), "Fake Instinct (host lanes)");
  }
}

TEST_F(HipRuntime, CopiesThereAndBack) {
  pretend("1", mach(embedded()[0]));
  auto device = open_device(DeviceKind::hip);
  ASSERT_TRUE(device);
  const std::uint32_t sent = 0x12345678;
  std::uint32_t received = 0;
  const auto memory = (*device)->allocate(sizeof sent);
  ASSERT_TRUE(memory);
  EXPECT_TRUE((*device)->upload(*memory, &sent, sizeof sent));
  EXPECT_TRUE((*device)->download(&received, *memory, sizeof sent));
  EXPECT_EQ(received, sent);
  (*device)->release(*memory);
}

TEST_F(HipRuntime, TimesInMicroseconds) {
  pretend("1", mach(embedded()[0]));
  auto device = open_device(DeviceKind::hip);
  ASSERT_TRUE(device);
  EXPECT_TRUE((*device)->start_timer());
  EXPECT_TRUE((*device)->synchronize());
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const auto elapsed = (*device)->stop_timer();
  ASSERT_TRUE(elapsed);
  EXPECT_GE(*elapsed, 5e3);
  EXPECT_LT(*elapsed, 5e6);
}

TEST_F(HipRuntime, AGraphDoesWhatWasCapturedAtEachReplayAndNothingBefore) {
  pretend("1", mach(embedded()[0]));
  auto device = open_device(DeviceKind::hip);
  ASSERT_TRUE(device);
  const auto memory = (*device)->allocate(16);
  ASSERT_TRUE(memory);
  const std::vector<std::uint8_t> ones(16, 1);
  std::vector<std::uint8_t> found(16);
  ASSERT_TRUE((*device)->upload(*memory, ones.data(), 16));
  ASSERT_TRUE((*device)->begin_capture());
  auto* enqueue = runtime_function<int(void*, const std::function<int()>&)>("fake_hip_enqueue");
  EXPECT_EQ(enqueue(native_stream(**device),
                    [to = *memory] {
                      std::memset(to, 0, 8);
                      return 0;
                    }),
            0);
  {
    const auto graph = (*device)->end_capture();
    ASSERT_TRUE(graph) << graph.status().what();
    ASSERT_TRUE((*device)->download(found.data(), *memory, 16));
    EXPECT_EQ(found, ones);
    for (int replay = 0; replay < 2; ++replay) {
      ASSERT_TRUE((*device)->upload(*memory, ones.data(), 16));
      ASSERT_TRUE((*graph)->replay());
      ASSERT_TRUE((*device)->download(found.data(), *memory, 16));
      EXPECT_EQ(found[7], 0);
      EXPECT_EQ(found[8], 1);
    }
  }
  (*device)->release(*memory);
}

TEST_F(HipRuntime, WaitingForACapturedStreamIsAnError) {
  pretend("1", mach(embedded()[0]));
  auto device = open_device(DeviceKind::hip);
  ASSERT_TRUE(device);
  ASSERT_TRUE((*device)->begin_capture());
  const Status waited = (*device)->synchronize();
  EXPECT_NE(waited.what().find("hipErrorStreamCaptureUnsupported"), std::string::npos);
  EXPECT_TRUE((*device)->end_capture());
}

/// Every kernel of an operation launches by a symbol of the code object, with the struct's own
/// bytes.
template <class Params>
void expect_launch(Arch arch, const Params& params) {
  pretend("1", mach(arch));
  auto device = open_device(DeviceKind::hip);
  ASSERT_TRUE(device);
  for (const Kernel<Params>& kernel : kernels<Params>(arch)) {
    ASSERT_TRUE(kernel.supports(params)) << kernel.supports(params).what();
    launches().clear();
    std::vector<std::uint8_t> workspace(kernel.workspace_bytes(params));
    const Status status =
        kernel.launch(params, workspace.data(), workspace.size(), (*device)->stream());
    ASSERT_TRUE(status) << status.what();
    ASSERT_EQ(launches().size(), 1U);
    const FakeLaunch launch = launches()[0];
    EXPECT_EQ(launch.grid[0] * launch.grid[1] * launch.grid[2], kernel.workgroups(params));
    EXPECT_EQ(launch.block[0] % 64, 0U);
    ASSERT_EQ(launch.arguments.size(), sizeof params);
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(&params); // those of padding, too
    EXPECT_TRUE(std::equal(launch.arguments.begin(), launch.arguments.end(), bytes));

    pretend("1", mach(arch), "1");
    const Status failed =
        kernel.launch(params, workspace.data(), workspace.size(), (*device)->stream());
    EXPECT_EQ(failed.code(), Code::device_error);
    EXPECT_NE(failed.what().find(launch.kernel), std::string::npos) << failed.what();
    EXPECT_NE(failed.what().find("hipErrorInvalidValue"), std::string::npos) << failed.what();
    pretend("1", mach(arch));
  }
}

TEST_F(HipRuntime, LaunchesEveryKernelWithItsParametersAsTheyAre) {
  for (const Arch arch : embedded())
    for (const Fp8Encoding encoding : {Fp8Encoding::e4m3fn, Fp8Encoding::e4m3fnuz}) {
      IndexCacheWriteParams write{};
      write.index_k_stride = 128;
      write.page_stride = 48 * 132;
      write.tokens = 37;
      write.pages = 3;
      write.page_size = 48;
      write.amax_floor = 1e-4F;
      write.qmax = 448;
      write.encoding = encoding;
      write.layout = IndexPageLayout::mfma_preshuffle;
      expect_launch(arch, write);

      IndexLogitsDecodeParams logits{};
      logits.q_stride = 8 * 128;
      logits.weights_stride = 8;
      logits.logits_stride = 200;
      logits.page_stride = 48 * 132;
      logits.table_stride = 5;
      logits.rows = 6;
      logits.pages = 9;
      logits.heads = 8;
      logits.requests = 3;
      logits.table_columns = 5;
      logits.next_n = 2;
      logits.columns = 199;
      logits.page_size = 48;
      logits.encoding = encoding;
      logits.layout = IndexPageLayout::mfma_preshuffle;
      expect_launch(arch, logits);
    }
  for (const Arch arch : embedded()) {
    IndexCacheGatherParams gather{};
    gather.page_stride = 48 * 132;
    gather.table_stride = 5;
    gather.rows = 41;
    gather.pages = 9;
    gather.requests = 3;
    gather.table_columns = 5;
    gather.page_size = 48;
    gather.layout = IndexPageLayout::mfma_preshuffle;
    expect_launch(arch, gather);
  }
}

} // namespace
} // namespace dsakit::optimized
