// What the stand-in runtime refuses: a launch that a GPU would refuse, or would run on the wrong
// arguments, must not pass on it.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "dsakit/optimized/code_objects.hpp"
#include "dsakit/optimized/device.hpp"
#include "dsakit/optimized/topk_slots.hpp"
#include "support/fake_hip/fake_hip.hpp"

namespace dsakit::optimized {
namespace {

constexpr const char* kKernel = "dsakit_topk_slots";
constexpr std::size_t kArguments = sizeof(TopkSlotsParams);

template <class Function>
Function* runtime_function(const char* name) {
  static void* library = dlopen("libamdhip64.so.7", RTLD_NOW);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

std::string message() {
  return runtime_function<FakeMessage>("fake_hip_message")();
}

class FakeHip : public testing::Test {
protected:
  void SetUp() override {
    for (const CodeObject& object : code_objects())
      if (object.operation == "topk_slots") image_.assign(object.data, object.data + object.bytes);
    if (image_.empty()) GTEST_SKIP() << "this build has no AMD compiler";
    std::uint32_t flags;
    std::memcpy(&flags, &image_[48], sizeof flags); // e_flags
    setenv("FAKE_HIP_DEVICES", "1", 1);
    setenv("FAKE_HIP_MACH", std::to_string(flags & 0xFF).c_str(), 1);
    setenv("FAKE_HIP_LAUNCH_ERROR", "0", 1);
    setenv("FAKE_HIP_DRY_RUN", "1", 1);
  }

  /// Turns the value of a metadata key from one byte into another, wherever it is that.
  void doctor(const std::string& key, std::size_t from, std::size_t to) {
    const std::string text = static_cast<char>(0xA0 + key.size()) + key; // msgpack: short string
    const auto as_bytes = reinterpret_cast<const std::byte*>(text.data());
    for (auto at = image_.begin();;) {
      at = std::search(at, image_.end(), as_bytes, as_bytes + text.size());
      if (at == image_.end()) break;
      at += static_cast<std::ptrdiff_t>(text.size());
      if (*at == static_cast<std::byte>(from))
        *at = static_cast<std::byte>(to); // msgpack: small number
    }
  }

  /// The error of a launch of kKernel out of image_, and why.
  std::string launch(std::size_t bytes = kArguments, unsigned lanes = 256, unsigned workgroups = 1,
                     unsigned lds_bytes = 0) {
    void* module = nullptr;
    void* function = nullptr;
    void* stream = nullptr;
    runtime_function<int(void**, const void*)>("hipModuleLoadData")(&module, image_.data());
    runtime_function<int(void**, void*, const char*)>("hipModuleGetFunction")(&function, module,
                                                                              kKernel);
    runtime_function<int(void**)>("hipStreamCreate")(&stream);
    std::vector<std::byte> arguments(1024);
    void* extra[] = {tag(1), arguments.data(), tag(2), &bytes, tag(3)};
    const int error =
        runtime_function<int(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             unsigned, void*, void**, void**)>("hipModuleLaunchKernel")(
            function, workgroups, 1, 1, lanes, 1, 1, lds_bytes, stream, nullptr, extra);
    runtime_function<int(void*)>("hipStreamDestroy")(stream);
    runtime_function<int(void*)>("hipModuleUnload")(module);
    return error == 0 ? "" : message();
  }

  static void* tag(std::uintptr_t value) { return reinterpret_cast<void*>(value); }

  std::vector<std::byte> image_;
};

TEST_F(FakeHip, TakesARightLaunch) {
  EXPECT_EQ(launch(), "");
}

TEST_F(FakeHip, RefusesAnotherNumberOfArgumentBytes) {
  EXPECT_EQ(launch(kArguments - 8), "dsakit_topk_slots: the size of the packed arguments is " +
                                        std::to_string(kArguments - 8) + ", want " +
                                        std::to_string(kArguments));
}

TEST_F(FakeHip, RefusesACodeObjectWhoseStructIsAnotherThanTheHosts) {
  doctor(".size", kArguments, kArguments - 8);
  EXPECT_EQ(launch(kArguments - 8),
            "dsakit_topk_slots: the size of the parameter struct in the code object is " +
                std::to_string(kArguments - 8) + ", want " + std::to_string(kArguments));
}

TEST_F(FakeHip, RefusesAnArgumentThatDoesNotStartAtZero) {
  doctor(".offset", 0, 8);
  EXPECT_EQ(launch(kArguments + 8), "dsakit_topk_slots: kernarg_segment_size is " +
                                        std::to_string(kArguments) + ", want at least " +
                                        std::to_string(kArguments + 8));
}

TEST_F(FakeHip, RefusesBlocksBeyondTheBound) {
  EXPECT_EQ(launch(kArguments, 512),
            "dsakit_topk_slots: the number of lanes in a block is 512, want 1 to 256");
}

TEST_F(FakeHip, RefusesGridsBeyond32BitsOfLanes) {
  EXPECT_EQ(launch(kArguments, 256, 0),
            "dsakit_topk_slots: the number of lanes along an axis is 0, want 1 to 4294967295");
  EXPECT_EQ(launch(kArguments, 256, 1 << 24),
            "dsakit_topk_slots: the number of lanes along an axis is 4294967296, want 1 to "
            "4294967295");
}

TEST_F(FakeHip, RefusesLdsBeyondTheTargets) {
  EXPECT_NE(launch(kArguments, 256, 1, (160 << 10) + 1).find("LDS is "), std::string::npos);
}

TEST_F(FakeHip, KeepsDeviceMemoryFromTheHostAndFromStrayCopies) {
  auto device = open_device(DeviceKind::hip);
  ASSERT_TRUE(device) << device.status().what();
  const auto memory = (*device)->allocate(300);
  ASSERT_TRUE(memory);
  std::vector<char> host(301);
  EXPECT_TRUE((*device)->upload(*memory, host.data(), 300));
  EXPECT_FALSE((*device)->upload(*memory, host.data(), 301));
  EXPECT_FALSE((*device)->upload(host.data(), host.data(), 300));
  EXPECT_FALSE((*device)->download(host.data(), host.data(), 300));
  EXPECT_DEATH(*static_cast<volatile char*>(*memory) = 1, "");
  (*device)->release(*memory);
  EXPECT_FALSE((*device)->upload(*memory, host.data(), 300));
}

} // namespace
} // namespace dsakit::optimized
