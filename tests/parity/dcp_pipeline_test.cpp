// Decode under context parallelism, kernel by kernel: any number of ranks gives what one does.
// (tests/random/dcp_test.cpp: the same with the steps of the reference, and more problems.)
//   DSAKIT_DCP_SEED=SEED  that problem alone
#include <cstdlib>
#include <iostream>

#include <gtest/gtest.h>

#include "dsakit/optimized/dcp_attention_merge.hpp"
#include "dsakit/optimized/dcp_topk_merge.hpp"
#include "dsakit/optimized/index_logits_decode.hpp"
#include "dsakit/optimized/sparse_attention.hpp"
#include "dsakit/optimized/topk.hpp"
#include "dsakit/optimized/topk_slots.hpp"
#include "dsakit/reference/mxfp4_logits.hpp"
#include "support/dcp_problem.hpp"
#include "support/devices.hpp"
#include "support/run_kernel.hpp"

namespace dsakit::testing {
namespace dcp_pipeline_test {

using Ids = std::vector<std::int32_t>;
using Bf16 = std::vector<std::uint16_t>;
using Floats = std::vector<float>;

class KernelSteps {
public:
  explicit KernelSteps(optimized::Device& device) : device_(device) {}

  void logits(const DcpProblem& p, const DcpShard& shard, Floats& logits) {
    OnDevice<std::uint8_t> q(device_, p.index_q), q_scale(device_, p.q_scale);
    OnDevice<float> weights(device_, p.weights), out(device_, logits);
    OnDevice<std::uint16_t> raw_weights(device_, p.raw_weights);
    if (p.mxfp4) {
      optimized::IndexLogitsDecodeMxfp4Params params{};
      params.q_packed = q.data();
      params.q_scale = q_scale.data();
      params.weights = raw_weights.data();
      params.q_stride = p.index_heads * 64;
      params.q_scale_stride = p.index_heads * 4;
      params.weight_scale = reference::mxfp4_weight_scale(p.index_heads);
      score(p, shard, params, out);
    } else {
      optimized::IndexLogitsDecodeParams params{};
      params.q = q.data();
      params.weights = weights.data();
      params.q_stride = p.index_heads * 128;
      params.encoding = p.encoding;
      score(p, shard, params, out);
    }
    const float unwritten = logits.empty() ? 0 : logits[0];
    logits = out.values();
    for (std::size_t row = 0; row < shard.row_lens.size(); ++row)
      for (std::int32_t key = 0; key < shard.row_lens[row]; ++key)
        ASSERT_NE(
            logits[row * static_cast<std::size_t>(shard.longest) + static_cast<std::size_t>(key)],
            unwritten);
  }

  void topk(const DcpProblem& p, const DcpShard& shard, const Floats& logits, Ids& indices,
            Floats& scores) {
    OnDevice<float> in(device_, logits), selected(device_, scores);
    OnDevice<std::int32_t> lens(device_, shard.row_lens), out(device_, indices);
    optimized::TopkParams params{};
    params.logits = in.data();
    params.row_ends = lens.data();
    params.topk_indices = out.data();
    params.dcp_scores = selected.data();
    params.logits_stride = shard.longest;
    params.topk_stride = p.k;
    params.rows = p.rows();
    params.k = static_cast<std::int32_t>(p.k);
    params.order = p.order;
    params.dcp_world = static_cast<std::int32_t>(shard.dcp.world);
    params.dcp_interleave = static_cast<std::int32_t>(shard.dcp.interleave);
    params.dcp_rank = static_cast<std::int32_t>(shard.dcp.rank);
    launch(params);
    indices = out.values();
    scores = selected.values();
  }

  void topk_merge(const DcpProblem& p, std::int64_t world, const Floats& scores,
                  const Ids& rank_indices, Ids& indices) {
    OnDevice<float> in(device_, scores);
    OnDevice<std::int32_t> candidates(device_, rank_indices), out(device_, indices);
    optimized::DcpTopkMergeParams params{};
    params.rank_scores = in.data();
    params.rank_indices = candidates.data();
    params.topk_indices = out.data();
    params.rank_stride = p.rows() * p.k;
    params.rows = p.rows();
    params.world = static_cast<std::int32_t>(world);
    params.k = static_cast<std::int32_t>(p.k);
    params.order = p.order;
    launch(params);
    indices = out.values();
  }

  void slots(const DcpProblem& p, const DcpShard& shard, const Ids& indices, Ids& compact) {
    OnDevice<std::int32_t> in(device_, indices), table(device_, shard.table),
        request(device_, p.row_request), out(device_, compact);
    optimized::TopkSlotsParams params{};
    params.topk_indices = in.data();
    params.block_table = table.data();
    params.row_request = request.data();
    params.compact_slots = out.data();
    params.rows = p.rows();
    params.table_stride = shard.columns;
    params.k = static_cast<std::int32_t>(p.k);
    params.requests = static_cast<std::int32_t>(p.requests());
    params.table_columns = static_cast<std::int32_t>(shard.columns);
    params.page_size = static_cast<std::int32_t>(p.page_size);
    params.block_stride = params.page_size;
    params.dcp_world = static_cast<std::int32_t>(shard.dcp.world);
    params.dcp_interleave = static_cast<std::int32_t>(shard.dcp.interleave);
    params.dcp_rank = static_cast<std::int32_t>(shard.dcp.rank);
    launch(params);
    compact = out.values();
  }

