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

/// Adds to a counter in LDS, and gives what it was.
DSAKIT_DEVICE std::uint32_t lds_fetch_add(std::uint32_t* counter, std::uint32_t x) {
  return atomicAdd(counter, x);
}

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

/// The largest x of the 4 consecutive lanes that this lane belongs to.
DSAKIT_DEVICE std::uint32_t max_of_4(std::uint32_t x) {
  x = max(x, __shfl_xor_sync(kAllLanes, x, 1));
  return max(x, __shfl_xor_sync(kAllLanes, x, 2));
}

/// The sum of x over these 16 lanes: the same bits in each of them.
DSAKIT_DEVICE float sum_of_16(float x) {
  for (int step = 8; step > 0; step /= 2)
    x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

/// x of lane (this lane ^ kMask).
template <int kMask>
DSAKIT_DEVICE float from_lane_xor(float x) {
  return __shfl_xor_sync(kAllLanes, x, kMask);
}

/// x of lane `source`.
DSAKIT_DEVICE float from_lane(int source, float x) {
  return __shfl_sync(kAllLanes, x, source);
}
DSAKIT_DEVICE std::uint32_t from_lane(int source, std::uint32_t x) {
  return __shfl_sync(kAllLanes, x, source);
}
#else
DSAKIT_DEVICE std::uint32_t lds_fetch_add(std::uint32_t* counter, std::uint32_t x) {
  return amd::ds_add_rtn_u32(counter, x);
}

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
template <int kMask>
DSAKIT_DEVICE std::uint32_t max_with_xor(std::uint32_t x) {
  const auto other = static_cast<std::uint32_t>(amd::dpp_quad_xor<kMask>(static_cast<int>(x)));
  return x > other ? x : other;
}
template <int N>
DSAKIT_DEVICE float add_ror(float x) {
  return x + from_bits(static_cast<std::uint32_t>(amd::dpp_row_ror<N>(static_cast<int>(bits(x)))));
}
} // namespace detail

/// The largest x of the 16 consecutive lanes that this lane belongs to: one DPP row.
DSAKIT_DEVICE std::uint32_t max_of_16(std::uint32_t x) {
  x = detail::max_with_ror<8>(x);
  x = detail::max_with_ror<4>(x);
  x = detail::max_with_ror<2>(x);
  return detail::max_with_ror<1>(x);
}

/// The largest x of the 4 consecutive lanes that this lane belongs to.
DSAKIT_DEVICE std::uint32_t max_of_4(std::uint32_t x) {
  return detail::max_with_xor<2>(detail::max_with_xor<1>(x));
}

/// The sum of x over these 16 lanes: the same bits in each of them, since every step adds the same
/// two numbers in both of the lanes that exchange them.
DSAKIT_DEVICE float sum_of_16(float x) {
  x = detail::add_ror<8>(x);
  x = detail::add_ror<4>(x);
  x = detail::add_ror<2>(x);
  return detail::add_ror<1>(x);
}

/// x of lane `source`.
DSAKIT_DEVICE std::uint32_t from_lane(int source, std::uint32_t x) {
  return static_cast<std::uint32_t>(amd::ds_bpermute(source * 4, static_cast<int>(x)));
}
DSAKIT_DEVICE float from_lane(int source, float x) {
  return from_bits(from_lane(source, bits(x)));
}

/// x of lane (this lane ^ kMask).
template <int kMask>
DSAKIT_DEVICE float from_lane_xor(float x) {
  if constexpr (kMask < 4)
    return from_bits(
        static_cast<std::uint32_t>(amd::dpp_quad_xor<kMask>(static_cast<int>(bits(x)))));
  else
    return from_lane(lane_id() ^ kMask, x);
}
#endif

} // namespace dsakit::optimized::DSAKIT_ARCH
