// What workgroups of one launch do together. The caches of MI300X's dies are not coherent for plain
// accesses, so what one workgroup wrote reaches another only through a release and an acquire of
// agent scope.
#pragma once

#include "device/lane.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {

namespace detail {
#if DSAKIT_NVIDIA
DSAKIT_DEVICE void release_fence() {
  __threadfence();
}
DSAKIT_DEVICE std::uint32_t atomic_add_acq_rel(std::uint32_t* counter, std::uint32_t x) {
  __threadfence();
  const std::uint32_t before = atomicAdd(counter, x);
  __threadfence();
  return before;
}
#else
DSAKIT_DEVICE void release_fence() {
  amd::fence_release_agent();
}
DSAKIT_DEVICE std::uint32_t atomic_add_acq_rel(std::uint32_t* counter, std::uint32_t x) {
  return amd::atomic_add_acq_rel_agent(counter, x);
}
#endif
} // namespace detail

/// Publishes what this workgroup has written and counts it in `arrived`, which starts at 0. True in
/// the workgroup that arrives last of `workgroups`, which then sees what all of them published.
/// Every lane calls it; `ticket` is a word of LDS.
DSAKIT_DEVICE bool arrives_last(std::uint32_t* arrived, std::uint32_t workgroups,
                                std::uint32_t& ticket) {
  detail::release_fence(); // every wave waits for its own writes
  __syncthreads();         // before the lane that publishes them
  if (threadIdx.x == 0) ticket = detail::atomic_add_acq_rel(arrived, 1);
  __syncthreads();
  return ticket + 1 == workgroups;
}

} // namespace dsakit::optimized::DSAKIT_ARCH
