// Decode under context parallelism, from keys to latents, with either indexer: the same problem on
// any number of simulated ranks, with the steps of the reference or of the kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dsakit/reference/context_parallel.hpp"
#include "dsakit/reference/formats.hpp"
#include "dsakit/reference/index_cache.hpp"
#include "dsakit/reference/mla_cache.hpp"
#include "dsakit/reference/mxfp4.hpp"
#include "dsakit/reference/sparse_attention.hpp"
#include "dsakit/reference/topk.hpp"

namespace dsakit::testing {

/// Requests of ragged lengths, each with rows that end one position after the other.
struct DcpProblem {
  explicit DcpProblem(std::uint64_t seed) : random(static_cast<unsigned>(seed)) {
    const auto any = [&](std::initializer_list<std::int64_t> values) {
      return values.begin()[random() % values.size()];
    };
    const auto between = [&](std::int64_t low, std::int64_t high) {
      return low + static_cast<std::int64_t>(random()) % (high - low + 1);
    };
    encoding = random() % 2 ? Fp8Encoding::e4m3fn : Fp8Encoding::e4m3fnuz;
    page_size = any({1, 3, 16, 64});
    mxfp4 = random() % 2;
    const bool tiled = random() % 2 && page_size % (mxfp4 ? 64 : 16) == 0;
    if (mxfp4)
      layout = tiled ? IndexPageLayout::preshuffle64 : IndexPageLayout::flat;
    else
      layout = tiled ? IndexPageLayout::mfma_preshuffle : IndexPageLayout::block_flat;
    interleave = any({1, 2, 3, 4, 16, 64, 100});
    k = between(1, 60);
    index_heads = between(1, 5);
    heads = between(1, 3);
    lse_base = random() % 2 ? LseBase::e : LseBase::two;
    order = random() % 2 ? TopkOrder::rank : TopkOrder::ascending;
    const std::int64_t requests = between(1, 3), rows_each = between(1, 3);
    for (std::int32_t request = 0; request < requests; ++request) {
      // Short ones leave ranks without a key, and rows without any.
      const std::int64_t length = random() % 3 ? between(1, 150) : between(0, 4);
      for (std::int64_t behind = rows_each - 1; behind >= 0; --behind) {
        row_request.push_back(request);
        row_lens.push_back(static_cast<std::int32_t>(std::max<std::int64_t>(length - behind, 0)));
      }
      for (std::int32_t position = 0; position < length; ++position) {
        positions.push_back(position);
        key_request.push_back(request);
      }
    }
    // Of some problems the keys are a few that recur, so that scores tie across ranks.
    const std::uint64_t distinct = random() % 3 == 0 ? 4 : keys();
    const auto pool = values(static_cast<std::int64_t>(distinct) * 128);
    for (std::size_t key = 0; key < keys(); ++key) {
      const auto from = static_cast<std::ptrdiff_t>(random() % distinct * 128);
      index_k.insert(index_k.end(), pool.begin() + from, pool.begin() + from + 128);
    }
    kv_c = values(static_cast<std::int64_t>(keys()) * reference::kMlaLatent);
    k_pe = values(static_cast<std::int64_t>(keys()) * reference::kMlaPe);
    mla_query = values(rows() * heads * (reference::kMlaLatent + reference::kMlaPe));
    const std::int64_t queries = rows() * index_heads;
    if (mxfp4) {
      index_q.resize(static_cast<std::size_t>(queries * reference::kMxfp4Bytes));
      q_scale.resize(static_cast<std::size_t>(queries * reference::kMxfp4Groups));
      EXPECT_TRUE(reference::index_query_quant_mxfp4(quant(), values(queries * 128).data(), queries,
                                                     index_q.data(), q_scale.data()));
      raw_weights = values(queries);
      return;
    }
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < queries * 128; ++i)
      index_q.push_back(reference::encode_fp8_saturating(encoding, 8 * normal(random)));
    for (std::int64_t i = 0; i < queries; ++i)
      weights.push_back(normal(random));
  }

  std::int64_t rows() const { return static_cast<std::int64_t>(row_lens.size()); }
  std::int64_t requests() const { return row_request.back() + 1; }
  std::size_t keys() const { return positions.size(); }
  float qmax() const { return encoding == Fp8Encoding::e4m3fn ? 448 : 224; }
  IndexPages pages() const { return {encoding, layout, page_size}; }
  Mxfp4Pages mxfp4_pages() const { return {layout, page_size}; }
  static Mxfp4Quant quant() { return {ActivationDtype::bf16, Hadamard::none}; }
  std::int64_t index_page() const { return page_size * (mxfp4 ? 68 : 132); } ///< bytes
  std::string describe() const {
    return std::string(mxfp4 ? "MXFP4, " : "FP8, ") + std::to_string(rows()) + " rows, " +
           std::to_string(keys()) + " keys, k " + std::to_string(k) + ", page " +
           std::to_string(page_size) + ", interleave " + std::to_string(interleave);
  }

