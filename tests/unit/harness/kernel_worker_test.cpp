// Kernels in a process that lives from launch to launch: what they give, and what becomes of its
// end. On host lanes, which it serves as it does a GPU.
#include "replay/kernel_worker.hpp"

#include <csignal>
#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "support/tiny_layer.hpp"

namespace dsakit::harness {
namespace {

using testing::tiny_layer;
using testing::TinyRecording;

class KernelWorkerTest : public ::testing::Test {
protected:
  Result<KernelRun> run(const std::string& operation = "index_query_quant") {
    return worker_.run({{0, operation},
                        recording_.contract,
                        recording_.operations.at(operation),
                        recording_.config});
  }

  /// The worker's process; 0: there is none.
  static pid_t child() {
    std::ifstream children("/proc/self/task/" + std::to_string(::getpid()) + "/children");
    pid_t first = 0;
    children >> first;
    return first;
  }

  KernelWorkerTest() { recording_.contract["mla_scale_read"] = "fp32"; }

  TinyRecording recording_ = tiny_layer();
  KernelWorker worker_{optimized::DeviceKind::host, {}, 2};
};

TEST_F(KernelWorkerTest, GivesWhatTheAdapterGivesAndOneProcessServesAll) {
  const auto device = optimized::open_device(optimized::DeviceKind::host, {});
  ASSERT_TRUE(device);
  pid_t first = 0;
  for (const auto& [operation, tensors] : recording_.operations) {
    const auto here = find_adapter(operation)->run(
        {{0, operation}, recording_.contract, tensors, recording_.config}, **device);
    const auto there = run(operation);
    ASSERT_TRUE(here && there) << operation << ": " << there.status().what();
    EXPECT_EQ(there->kernel, here->kernel);
    EXPECT_EQ(there->workgroups, here->workgroups);
    ASSERT_EQ(there->outputs.size(), here->outputs.size()) << operation;
    for (const auto& [name, tensor] : here->outputs)
      EXPECT_EQ(there->outputs.at(name).bytes, tensor.bytes) << operation << " " << name;
    if (first == 0) first = child();
    EXPECT_EQ(child(), first) << operation;
  }
  EXPECT_NE(first, 0);
}

TEST_F(KernelWorkerTest, ARefusalIsReportedAndTheProcessGoesOn) {
  ASSERT_TRUE(run());
  const pid_t first = child();
  recording_.contract["index_k_norm"] = "none";
  EXPECT_EQ(run("index_key_norm").status().code(), Code::bad_input);
  EXPECT_TRUE(run());
  EXPECT_EQ(child(), first);
}

TEST_F(KernelWorkerTest, ACrashNamesTheSignalAndTheNextLaunchHasANewProcess) {
  ASSERT_TRUE(run());
  const pid_t first = child();
  ::kill(first, SIGKILL); // a sanitizer would catch another
  const auto crashed = run();
  EXPECT_EQ(crashed.status().code(), Code::device_error);
  EXPECT_NE(crashed.status().what().find("signal 9"), std::string::npos) << crashed.status().what();
  EXPECT_EQ(child(), 0);
  EXPECT_TRUE(run());
  EXPECT_NE(child(), first);
}

TEST_F(KernelWorkerTest, AHangIsKilledAfterTheLimitAndTheNextLaunchHasANewProcess) {
  ASSERT_TRUE(run());
  ::kill(child(), SIGSTOP);
  const auto hung = run();
  EXPECT_EQ(hung.status().code(), Code::device_error);
  EXPECT_NE(hung.status().what().find("no end after 2 s"), std::string::npos)
      << hung.status().what();
  EXPECT_EQ(child(), 0);
  EXPECT_TRUE(run());
}

TEST_F(KernelWorkerTest, NoDeviceIsToldEachTime) {
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1); // none, whatever the machine has
  KernelWorker nowhere(optimized::DeviceKind::cuda, {}, 20);
  for (int i = 0; i < 2; ++i) {
    const auto none = nowhere.run({{0, "index_query_quant"},
                                   recording_.contract,
                                   recording_.operations.at("index_query_quant")});
    EXPECT_EQ(none.status().code(), Code::no_device);
    EXPECT_EQ(none.status().what().find("exit code"), std::string::npos) << none.status().what();
  }
}

} // namespace
} // namespace dsakit::harness
