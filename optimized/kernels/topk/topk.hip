// The k largest logits of a row: radix selection over (score, position), then a sort in LDS.
//
// A logit and its position make one 64-bit number whose descending order is the contract's: the
// score's order-preserving bits above the inverted position. The numbers differ, so selection needs
// no tie rule: it walks down from the top byte, counts how many of the candidates fall in each of
// 256 buckets, and keeps the bucket in which the k-th lies, until every candidate left is selected.
// Ties only make it walk further. Buffers are of fixed size whatever the row holds.
#include <hip/hip_runtime.h>

#include "device/lane.hpp"
#include "dsakit/optimized/topk.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

constexpr int kBlock = 512;
constexpr int kBuckets = 256;
constexpr int kMaxK = 4096;

struct TopkLds {
  std::uint64_t selected[kMaxK];
  std::uint32_t count[kBuckets];
  std::uint32_t at_least[kBuckets]; // candidates in this bucket or above
  std::uint32_t bucket;
  std::uint32_t filled;
};

/// Bits that order like the scores: -0 as +0, NaN of either sign below -inf.
DSAKIT_DEVICE std::uint32_t rank_bits(float score) {
  if (score != score) return 0;
  const std::uint32_t b = score == 0 ? 0 : bits(score);
  return b & 0x80000000u ? ~b : b | 0x80000000u;
}

DSAKIT_DEVICE std::uint64_t candidate(const float* row, int position) {
  return static_cast<std::uint64_t>(rank_bits(row[position])) << 32 |
         (0xFFFFFFFFu - static_cast<std::uint32_t>(position));
}

/// Finds shift and prefix such that exactly k of the row's n candidates have (candidate >> shift)
/// >= prefix.
DSAKIT_DEVICE void find_threshold(TopkLds& lds, const float* row, int n, std::uint32_t k,
                                  int& shift, std::uint64_t& prefix) {
  const int lane = static_cast<int>(threadIdx.x);
  prefix = 0;
  for (shift = 56;; shift -= 8) {
    if (lane < kBuckets) lds.count[lane] = 0;
    __syncthreads(); // counters are zero before any lane counts
    for (int i = lane; i < n; i += kBlock) {
      const std::uint64_t c = candidate(row, i);
      if (shift == 56 || c >> (shift + 8) == prefix)
        lds_fetch_add(&lds.count[c >> shift & (kBuckets - 1)], 1);
    }
    __syncthreads(); // every candidate is counted
    if (lane < kBuckets) lds.at_least[lane] = lds.count[lane];
    for (int distance = 1; distance < kBuckets; distance *= 2) {
      __syncthreads(); // the sums of the last step are written
      const std::uint32_t above = lane + distance < kBuckets ? lds.at_least[lane + distance] : 0;
      __syncthreads(); // and read, before the next ones replace them
      if (lane < kBuckets) lds.at_least[lane] += above;
    }
    __syncthreads();
    if (lane < kBuckets) {
      const std::uint32_t above = lane + 1 < kBuckets ? lds.at_least[lane + 1] : 0;
      if (lds.at_least[lane] >= k && above < k) lds.bucket = static_cast<std::uint32_t>(lane);
    }
    __syncthreads(); // one lane has named the bucket of the k-th
    const std::uint32_t bucket = lds.bucket;
    k -= bucket + 1 < kBuckets ? lds.at_least[bucket + 1] : 0;
    prefix = prefix << 8 | bucket;
    const bool all_selected = lds.count[bucket] == k;
    __syncthreads();          // everybody has read, before the counters are cleared
    if (all_selected) return; // at the latest at shift 0, where a bucket holds one candidate
  }
}

/// Sorts the first `size` (a power of two) descending.
DSAKIT_DEVICE void sort_descending(std::uint64_t* values, int size) {
  for (int width = 2; width <= size; width *= 2)
    for (int distance = width / 2; distance > 0; distance /= 2) {
      __syncthreads(); // the last exchanges are written
      for (int i = static_cast<int>(threadIdx.x); i < size; i += kBlock) {
        const int partner = i ^ distance;
        if (partner < i) continue;
        const bool descending = (i & width) == 0;
        const std::uint64_t a = values[i];
        const std::uint64_t b = values[partner];
        if ((a < b) == descending) {
          values[i] = b;
          values[partner] = a;
        }
      }
    }
  __syncthreads(); // and so are the very last
}

} // namespace

DSAKIT_KERNEL __launch_bounds__(kBlock) dsakit_topk(TopkParams p) {
  const std::int64_t row_index = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x);
  const int start = p.row_starts ? p.row_starts[row_index] : 0;
  const int n = p.row_ends[row_index] - start;
  std::int32_t* out = p.topk_indices + row_index * p.topk_stride;
  if (n <= p.k) {
    for (int i = lane; i < p.k; i += kBlock)
      out[i] = i < n ? i : -1;
    return;
  }

  DSAKIT_SHARED(TopkLds, lds);
  const float* row = p.logits + row_index * p.logits_stride + start;
  int shift;
  std::uint64_t prefix;
  find_threshold(lds, row, n, static_cast<std::uint32_t>(p.k), shift, prefix);

  int size = 1;
  while (size < p.k)
    size *= 2;
  if (lane == 0) lds.filled = 0;
  for (int i = p.k + lane; i < size; i += kBlock)
    lds.selected[i] = 0; // below every candidate
  __syncthreads();       // the fill count is zero
  for (int i = lane; i < n; i += kBlock) {
    const std::uint64_t c = candidate(row, i);
    if (c >> shift < prefix) continue;
    const std::uint32_t place = lds_fetch_add(&lds.filled, 1);
    lds.selected[place] = p.order == TopkOrder::rank ? c : c & 0xFFFFFFFFu;
  }
  sort_descending(lds.selected, size);
  for (int i = lane; i < p.k; i += kBlock)
    out[i] = static_cast<std::int32_t>(0xFFFFFFFFu - static_cast<std::uint32_t>(lds.selected[i]));
}

} // namespace dsakit::optimized::DSAKIT_ARCH

#if DSAKIT_HOST_PASS
#include "kernels/launcher.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {
namespace {

std::int64_t workgroups(const TopkParams& p) {
  return p.rows;
}

Status supports(const TopkParams& p) {
  if (p.k < 1 || p.k > kMaxK)
    return unsupported("k is " + std::to_string(p.k) + ", want 1 to " + std::to_string(kMaxK));
  return check_workgroups(workgroups(p));
}

} // namespace

Status topk(const TopkParams& p, void*, std::size_t, hipStream_t stream) {
  DSAKIT_TRY(supports(p));
  if (p.rows == 0) return {};
  hipLaunchKernelGGL(dsakit_topk, dim3(static_cast<unsigned>(p.rows)), dim3(kBlock), 0, stream, p);
  return launch_status("topk");
}

DSAKIT_REGISTER_KERNELS(TopkParams, {"radix64", supports, no_workspace<TopkParams>, workgroups,
                                     erase_stream<TopkParams, topk>})

} // namespace dsakit::optimized::DSAKIT_ARCH
#endif
