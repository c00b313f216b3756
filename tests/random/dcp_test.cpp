// Any number of ranks gives what one does: the steps of the reference, 240 problems, each on one,
// two, four and eight ranks. (tests/parity/dcp_pipeline_test.cpp: the same with kernels.)
//   DSAKIT_DCP_SEED=SEED  that problem alone
#include <cstdlib>
#include <iostream>

#include "dsakit/reference/index_logits.hpp"
#include "dsakit/reference/mxfp4_logits.hpp"
#include "support/dcp_problem.hpp"

namespace dsakit::testing {
namespace {

using Ids = std::vector<std::int32_t>;
using Bf16 = std::vector<std::uint16_t>;
using Floats = std::vector<float>;

struct ReferenceSteps {
  static void logits(const DcpProblem& p, const DcpShard& shard, Floats& logits) {
    const reference::IndexCache<const std::uint8_t> cache{shard.index_cache.data(), shard.pages,
                                                          p.index_page()};
    if (p.mxfp4) {
      const reference::IndexLogitsDecodeMxfp4 in{
          p.index_q.data(),     p.q_scale.data(),      p.raw_weights.data(), cache,
          shard.block_table(p), shard.row_lens.data(), p.row_request.data(), p.rows(),
          p.index_heads,        shard.longest,         ActivationDtype::bf16};
      EXPECT_TRUE(reference::index_logits_decode_mxfp4<reference::Simulated>(p.mxfp4_pages(), in,
                                                                             logits.data()));
      return;
    }
    const reference::IndexLogitsDecode in{
        p.index_q.data(),      p.weights.data(),     cache,    shard.block_table(p),
        shard.row_lens.data(), p.row_request.data(), p.rows(), p.index_heads,
        shard.longest};
    EXPECT_TRUE(reference::index_logits_decode<reference::Simulated>(p.pages(), in, logits.data()));
  }
  static void topk(const DcpProblem& p, const DcpShard& shard, const Floats& logits, Ids& indices,
                   Floats& scores) {
    EXPECT_TRUE(reference::topk(logits.data(), p.rows(), shard.longest, nullptr,
                                shard.row_lens.data(), p.k, p.order, indices.data(), shard.dcp));
    reference::dcp_scores(logits.data(), p.rows(), shard.longest, nullptr, indices.data(), p.k,
                          scores.data(), shard.dcp);
  }
  static void topk_merge(const DcpProblem& p, std::int64_t world, const Floats& scores,
                         const Ids& rank_indices, Ids& indices) {
    reference::dcp_topk_merge(scores.data(), rank_indices.data(), world, p.rows(), p.k, p.order,
                              indices.data());
  }
  static void slots(const DcpProblem& p, const DcpShard& shard, const Ids& indices, Ids& compact) {
    Ids found(indices.size()), counts(p.row_lens.size());
    EXPECT_TRUE(reference::topk_slots(indices.data(), p.rows(), p.k, shard.block_table(p),
                                      p.row_request.data(), p.page_size, p.page_size, found.data(),
                                      shard.dcp));
    reference::compact_slots(found.data(), p.rows(), p.k, compact.data(), counts.data());
  }
  static void attention(const DcpProblem& p, DcpShard& shard, const Ids& slots, Bf16& latent,
                        Floats& lse) {
    EXPECT_TRUE(
        reference::sparse_attention(shard.attention(p, slots.data()), latent.data(), lse.data()));
  }
  static void attention_merge(const DcpProblem& p, std::int64_t world, const Bf16& rank_latent,
                              const Floats& rank_lse, Bf16& latent, Floats& lse) {
    EXPECT_TRUE(
        reference::dcp_attention_merge({rank_latent.data(), Dtype::bfloat16, rank_lse.data(), world,
                                        p.rows(), p.heads, reference::kMlaLatent, p.lse_base},
                                       latent.data(), lse.data()));
  }
};

TEST(DcpInvariance, AnyNumberOfRanksGivesWhatOneDoes) {
  ReferenceSteps steps;
  std::uint64_t first = 1, last = 240;
  if (const char* only = std::getenv("DSAKIT_DCP_SEED"))
    first = last = std::strtoull(only, nullptr, 10);
  std::int64_t without_key = 0;
  for (std::uint64_t seed = first; seed <= last; ++seed)
    without_key += check_dcp_problem(seed, {2, 4, 8}, steps);
  std::cout << "seeds " << first << " to " << last << ", each on 1, 2, 4 and 8 ranks; "
            << without_key << " rows of ranks without a key\n";
  EXPECT_GT(without_key, 0);
}

} // namespace
} // namespace dsakit::testing
