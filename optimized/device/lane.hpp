// What lanes do together: identity, reductions over groups of lanes, votes.
// Every lane of the wave takes part in each of these.
#pragma once

#include "device/vector.hpp"

#if !DSAKIT_NVIDIA
#include "device/amd/intrinsics.hpp"
#endif

namespace dsakit::optimized::DSAKIT_ARCH {

#if DSAKIT_NVIDIA
inline constexpr unsigned kAllLanes = 0xffffffffu;

DSAKIT_DEVICE int lane_id() {
  return static_cast<int>(threadIdx.x % kWaveSize);
}
DSAKIT_DEVICE int wave_id() {
  return static_cast<int>(threadIdx.x / kWaveSize);
}
DSAKIT_DEVICE bool any(bool predicate) {
  return __any_sync(kAllLanes, predicate) != 0;
}

/// The largest x of the 16 consecutive lanes that this lane belongs to.
DSAKIT_DEVICE std::uint32_t max_of_16(std::uint32_t x) {
  for (int step = 8; step > 0; step /= 2)
    x = max(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

/// x of lane (this lane ^ kMask).
template <int kMask>
DSAKIT_DEVICE float from_lane_xor(float x) {
  return __shfl_xor_sync(kAllLanes, x, kMask);
}
#else
DSAKIT_DEVICE int lane_id() {
  return amd::lane_id();
}
DSAKIT_DEVICE int wave_id() {
  return amd::readfirstlane(static_cast<int>(threadIdx.x) / kWaveSize);
}
DSAKIT_DEVICE bool any(bool predicate) {
  return amd::ballot(predicate) != 0;
}

namespace detail {
template <int N>
DSAKIT_DEVICE std::uint32_t max_with_ror(std::uint32_t x) {
  const auto other = static_cast<std::uint32_t>(amd::dpp_row_ror<N>(static_cast<int>(x)));
  return x > other ? x : other;
}
} // namespace detail

/// The largest x of the 16 consecutive lanes that this lane belongs to: one DPP row.
DSAKIT_DEVICE std::uint32_t max_of_16(std::uint32_t x) {
  x = detail::max_with_ror<8>(x);
  x = detail::max_with_ror<4>(x);
  x = detail::max_with_ror<2>(x);
  return detail::max_with_ror<1>(x);
}

/// x of lane (this lane ^ kMask).
template <int kMask>
DSAKIT_DEVICE float from_lane_xor(float x) {
  const auto other = amd::ds_bpermute((lane_id() ^ kMask) * 4, static_cast<int>(bits(x)));
  return from_bits(static_cast<std::uint32_t>(other));
}
#endif

} // namespace dsakit::optimized::DSAKIT_ARCH
