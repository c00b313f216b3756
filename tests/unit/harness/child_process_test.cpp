// Work in a child process: what it says, and what becomes of a crash and of a hang.
#include "process/child.hpp"
#include "replay/child_process.hpp"

#include <csignal>
#include <filesystem>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <tbb/parallel_for.h>
#include <unistd.h>

namespace dsakit::harness {
namespace {

TEST(ChildProcess, GivesBackWhatTheBodyReturnsHoweverLong) {
  const std::string text(10 << 20, 'x'); // more than a pipe holds
  const auto result = run_in_child([&] { return Result<std::string>(text); }, 30);
  ASSERT_TRUE(result) << result.status().what();
  EXPECT_EQ(*result, text);
}

TEST(ChildProcess, GivesBackAFailure) {
  const auto result = run_in_child([] { return Result<std::string>(unsupported("why")); }, 30);
  EXPECT_EQ(result.status().code(), Code::unsupported);
  EXPECT_EQ(result.status().what(), "why");
}

TEST(ChildProcess, ACrashIsADeviceErrorThatNamesTheSignal) {
  const auto result = run_in_child(
      []() -> Result<std::string> {
        std::signal(SIGSEGV, SIG_DFL); // a sanitizer would catch it
        std::raise(SIGSEGV);
        return std::string();
      },
      30);
  EXPECT_EQ(result.status().code(), Code::device_error);
  EXPECT_NE(result.status().what().find("signal 11"), std::string::npos) << result.status().what();
}

TEST(ChildProcess, AHangIsKilledAfterTheLimit) {
  const auto result = run_in_child(
      []() -> Result<std::string> {
        while (true)
          ::pause();
      },
      1);
  EXPECT_EQ(result.status().code(), Code::device_error);
  EXPECT_NE(result.status().what().find("no end after 1 s"), std::string::npos)
      << result.status().what();
}

/// One of them could hold a lock that the child then waits for.
TEST(ChildProcess, NoWorkerThreadLivesWhileTheProcessIsForked) {
  std::atomic<int> sum = 0;
  tbb::parallel_for(0, 1000, [&](int i) { sum += i; });
  const auto threads = run_in_child(
      []() -> Result<std::string> {
        const auto of_parent = "/proc/" + std::to_string(::getppid()) + "/task";
        return std::to_string(std::distance(std::filesystem::directory_iterator(of_parent),
                                            std::filesystem::directory_iterator()));
      },
      30);
  ASSERT_TRUE(threads) << threads.status().what();
  EXPECT_EQ(*threads, "1");
  tbb::parallel_for(0, 1000, [&](int i) { sum += i; });
  EXPECT_EQ(sum, 999000) << "and threads work again afterwards";
}

TEST(ChildProcess, ADriverThatExitsIsADeviceError) {
  const auto result = run_in_child([]() -> Result<std::string> { ::_exit(3); }, 30);
  EXPECT_EQ(result.status().code(), Code::device_error);
  EXPECT_NE(result.status().what().find("exit code 3"), std::string::npos);
}

TEST(ChildProcess, ACommandsOutputsAndExitCodeComeBack) {
  const std::string long_text(3 << 20, 'x');
  const char* script = "cat; head -c 3145728 /dev/zero | tr '\\0' x; echo \"$1\" >&2; exit 7";
  const auto end = run_command({"/bin/sh", "-c", script, "sh", "two words"}, 30);
  ASSERT_TRUE(end) << end.status().what();
  EXPECT_TRUE(end->in_time);
  EXPECT_TRUE(survived(*end, 30));
  EXPECT_EQ(WEXITSTATUS(end->status), 7);
  EXPECT_EQ(end->out, long_text) << "and nothing was there to read";
  EXPECT_EQ(end->error, "two words\n");
}

TEST(ChildProcess, ACommandThatIsNotThereExitsWith127AndSaysWhy) {
  const auto end = run_command({"/no/such/program"}, 30);
  ASSERT_TRUE(end);
  EXPECT_EQ(WEXITSTATUS(end->status), 127);
  EXPECT_EQ(end->error, "No such file or directory");
}

// Nobody waits for what a killed sweep has started.
TEST(ChildProcess, ACommandEndsWithItsParent) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    // Which holds the pipe open as long as it lives.
    const std::string hold = "exec sleep 1000 9>&" + std::to_string(ends[1]);
    static_cast<void>(run_command({"/bin/sh", "-c", hold}, 1000));
    ::_exit(0);
  }
  ::close(ends[1]);
  ::usleep(300'000);
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  pollfd ended{ends[0], POLLIN, 0};
  EXPECT_EQ(::poll(&ended, 1, 10'000), 1) << "somebody still holds the other end of the pipe";
  ::close(ends[0]);
}

TEST(ChildProcess, AKernelRunComesBackWhole) {
  KernelRun run;
  run.kernel = "mfma16";
  run.configuration = {{"lanes", 512}, {"splits", 4}};
  run.problem_class = "k=8";
  run.workgroups = 7;
  run.time_us = 1.5;
  run.other_kernels = {"a: why", ""};
  run.outputs["x"] = Tensor(Dtype::float32, {2, 3});
  run.outputs["x"].as<float>()[5] = 4;
  run.outputs["none"] = Tensor(Dtype::int32, {0, 4});
  run.stray = StrayWrite{"x", {1, 2}, "selects otherwise"};
  const KernelRun back = parse_kernel_run(serialise(run));
  EXPECT_EQ(back.kernel, run.kernel);
  EXPECT_EQ(back.configuration, run.configuration);
  EXPECT_EQ(back.problem_class, "k=8");
  EXPECT_EQ(back.workgroups, 7);
  EXPECT_EQ(back.time_us, 1.5);
  EXPECT_EQ(back.other_kernels, run.other_kernels);
  ASSERT_EQ(back.outputs.size(), 2u);
  EXPECT_EQ(back.outputs.at("x").bytes, run.outputs["x"].bytes);
  EXPECT_EQ(back.outputs.at("none").shape, (Shape{0, 4}));
  ASSERT_TRUE(back.stray);
  EXPECT_EQ(back.stray->output, "x");
  EXPECT_EQ(back.stray->at, run.stray->at);
  EXPECT_EQ(back.stray->why, run.stray->why);
}

} // namespace
} // namespace dsakit::harness