  void attention(const DcpProblem& p, const DcpShard& shard, const Ids& slots, Bf16& latent,
                 Floats& lse) {
    OnDevice<std::uint16_t> q(device_, p.mla_query), out(device_, latent);
    OnDevice<std::uint8_t> cache(device_, shard.mla_cache);
    OnDevice<std::int32_t> in(device_, slots);
    OnDevice<float> out_lse(device_, lse);
    optimized::SparseAttentionParams params{};
    params.q = q.data();
    params.cache = cache.data();
    params.slots = in.data();
    params.latent = out.data();
    params.lse = out_lse.data();
    params.q_token_stride = p.heads * 576;
    params.slots_stride = p.k;
    params.page_stride = p.page_size * reference::kMlaRecord;
    params.record_stride = reference::kMlaRecord;
    params.tokens = p.rows();
    params.pages = shard.pages;
    params.heads = static_cast<std::int32_t>(p.heads);
    params.k = static_cast<std::int32_t>(p.k);
    params.page_size = static_cast<std::int32_t>(p.page_size);
    params.splits = 1;
    params.softmax_scale = p.softmax_scale;
    params.encoding = p.encoding;
    params.scale_read = MlaScaleRead::fp32;
    params.lse_base = p.lse_base;
    launch(params);
    latent = out.values();
    lse = out_lse.values();
  }

  void attention_merge(const DcpProblem& p, std::int64_t world, const Bf16& rank_latent,
                       const Floats& rank_lse, Bf16& latent, Floats& lse) {
    OnDevice<std::uint16_t> in(device_, rank_latent), out(device_, latent);
    OnDevice<float> lses(device_, rank_lse), out_lse(device_, lse);
    optimized::DcpAttentionMergeParams params{};
    params.rank_latent = in.data();
    params.rank_lse = lses.data();
    params.latent = out.data();
    params.lse = out_lse.data();
    params.latent_rank_stride = p.rows() * p.heads * reference::kMlaLatent;
    params.lse_rank_stride = p.rows() * p.heads;
    params.rows = p.rows();
    params.world = static_cast<std::int32_t>(world);
    params.heads = static_cast<std::int32_t>(p.heads);
    params.dim = reference::kMlaLatent;
    params.latent_dtype = optimized::RankLatentDtype::bf16;
    params.lse_base = p.lse_base;
    launch(params);
    latent = out.values();
    lse = out_lse.values();
  }

private:
  /// With what both formats' parameters name alike.
  template <class Params>
  void score(const DcpProblem& p, const DcpShard& shard, Params params, OnDevice<float>& out) {
    OnDevice<std::uint8_t> cache(device_, shard.index_cache);
    OnDevice<std::int32_t> table(device_, shard.table), lens(device_, shard.row_lens),
        request(device_, p.row_request);
    params.cache = cache.data();
    params.block_table = table.data();
    params.row_lens = lens.data();
    params.row_request = request.data();
    params.logits = out.data();
    params.weights_stride = p.index_heads;
    params.table_stride = shard.columns;
    params.logits_stride = shard.longest;
    params.page_stride = p.index_page();
    params.rows = p.rows();
    params.pages = shard.pages;
    params.heads = static_cast<std::int32_t>(p.index_heads);
    params.page_size = static_cast<std::int32_t>(p.page_size);
    params.requests = static_cast<std::int32_t>(p.requests());
    params.table_columns = static_cast<std::int32_t>(shard.columns);
    params.columns = static_cast<std::int32_t>(shard.longest);
    params.layout = p.layout;
    launch(params);
  }

  template <class Params>
  void launch(const Params& params) {
    const Status status = run_kernel(device_, params);
    EXPECT_TRUE(status) << status.what();
  }

  optimized::Device& device_;
};

class DcpPipeline : public ::testing::TestWithParam<std::string> {};

TEST_P(DcpPipeline, AnyNumberOfRanksGivesWhatOneDoes) {
  const auto device = open(GetParam());
  KernelSteps steps(*device);
  std::uint64_t first = 1, last = 24;
  if (const char* only = std::getenv("DSAKIT_DCP_SEED"))
    first = last = std::strtoull(only, nullptr, 10);
  std::int64_t without_key = 0;
  for (std::uint64_t seed = first; seed <= last; ++seed)
    without_key += check_dcp_problem(seed, {2, 4, 8}, steps);
  std::cout << "seeds " << first << " to " << last << ", each on 1, 2, 4 and 8 ranks; "
            << without_key << " rows of ranks without a key\n";
  EXPECT_GT(without_key, 0);
}

INSTANTIATE_TEST_SUITE_P(Devices, DcpPipeline, ::testing::ValuesIn(device_names()),
                         [](const auto& info) { return info.param; });

} // namespace dcp_pipeline_test
} // namespace dsakit::testing