  std::mt19937 random;
  bool mxfp4;
  Fp8Encoding encoding; ///< of the MLA cache, and of an FP8 indexer
  IndexPageLayout layout;
  std::int64_t page_size, interleave, k, index_heads, heads;
  LseBase lse_base;
  TopkOrder order;
  float softmax_scale = 0.0721688f;
  std::vector<std::int32_t> row_request, row_lens;  ///< [rows]
  std::vector<std::int32_t> positions, key_request; ///< [keys]
  std::vector<std::uint16_t> index_k, kv_c, k_pe;   ///< [keys, 128], [keys, 512], [keys, 64]
  std::vector<std::uint16_t> mla_query;             ///< [rows, heads, 576]
  std::vector<std::uint8_t> index_q;                ///< [rows, index_heads, 128], MXFP4: 64
  std::vector<float> weights;                       ///< [rows, index_heads] of FP8
  std::vector<std::uint8_t> q_scale;                ///< [rows, index_heads, 4] of MXFP4
  std::vector<std::uint16_t> raw_weights;           ///< [rows, index_heads] bf16, of MXFP4

private:
  std::vector<std::uint16_t> values(std::int64_t n) {
    std::normal_distribution<float> normal;
    std::vector<std::uint16_t> bits;
    for (std::int64_t i = 0; i < n; ++i)
      bits.push_back(reference::float_to_bf16(normal(random)));
    return bits;
  }
};

/// What one rank holds: its keys in pages of its own, in any order. Nobody wrote the rest.
struct DcpShard {
  DcpShard(DcpProblem& p, const reference::DcpRank& rank) : dcp(rank) {
    for (std::int32_t length : p.row_lens)
      row_lens.push_back(static_cast<std::int32_t>(reference::dcp_local_length(dcp, length)));
    longest = std::max(1, *std::max_element(row_lens.begin(), row_lens.end()));
    columns = (longest + p.page_size - 1) / p.page_size;
    pages = p.requests() * columns;
    for (std::int32_t page = 0; page < pages; ++page)
      table.push_back(page);
    std::shuffle(table.begin(), table.end(), p.random);
    index_cache.assign(static_cast<std::size_t>(pages * p.index_page()), 0xA5);
    mla_cache.assign(static_cast<std::size_t>(pages * p.page_size * reference::kMlaRecord), 0xA5);

    std::vector<std::int64_t> slots(p.keys());
    EXPECT_TRUE(reference::dcp_slot_mapping(dcp, p.positions, p.key_request.data(), block_table(p),
                                            p.page_size, slots.data()));
    const auto keys = static_cast<std::int64_t>(p.keys());
    const reference::IndexCache<std::uint8_t> pool{index_cache.data(), pages, p.index_page()};
    if (p.mxfp4)
      EXPECT_TRUE(reference::index_cache_write_mxfp4(p.mxfp4_pages(), DcpProblem::quant(),
                                                     p.index_k.data(), keys, slots, pool));
    else
      EXPECT_TRUE(reference::index_cache_write(
          {p.pages(), ActivationDtype::bf16, ScaleKind::ue8m0, 1e-4f, p.qmax()}, p.index_k.data(),
          keys, slots, pool));
    EXPECT_TRUE(reference::mla_cache_write({p.encoding, ActivationDtype::bf16, p.qmax()},
                                           p.kv_c.data(), p.k_pe.data(), keys, slots,
                                           mla_pages<std::uint8_t>(p)));
  }

  reference::BlockTable block_table(const DcpProblem& p) const {
    return {table.data(), p.requests(), columns};
  }
  template <class Byte>
  reference::MlaCache<Byte> mla_pages(const DcpProblem& p) {
    return {mla_cache.data(), pages, p.page_size, p.page_size * reference::kMlaRecord,
            reference::kMlaRecord};
  }
  reference::SparseAttention attention(const DcpProblem& p, const std::int32_t* slots) {
    return {p.mla_query.data(),
            mla_pages<const std::uint8_t>(p),
            slots,
            p.rows(),
            p.heads,
            p.k,
            p.softmax_scale,
            p.encoding,
            MlaScaleRead::fp32,
            p.lse_base};
  }

  reference::DcpRank dcp;
  std::vector<std::int32_t> row_lens; ///< of the rank's own keys
  std::int64_t longest, columns, pages;
  std::vector<std::int32_t> table; ///< [requests, columns]
  std::vector<std::uint8_t> index_cache, mla_cache;
};

inline std::vector<DcpShard> dcp_shards(DcpProblem& p, std::int64_t world) {
  std::vector<DcpShard> shards;
  for (std::int64_t rank = 0; rank < world; ++rank)
    shards.emplace_back(p, reference::DcpRank{world, p.interleave, rank});
  return shards;
}

