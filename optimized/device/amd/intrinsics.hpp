// Every AMD instruction that kernels use, one function each. On a GPU it is the compiler's builtin;
// on host lanes (device/host/models.hpp) a model of it under the same name.
#pragma once

#include "device/vector.hpp"

namespace dsakit::optimized::DSAKIT_ARCH::amd {

typedef float Float4 __attribute__((__vector_size__(16)));
typedef short Short4 __attribute__((__vector_size__(8)));
typedef int Int8 __attribute__((__vector_size__(32)));

} // namespace dsakit::optimized::DSAKIT_ARCH::amd

#if DSAKIT_HOST_LANES
#include "device/host/models.hpp"
#else

namespace dsakit::optimized::DSAKIT_ARCH::amd {

DSAKIT_DEVICE int lane_id() {
  return static_cast<int>(__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)));
}

/// The value of the wave's first lane; tells the compiler that it is uniform.
DSAKIT_DEVICE int readfirstlane(int x) {
  return __builtin_amdgcn_readfirstlane(x);
}

/// Bit l: lane l's predicate.
DSAKIT_DEVICE std::uint64_t ballot(bool predicate) {
  return __builtin_amdgcn_ballot_w64(predicate);
}

/// Lane l gets lane (byte_address / 4) % 64's x.
DSAKIT_DEVICE int ds_bpermute(int byte_address, int x) {
  return __builtin_amdgcn_ds_bpermute(byte_address, x);
}

/// Adds to a counter in LDS, and gives what it was.
DSAKIT_DEVICE std::uint32_t ds_add_rtn_u32(std::uint32_t* counter, std::uint32_t x) {
  return __hip_atomic_fetch_add(counter, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}

/// The wave's writes are done, and written back for the whole GPU, before what follows.
DSAKIT_DEVICE void fence_release_agent() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
}

/// Adds to a counter in memory, and gives what it was: acquire and release for the whole GPU, which
/// writes back and invalidates the caches that its dies do not share.
DSAKIT_DEVICE std::uint32_t atomic_add_acq_rel_agent(std::uint32_t* counter, std::uint32_t x) {
  return __hip_atomic_fetch_add(counter, x, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
}

/// DPP row_ror: inside each row of 16, lane l gets lane (l - N) % 16's x.
template <int N>
DSAKIT_DEVICE int dpp_row_ror(int x) {
  return __builtin_amdgcn_mov_dpp(x, 0x120 + N, 0xf, 0xf, true);
}

/// DPP quad_perm: lane l gets lane (l ^ kMask)'s x, kMask 1 to 3.
template <int kMask>
DSAKIT_DEVICE int dpp_quad_xor(int x) {
  constexpr int source_of_each = kMask | (1 ^ kMask) << 2 | (2 ^ kMask) << 4 | (3 ^ kMask) << 6;
  return __builtin_amdgcn_mov_dpp(x, source_of_each, 0xf, 0xf, true);
}

/// x * 2^e, rounded once.
DSAKIT_DEVICE float ldexp_f32(float x, int e) {
  return __builtin_amdgcn_ldexpf(x, e);
}

/// Two floats as e4m3 of the hardware's encoding in the low or high half of `old`, ties to even.
/// Beyond the largest finite value: not saturated. Clamp first.
template <bool kHigh>
DSAKIT_DEVICE int cvt_pk_fp8_f32(float a, float b, int old) {
  return __builtin_amdgcn_cvt_pk_fp8_f32(a, b, old, kHigh);
}

/// D[16 x 16] += A[16 x 32] B[32 x 16], e4m3 of the hardware's encoding, fp32 accumulator.
/// A: lane l holds row l % 16, k = 8 (l / 16) ... + 7. B: column l % 16, the same k.
/// D: register r of lane l is row 4 (l / 16) + r, column l % 16.
DSAKIT_DEVICE Float4 mfma_f32_16x16x32_fp8_fp8(std::uint64_t a, std::uint64_t b, Float4 c) {
  return __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(static_cast<long>(a), static_cast<long>(b), c,
                                                    0, 0, 0);
}

/// D[16 x 16] += A[16 x 16] B[16 x 16], bf16. Lane l holds row (column) l % 16, k = 4 (l / 16) ...
/// + 3.
DSAKIT_DEVICE Float4 mfma_f32_16x16x16_bf16(Short4 a, Short4 b, Float4 c) {
  return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0);
}

#if DSAKIT_MXFP4_HARDWARE
/// D[16 x 16] += A[16 x 128] B[128 x 16], MXFP4. Lane l holds row (column) l % 16, k = 32 (l / 16)
/// ...
/// + 31, two codes a byte, and in byte 0 of its scale the e8m0 of these 32.
DSAKIT_DEVICE Float4 mfma_scale_f32_16x16x128_fp4(const std::uint32_t (&a)[4],
                                                  const std::uint32_t (&b)[4], Float4 c,
                                                  std::uint32_t scale_a, std::uint32_t scale_b) {
  constexpr int fp4 = 4; // format; the upper half of an operand's registers is not read
  const auto operand = [](const std::uint32_t(&x)[4]) {
    return Int8{static_cast<int>(x[0]),
                static_cast<int>(x[1]),
                static_cast<int>(x[2]),
                static_cast<int>(x[3]),
                0,
                0,
                0,
                0};
  };
  return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(operand(a), operand(b), c, fp4, fp4, 0,
                                                          static_cast<int>(scale_a), 0,
                                                          static_cast<int>(scale_b));
}
#endif

} // namespace dsakit::optimized::DSAKIT_ARCH::amd

#endif
