// Launches captured once in a CUDA graph give the right result of whatever the inputs hold when the
// graph runs: launchers neither wait, allocate, read memory nor use another stream.
#include <random>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "dsakit/optimized/index_logits_prefill.hpp"
#include "dsakit/optimized/index_query_quant.hpp"
#include "dsakit/optimized/topk.hpp"
#include "support/devices.hpp"

namespace dsakit {
namespace graph_capture_test {

using testing::OnDevice;

constexpr std::int64_t kRows = 5;
constexpr std::int64_t kHeads = 16;
constexpr std::int64_t kKeys = 1500;
constexpr std::int64_t kTopk = 64;

/// Queries are quantised and folded, scored against keys, and the best keys are selected.
class Chain {
public:
  explicit Chain(optimized::Device& device) : device_(device) {
    query_.index_q = index_q_.data();
    query_.weights = weights_.data();
    query_.q_fp8 = q_fp8_.data();
    query_.q_scale = q_scale_.data();
    query_.folded = folded_.data();
    query_.index_q_stride = kHeads * 128;
    query_.weights_stride = kHeads;
    query_.tokens = kRows;
    query_.heads = kHeads;
    query_.amax_floor = 1e-10F;
    query_.qmax = 448;
    query_.head_scale = 0.25F;
    query_.softmax_scale = 0.088388346F;
    query_.encoding = Fp8Encoding::e4m3fn;
    query_.weight_fold = WeightFold::fp32;

    scores_.q = q_fp8_.data();
    scores_.k_fp8 = k_fp8_.data();
    scores_.k_scale = k_scale_.data();
    scores_.weights = folded_.data();
    scores_.ks = ks_.data();
    scores_.ke = ke_.data();
    scores_.logits = logits_.data();
    scores_.q_stride = kHeads * 128;
    scores_.weights_stride = kHeads;
    scores_.logits_stride = kKeys;
    scores_.rows = kRows;
    scores_.keys = kKeys;
    scores_.heads = kHeads;
    scores_.columns = kKeys;
    scores_.encoding = Fp8Encoding::e4m3fn;

    topk_.logits = logits_.data();
    topk_.row_ends = ke_.data();
    topk_.topk_indices = indices_.data();
    topk_.logits_stride = kKeys;
    topk_.topk_stride = kTopk;
    topk_.rows = kRows;
    topk_.k = kTopk;
    topk_.order = TopkOrder::rank;
  }

  /// Other values for every input, of one size.
  void fill(unsigned seed) {
    std::mt19937 random(seed);
    const auto bits = [&](std::uint32_t mask) {
      return static_cast<std::uint32_t>(random()) & mask;
    };
    std::vector<std::uint16_t> q(kRows * kHeads * 128), weights(kRows * kHeads);
    for (auto& x : q)
      x = static_cast<std::uint16_t>(0x3F00 | bits(0x80FF)); // around +-1
    for (auto& x : weights)
      x = static_cast<std::uint16_t>(0x3F00 | bits(0x807F));
    std::vector<std::uint8_t> k(kKeys * 128);
    for (auto& x : k)
      x = static_cast<std::uint8_t>(bits(0xBF)); // finite
    std::vector<std::int32_t> ke(kRows);
    for (auto& x : ke)
      x = static_cast<std::int32_t>(kTopk / 2 + bits(1023));
    put(index_q_, q);
    put(weights_, weights);
    put(k_fp8_, k);
    put(ke_, ke);
    put(logits_, std::vector<float>(kRows * kKeys));
    put(indices_, std::vector<std::int32_t>(kRows * kTopk, -7));
  }

  void launch() {
    launch(query_);
    launch(scores_);
    launch(topk_);
  }

  std::vector<std::int32_t> indices() { return indices_.values(); }
  std::vector<float> logits() { return logits_.values(); }

private:
  template <class T>
  void put(OnDevice<T>& tensor, const std::vector<T>& values) {
    ASSERT_TRUE(device_.upload(tensor.data(), values.data(), values.size() * sizeof(T)));
  }

  template <class Params>
  void launch(const Params& params) {
    const auto kernel = optimized::pick<Params>(device_.arch(), params);
    ASSERT_TRUE(kernel) << kernel.status().what();
    const std::size_t bytes = (*kernel)->workspace_bytes(params);
    ASSERT_LE(bytes, kWorkspace);
    const Status status = (*kernel)->launch(params, workspace_.data(), bytes, device_.stream());
    ASSERT_TRUE(status) << status.what();
  }

  template <class T>
  static std::vector<T> of(std::int64_t elements, T value = {}) {
    return std::vector<T>(static_cast<std::size_t>(elements), value);
  }

  static constexpr std::size_t kWorkspace = 1 << 20;
  optimized::Device& device_;
  OnDevice<std::uint16_t> index_q_{device_, of<std::uint16_t>(kRows* kHeads * 128)};
  OnDevice<std::uint16_t> weights_{device_, of<std::uint16_t>(kRows* kHeads)};
  OnDevice<std::uint8_t> q_fp8_{device_, of<std::uint8_t>(kRows* kHeads * 128)};
  OnDevice<float> q_scale_{device_, of<float>(kRows* kHeads)};
  OnDevice<float> folded_{device_, of<float>(kRows* kHeads)};
  OnDevice<std::uint8_t> k_fp8_{device_, of<std::uint8_t>(kKeys * 128)};
  OnDevice<float> k_scale_{device_, of<float>(kKeys, 0.5F)};
  OnDevice<std::int32_t> ks_{device_, of<std::int32_t>(kRows)};
  OnDevice<std::int32_t> ke_{device_, of<std::int32_t>(kRows)};
  OnDevice<float> logits_{device_, of<float>(kRows* kKeys)};
  OnDevice<std::int32_t> indices_{device_, of<std::int32_t>(kRows* kTopk)};
  OnDevice<std::uint8_t> workspace_{device_, of<std::uint8_t>(kWorkspace)};
  optimized::IndexQueryQuantParams query_{};
  optimized::IndexLogitsPrefillParams scores_{};
  optimized::TopkParams topk_{};
};

TEST(GraphCapture, S25_AChainCapturedOnceIsRightForChangedInputs) {
  const auto opened = optimized::open_device(optimized::DeviceKind::cuda);
  if (!opened) GTEST_SKIP() << "NOT CHECKED: " << opened.status().what();
  optimized::Device& device = **opened;
  Chain chain(device);
  auto* stream = static_cast<cudaStream_t>(device.stream());

  chain.fill(1);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t captured = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  chain.launch();
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&captured, graph, 0), cudaSuccess);

  std::vector<std::vector<std::int32_t>> seen;
  for (const unsigned seed : {1U, 2U, 3U}) {
    chain.fill(seed);
    ASSERT_EQ(cudaGraphLaunch(captured, stream), cudaSuccess);
    ASSERT_TRUE(device.synchronize());
    const auto logits = chain.logits();
    const auto indices = chain.indices();
    chain.fill(seed);
    chain.launch(); // what the parity tests hold against the reference
    ASSERT_TRUE(device.synchronize());
    EXPECT_EQ(logits, chain.logits()) << seed;
    EXPECT_EQ(indices, chain.indices()) << seed;
    for (const auto& before : seen)
      EXPECT_NE(indices, before) << "other inputs give other keys";
    seen.push_back(indices);
  }
  cudaGraphExecDestroy(captured);
  cudaGraphDestroy(graph);
}

} // namespace graph_capture_test
} // namespace dsakit