struct DcpAnswer {
  std::vector<std::int32_t> indices; ///< [rows, k] positions in the request
  std::vector<std::uint16_t> latent; ///< [rows, heads, 512] bf16
  std::vector<float> lse;            ///< [rows, heads]
};

/// Scores, selection and attention of each rank, merged. Steps: of the reference, or of kernels.
template <class Steps>
DcpAnswer dcp_answer(DcpProblem& p, std::vector<DcpShard>& shards, Steps& steps) {
  const auto world = static_cast<std::int64_t>(shards.size());
  const auto cells = static_cast<std::size_t>(p.rows() * p.k);
  const auto lses = static_cast<std::size_t>(p.rows() * p.heads);
  const auto latents = lses * static_cast<std::size_t>(reference::kMlaLatent);
  DcpAnswer answer{std::vector<std::int32_t>(cells), std::vector<std::uint16_t>(latents),
                   std::vector<float>(lses)};
  std::vector<float> rank_scores;         // [world, rows, k]
  std::vector<std::int32_t> rank_indices; // [world, rows, k], what an all-gather would leave
  for (DcpShard& shard : shards) {
    // Beyond a row lies the largest number: who reads it, takes it.
    std::vector<float> logits(static_cast<std::size_t>(p.rows() * shard.longest),
                              std::numeric_limits<float>::max());
    std::vector<float> scores(cells);
    std::vector<std::int32_t> indices(cells);
    steps.logits(p, shard, logits);
    steps.topk(p, shard, logits, indices, scores);
    rank_scores.insert(rank_scores.end(), scores.begin(), scores.end());
    rank_indices.insert(rank_indices.end(), indices.begin(), indices.end());
  }
  if (world == 1)
    answer.indices = rank_indices;
  else
    steps.topk_merge(p, world, rank_scores, rank_indices, answer.indices);

  std::vector<std::uint16_t> rank_latent; // [world, rows, heads, 512]
  std::vector<float> rank_lse;            // [world, rows, heads]
  for (DcpShard& shard : shards) {
    std::vector<std::int32_t> slots(cells);
    std::vector<std::uint16_t> latent(latents);
    std::vector<float> lse(lses);
    steps.slots(p, shard, answer.indices, slots);
    steps.attention(p, shard, slots, latent, lse);
    rank_latent.insert(rank_latent.end(), latent.begin(), latent.end());
    rank_lse.insert(rank_lse.end(), lse.begin(), lse.end());
  }
  if (world == 1) {
    answer.latent = rank_latent;
    answer.lse = rank_lse;
  } else {
    steps.attention_merge(p, world, rank_latent, rank_lse, answer.latent, answer.lse);
  }
  return answer;
}

/// Exact attention over those positions, and the largest right error of an answer.
struct DcpExpected {
  std::vector<double> latent, lse, latent_bound, lse_bound;
};

inline DcpExpected attended(const reference::SparseAttention& in) {
  const auto lses = static_cast<std::size_t>(in.tokens * in.heads);
  DcpExpected e;
  e.lse.resize(lses);
  e.latent.resize(lses * static_cast<std::size_t>(reference::kMlaLatent));
  e.lse_bound = e.lse;
  e.latent_bound = e.latent;
  EXPECT_TRUE(reference::sparse_attention_exact(in, e.latent.data(), e.lse.data()));
  EXPECT_TRUE(reference::sparse_attention_bound(in, e.latent_bound.data(), e.lse_bound.data()));
  return e;
}

inline DcpExpected attended(DcpProblem& p, DcpShard& shard,
                            const std::vector<std::int32_t>& indices) {
  std::vector<std::int32_t> slots(indices.size());
  EXPECT_TRUE(reference::topk_slots(indices.data(), p.rows(), p.k, shard.block_table(p),
                                    p.row_request.data(), p.page_size, p.page_size, slots.data(),
                                    shard.dcp));
  return attended(shard.attention(p, slots.data()));
}

