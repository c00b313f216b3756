// Selection of the largest of a row's candidates by one workgroup, into LDS of a fixed size.
//
// A score and its position make one 64-bit number whose descending order is the contract's: the
// score's order-preserving bits above the inverted position. The numbers differ, so selection needs
// no tie rule, and no input is special.
#pragma once

#include "device/lane.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {

inline constexpr int kSelectionBlock = 512; // lanes of the workgroup, if nothing else was tuned
inline constexpr int kMaxSelected = 4096;
inline constexpr int kBuckets = 256;

struct SelectionLds {
  std::uint64_t selected[kMaxSelected];
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

/// Above 0 for every position from 0 on.
DSAKIT_DEVICE std::uint64_t candidate_of(float score, int position) {
  return static_cast<std::uint64_t>(rank_bits(score)) << 32 |
         (0xFFFFFFFFu - static_cast<std::uint32_t>(position));
}

DSAKIT_DEVICE int position_of(std::uint64_t candidate) {
  return static_cast<int>(0xFFFFFFFFu - static_cast<std::uint32_t>(candidate));
}

/// Finds shift and prefix such that exactly k of the n candidates have (candidate >> shift) >=
/// prefix: walks down from the top byte, counts how many of the candidates fall in each of 256
/// buckets, and keeps the bucket in which the k-th lies, until every candidate left is selected.
/// Ties only make it walk further. candidate_at(i): the i-th; n > k >= 1. kLanes: of the workgroup,
/// at least kBuckets.
template <int kLanes, class CandidateAt>
DSAKIT_DEVICE void find_threshold(SelectionLds& lds, int n, std::uint32_t k,
                                  const CandidateAt& candidate_at, int& shift,
                                  std::uint64_t& prefix) {
  static_assert(kLanes >= kBuckets, "a lane a bucket");
  const int lane = static_cast<int>(threadIdx.x);
  prefix = 0;
  for (shift = 56;; shift -= 8) {
    if (lane < kBuckets) lds.count[lane] = 0;
    __syncthreads(); // counters are zero before any lane counts
    for (int i = lane; i < n; i += kLanes) {
      const std::uint64_t c = candidate_at(i);
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
    __syncthreads(); // everybody has read, before the counters are cleared
    // At shift 0 a bucket holds one candidate, or several that are equal, which nobody may have.
    if (all_selected || shift == 0) return;
  }
}

/// Sorts the first `size` (a power of two) descending.
template <int kLanes>
DSAKIT_DEVICE void sort_descending(std::uint64_t* values, int size) {
  for (int width = 2; width <= size; width *= 2)
    for (int distance = width / 2; distance > 0; distance /= 2) {
      __syncthreads(); // the last exchanges are written
      for (int i = static_cast<int>(threadIdx.x); i < size; i += kLanes) {
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

/// Leaves the `wanted` candidates with (candidate >> shift) >= prefix in lds.selected, by rank or
/// by ascending position.
template <int kLanes, class CandidateAt>
DSAKIT_DEVICE void collect_in_order(SelectionLds& lds, int n, int wanted,
                                    const CandidateAt& candidate_at, int shift,
                                    std::uint64_t prefix, bool ascending) {
  const int lane = static_cast<int>(threadIdx.x);
  int size = 1;
  while (size < wanted)
    size *= 2;
  if (lane == 0) lds.filled = 0;
  for (int i = wanted + lane; i < size; i += kLanes)
    lds.selected[i] = 0; // below every candidate
  __syncthreads();       // the fill count is zero
  for (int i = lane; i < n; i += kLanes) {
    const std::uint64_t c = candidate_at(i);
    if (c >> shift < prefix) continue;
    const std::uint32_t place = lds_fetch_add(&lds.filled, 1);
    if (place < static_cast<std::uint32_t>(wanted)) // more only of equal candidates
      lds.selected[place] = ascending ? c & 0xFFFFFFFFu : c;
  }
  sort_descending<kLanes>(lds.selected, size);
}

} // namespace dsakit::optimized::DSAKIT_ARCH
