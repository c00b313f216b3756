// A step of the layer captured once in a CUDA graph gives what a plain run gives, for other hidden
// states and for shorter requests, some without a key: a run neither waits, allocates, reads memory
// nor uses another stream.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "support/device_layer.hpp"

namespace dsakit::testing {
namespace layer_graph_test {

TEST(LayerGraph, ACapturedStepIsRightForChangedInputsAndLengths) {
  const auto opened = optimized::open_device(optimized::DeviceKind::cuda);
  if (!opened) GTEST_SKIP() << "NOT CHECKED: " << opened.status().what();
  optimized::Device& device = **opened;
  auto* stream = static_cast<cudaStream_t>(device.stream());
  for (const bool mxfp4 : {false, true}) {
    SCOPED_TRACE(mxfp4 ? "mxfp4" : "fp8");
    std::mt19937 random(1);
    reference::LayerConfig config = small_layer();
    config.indexer_kv_dtype = mxfp4 ? "mxfp4" : "fp8";
    const LayerContract contract = layer_contract(layer_contract_values(mxfp4));
    const reference::LayerWeights weights = random_weights(config, random);
    // Two requests decode, one is prefill; a row of padding.
    OwnedStep owned = random_step(config, contract, {2, 1, 5}, {200, 90, 70}, 1, random);
    auto layer = optimized::KimiK3DSAAttention::create(
        device, device_config(config, owned.tokens, 3), contract, host_weights(weights));
    ASSERT_TRUE(layer) << layer.status().what();
    DeviceStep step(device, owned, config, owned.tokens);
    ASSERT_TRUE(layer->prepare(owned.tokens, owned.query_lens, owned.seq_lens));
    ASSERT_TRUE(layer->run(step.view()));
    ASSERT_TRUE(device.synchronize());

    cudaGraph_t graph = nullptr;
    cudaGraphExec_t captured = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    const Status enqueued = layer->run(step.view());
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_TRUE(enqueued) << enqueued.what();
    ASSERT_EQ(cudaGraphInstantiate(&captured, graph, 0), cudaSuccess);

    std::vector<std::vector<std::uint16_t>> seen;
    const std::vector<std::int32_t> later[] = {
        {200, 90, 70}, {200, 90, 70}, {170, 60, 40}, {0, 60, 70}, {200, 0, 0}};
    for (const std::vector<std::int32_t>& lens : later) {
      for (std::uint16_t& bits : owned.hidden_states)
        bits = static_cast<std::uint16_t>((random() & 0x80FFU) | 0x3F00);
      std::size_t row = 0;
      for (std::size_t b = 0; b < lens.size();
           row += static_cast<std::size_t>(owned.query_lens[b++]))
        if (lens[b] == 0) // whatever a row without a key holds
          std::fill_n(owned.hidden_states.begin() +
                          static_cast<std::ptrdiff_t>(row) * config.hidden_size,
                      owned.query_lens[b] * config.hidden_size, std::uint16_t{0x7FC0});
      const auto fill = [&] {
        ASSERT_TRUE(device.upload(step.hidden_states.data(), owned.hidden_states.data(),
                                  owned.hidden_states.size() * sizeof(std::uint16_t)));
        ASSERT_TRUE(device.upload(step.index_cache.data(), owned.index_cache.data(),
                                  owned.index_cache.size()));
        ASSERT_TRUE(
            device.upload(step.mla_cache.data(), owned.mla_cache.data(), owned.mla_cache.size()));
        ASSERT_TRUE(layer->prepare(owned.tokens, owned.query_lens, lens));
      };
      fill();
      ASSERT_EQ(cudaGraphLaunch(captured, stream), cudaSuccess);
      ASSERT_TRUE(device.synchronize());
      const auto output = step.output.values();
      const auto topk = step.topk.values();
      fill();
      ASSERT_TRUE(layer->run(step.view())); // what the parity tests hold against the reference
      ASSERT_TRUE(device.synchronize());
      EXPECT_EQ(output, step.output.values());
      EXPECT_EQ(topk, step.topk.values());
      for (const auto& before : seen)
        EXPECT_NE(output, before) << "other inputs give other outputs";
      seen.push_back(output);
    }
    cudaGraphExecDestroy(captured);
    cudaGraphDestroy(graph);
  }
}

} // namespace layer_graph_test
} // namespace dsakit::testing