/// The ranks' answers, each with its own bound B_r of the latent and L_r of the lse, merged with
/// weights w_r:
///   lse:    max_r L_r, then the merge's own bound
///   latent: sum_r w_r (B_r + |o_r| (e^(2 max_r L_r) - 1)), then the merge's own bound
/// the latter twice, since what is rounded may already lie in the next binade.
inline DcpExpected dcp_merged(const std::vector<DcpExpected>& ranks, std::int64_t rows,
                              std::int64_t heads, LseBase lse_base) {
  std::vector<float> rank_latent, rank_lse;
  for (const DcpExpected& rank : ranks) {
    rank_latent.insert(rank_latent.end(), rank.latent.begin(), rank.latent.end());
    rank_lse.insert(rank_lse.end(), rank.lse.begin(), rank.lse.end());
  }
  const reference::DcpAttention in{rank_latent.data(),
                                   Dtype::float32,
                                   rank_lse.data(),
                                   static_cast<std::int64_t>(ranks.size()),
                                   rows,
                                   heads,
                                   reference::kMlaLatent,
                                   lse_base};
  DcpExpected e = ranks[0];
  EXPECT_TRUE(reference::dcp_attention_merge_exact(in, e.latent.data(), e.lse.data(), nullptr));
  EXPECT_TRUE(reference::dcp_attention_merge_bound(in, Accumulation::fp32, e.latent_bound.data(),
                                                   e.lse_bound.data(), nullptr));
  const double natural = lse_base == LseBase::e ? 1 : std::numbers::ln2;
  for (std::size_t at = 0; at < e.lse.size(); ++at) {
    double of_lse = 0;
    for (const DcpExpected& rank : ranks)
      of_lse = std::max(of_lse, rank.lse_bound[at]);
    e.lse_bound[at] = 2 * e.lse_bound[at] + of_lse;
    for (std::size_t i = at * reference::kMlaLatent; i < (at + 1) * reference::kMlaLatent; ++i) {
      e.latent_bound[i] *= 2;
      for (const DcpExpected& rank : ranks) {
        if (std::isinf(rank.lse[at])) continue;
        const double weight = std::exp((rank.lse[at] - e.lse[at]) * natural);
        e.latent_bound[i] += weight * (rank.latent_bound[i] + std::fabs(rank.latent[i]) *
                                                                  std::expm1(2 * of_lse * natural));
      }
    }
  }
  return e;
}

inline DcpExpected dcp_expected(DcpProblem& p, std::vector<DcpShard>& shards,
                                const std::vector<std::int32_t>& indices) {
  if (shards.size() == 1) return attended(p, shards[0], indices);
  std::vector<DcpExpected> ranks;
  for (DcpShard& shard : shards)
    ranks.push_back(attended(p, shard, indices));
  return dcp_merged(ranks, p.rows(), p.heads, p.lse_base);
}

/// The positions of each row in ascending order: rows are sets. -1 is padding.
inline std::vector<std::int32_t> row_sets(std::vector<std::int32_t> indices, std::int64_t k) {
  for (auto row = indices.begin(); row != indices.end(); row += k)
    std::sort(row, row + k);
  return indices;
}

/// The same sets; latent and lse of `got` within its bound of the exact answer of one rank, and
/// within both bounds of that rank's own.
inline void expect_same_answer(std::int64_t k, const DcpAnswer& got,
                               const DcpExpected& bound_of_got, const DcpAnswer& one,
                               const DcpExpected& of_one) {
  EXPECT_EQ(row_sets(got.indices, k), row_sets(one.indices, k));
  const auto check = [](const char* what, double value, double other, double bound, double exact,
                        double own_bound) {
    if (std::isinf(exact)) {
      EXPECT_EQ(value, exact) << what;
      return true;
    }
    const bool fits =
        std::fabs(value - exact) <= own_bound && std::fabs(value - other) <= own_bound + bound;
    EXPECT_TRUE(fits) << what << ": got " << value << ", one rank " << other << ", exact " << exact
                      << " within " << own_bound;
    return fits;
  };
  for (std::size_t i = 0; i < got.lse.size(); ++i)
    if (!check("lse", got.lse[i], one.lse[i], of_one.lse_bound[i], of_one.lse[i],
               bound_of_got.lse_bound[i]))
      return;
  for (std::size_t i = 0; i < got.latent.size(); ++i)
    if (!check("latent", reference::bf16_to_float(got.latent[i]),
               reference::bf16_to_float(one.latent[i]), of_one.latent_bound[i], of_one.latent[i],
               bound_of_got.latent_bound[i]))
      return;
}

/// Every world of `worlds` against one rank. Returns how many rows had a rank without a key.
template <class Steps>
std::int64_t check_dcp_problem(std::uint64_t seed, std::initializer_list<std::int64_t> worlds,
                               Steps& steps) {
  DcpProblem p(seed);
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + p.describe());
  auto single = dcp_shards(p, 1);
  const DcpAnswer one = dcp_answer(p, single, steps);
  const DcpExpected of_one = dcp_expected(p, single, one.indices);
  std::int64_t without_key = 0;
  for (std::int64_t world : worlds) {
    SCOPED_TRACE(std::to_string(world) + " ranks");
    auto shards = dcp_shards(p, world);
    for (const DcpShard& shard : shards)
      without_key += std::count(shard.row_lens.begin(), shard.row_lens.end(), 0);
    const DcpAnswer got = dcp_answer(p, shards, steps);
    expect_same_answer(p.k, got, dcp_expected(p, shards, got.indices), one, of_one);
  }
  return without_key;
}

} // namespace dsakit::testing
