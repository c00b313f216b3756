// A step of the layer captured once gives what a plain run gives for the lengths of later steps,
// rows that lose all their keys included: a graph launches again what it captured, so that each
// kernel itself must write the rows that have nothing to do. Host lanes: a device that keeps what
// is enqueued stands for the graph (on a GPU: cuda/layer_graph_test.cpp).
#include <gtest/gtest.h>

#include <functional>

#include "dsakit/optimized/launch.hpp"
#include "support/device_layer.hpp"
#include "support/forwarding_device.hpp"

namespace dsakit::testing {
namespace layer_capture_test {

/// Host lanes; between begin() and end() work of the stream is kept and not run.
class CapturingDevice final : public ForwardingDevice, optimized::LaunchStream {
public:
  explicit CapturingDevice(const std::string& name) : ForwardingDevice(open(name)) {}

  void begin() { capturing_ = true; }
  void end() { capturing_ = false; }
  Status replay() {
    for (const auto& work : captured_)
      DSAKIT_TRY(work());
    return {};
  }

  Status copy_rows(void* to, std::int64_t to_stride, const void* from, std::int64_t from_stride,
                   std::int64_t bytes, std::int64_t rows) override {
    return enqueue([this, to, to_stride, from, from_stride, bytes, rows] {
      return real_->copy_rows(to, to_stride, from, from_stride, bytes, rows);
    });
  }
  Status project(const optimized::ProjectionParams& params) override {
    return enqueue([this, params] { return real_->project(params); });
  }
  void* stream() override { return static_cast<optimized::LaunchStream*>(this); }

private:
  Status launch(const optimized::Launch& launch) override {
    return enqueue([this, kernel = launch.kernel, grid = launch.grid, block = launch.block,
                    lane = launch.lane] { // the lane holds the arguments, too
      return static_cast<optimized::LaunchStream*>(real_->stream())
          ->launch({kernel, grid, block, nullptr, 0, lane});
    });
  }
  Status enqueue(std::function<Status()> work) {
    if (!capturing_) return work();
    captured_.push_back(std::move(work));
    return {};
  }

  bool capturing_ = false;
  std::vector<std::function<Status()>> captured_;
};

using Lens = std::vector<std::int32_t>;

struct Arrangement {
  std::string name;
  bool mxfp4;
  bool native;
  Lens query_lens, seq_lens;
  std::vector<Lens> later; ///< seq_lens of steps that the captured one serves
};

std::vector<Arrangement> arrangements() {
  std::vector<Arrangement> all;
  for (const bool mxfp4 : {false, true}) {
    const std::string format = mxfp4 ? "mxfp4" : "fp8";
    // Decode in chunks of their own lengths, then all at once: no chunk of the capture is one of
    // the plan of a shorter step.
    for (const bool native : {false, true})
      all.push_back({format + (native ? ", native decode" : ", flattened decode"),
                     mxfp4,
                     native,
                     {2, 2, 2},
                     {200, 90, 70},
                     {{200, 90, 70}, {170, 60, 2}, {200, 0, 70}, {0, 1, 0}, {0, 0, 0}}});
    all.push_back({format + ", mixed",
                   mxfp4,
                   false,
                   {2, 1, 5, 3},
                   {200, 90, 70, 66},
                   {{200, 90, 70, 66}, {0, 90, 70, 66}, {5, 0, 0, 66}, {0, 0, 70, 0}}});
  }
  return all;
}

TEST(LayerCapture, S24_S25_ACapturedStepServesRowsThatSeeFewerKeysOrNone) {
  for (const Arrangement& a : arrangements()) {
    SCOPED_TRACE(a.name);
    CapturingDevice device("gfx942");
    std::mt19937 random(1);
    reference::LayerConfig config = small_layer();
    config.indexer_kv_dtype = a.mxfp4 ? "mxfp4" : "fp8";
    config.native_decode = a.native;
    if (a.query_lens.size() == 3) config.max_logits_bytes = 4 * 2 * 200; // a chunk each at first
    const LayerContract contract = layer_contract(layer_contract_values(a.mxfp4));
    const reference::LayerWeights weights = random_weights(config, random);
    OwnedStep owned = random_step(config, contract, a.query_lens, a.seq_lens, 2, random);
    auto layer = optimized::KimiK3DSAAttention::create(
        device, device_config(config, owned.tokens, std::ssize(a.query_lens)), contract,
        host_weights(weights));
    ASSERT_TRUE(layer) << layer.status().what();
    DeviceStep step(device, owned, config, owned.tokens);
    ASSERT_TRUE(layer->prepare(owned.tokens, a.query_lens, a.seq_lens));
    device.begin();
    ASSERT_TRUE(layer->run(step.view()));
    device.end();

    for (const Lens& lens : a.later) {
      SCOPED_TRACE(::testing::PrintToString(lens));
      std::vector<std::uint16_t> hidden = owned.hidden_states;
      const auto nan = [&](std::int64_t row) { // of a row without a key: whatever it holds
        std::fill_n(hidden.begin() + row * config.hidden_size, config.hidden_size, 0x7FC0);
      };
      std::vector<std::int64_t> empty = {owned.tokens - 2, owned.tokens - 1};
      std::int64_t row = 0;
      for (std::size_t b = 0; b < lens.size(); ++b)
        for (std::int32_t i = 0; i < a.query_lens[b]; ++i, ++row)
          if (lens[b] - a.query_lens[b] + i + 1 <= 0) empty.push_back(row);
      for (const std::int64_t of : empty)
        nan(of);
      const auto ready = [&] {
        const std::vector<std::int32_t> topk(step.topk.values().size(), 77);
        const std::vector<std::uint16_t> output(step.output.values().size(), 0xDEAD);
        ASSERT_TRUE(device.upload(step.hidden_states.data(), hidden.data(), 2 * hidden.size()));
        ASSERT_TRUE(device.upload(step.index_cache.data(), owned.index_cache.data(),
                                  owned.index_cache.size()));
        ASSERT_TRUE(
            device.upload(step.mla_cache.data(), owned.mla_cache.data(), owned.mla_cache.size()));
        ASSERT_TRUE(device.upload(step.topk.data(), topk.data(), 4 * topk.size()));
        ASSERT_TRUE(device.upload(step.output.data(), output.data(), 2 * output.size()));
        ASSERT_TRUE(layer->prepare(owned.tokens, a.query_lens, lens));
      };
      ready();
      ASSERT_TRUE(device.replay());
      const auto topk = step.topk.values();
      const auto output = step.output.values();
      ready();
      ASSERT_TRUE(layer->run(step.view())); // what layer_test holds against the reference
      EXPECT_EQ(topk, step.topk.values());
      EXPECT_EQ(output, step.output.values());
      for (const std::int64_t of : empty) {
        for (std::int64_t i = 0; i < config.dsa->index_topk; ++i)
          ASSERT_EQ(topk[static_cast<std::size_t>(of * config.dsa->index_topk + i)], -1) << of;
        for (std::int64_t i = 0; i < config.hidden_size; ++i)
          ASSERT_EQ(output[static_cast<std::size_t>(of * config.hidden_size + i)], 0) << of;
      }
    }
  }
}

} // namespace layer_capture_test
} // namespace dsakit::testing
