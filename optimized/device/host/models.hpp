// CPU models of the AMD instructions in device/amd/intrinsics.hpp, under the same names.
// Written from the instructions' published definitions (AMD Instinct MI300 ISA; lane maps of the
// AMD matrix instruction calculator), not from our kernels: tests pin them to numbers from there.
#pragma once

#include "device/host/conversions.hpp"
#include "device/host/mfma.hpp"

namespace dsakit::optimized::DSAKIT_ARCH::amd {

using host::current;
using host::Exchange;

DSAKIT_DEVICE int lane_id() {
  return current->lane() % kWaveSize;
}

namespace model {

/// Leaves x in this lane's word of the exchange, runs op(exchange) once all lanes have, and returns
/// what it left there.
template <class Op>
DSAKIT_DEVICE std::uint64_t exchange_word(host::OperationId id, std::uint64_t x, Op op) {
  const int lane = lane_id();
  current->exchange().word[0][lane] = x;
  current->wave_operation(id, op);
  return current->exchange().word[0][lane];
}

template <class Op>
DSAKIT_DEVICE Float4 multiply_accumulate(host::OperationId id, std::uint64_t a, std::uint64_t b,
                                         Float4 c, Op op) {
  const int lane = lane_id();
  Exchange& exchange = current->exchange();
  exchange.word[0][lane] = a;
  exchange.word[1][lane] = b;
  for (int r = 0; r < 4; ++r)
    exchange.acc[r][lane] = c[r];
  current->wave_operation(id, op);
  return Float4{exchange.acc[0][lane], exchange.acc[1][lane], exchange.acc[2][lane],
                exchange.acc[3][lane]};
}

} // namespace model

DSAKIT_DEVICE int readfirstlane(int x) {
  return static_cast<int>(
      model::exchange_word("v_readfirstlane_b32", static_cast<std::uint32_t>(x), [](Exchange& e) {
        for (auto& word : e.word[0])
          word = e.word[0][0];
      }));
}

DSAKIT_DEVICE std::uint64_t ballot(bool predicate) {
  return model::exchange_word("ballot", predicate, [](Exchange& e) {
    std::uint64_t mask = 0;
    for (int l = 0; l < kWaveSize; ++l)
      mask |= e.word[0][l] << l;
    for (auto& word : e.word[0])
      word = mask;
  });
}

DSAKIT_DEVICE int ds_bpermute(int byte_address, int x) {
  const std::uint64_t source = static_cast<std::uint32_t>(byte_address) / 4 % kWaveSize;
  return static_cast<int>(model::exchange_word(
      "ds_bpermute_b32", source << 32 | static_cast<std::uint32_t>(x), [](Exchange& e) {
        std::uint64_t result[kWaveSize];
        for (int l = 0; l < kWaveSize; ++l)
          result[l] = static_cast<std::uint32_t>(e.word[0][e.word[0][l] >> 32]);
        for (int l = 0; l < kWaveSize; ++l)
          e.word[0][l] = result[l];
      }));
}

DSAKIT_DEVICE std::uint32_t ds_add_rtn_u32(std::uint32_t* counter, std::uint32_t x) {
  const std::uint32_t before = *counter; // lanes take turns: nothing comes between
  *counter = before + x;
  return before;
}

DSAKIT_DEVICE void fence_release_agent() {
  __atomic_thread_fence(__ATOMIC_RELEASE);
}

DSAKIT_DEVICE std::uint32_t atomic_add_acq_rel_agent(std::uint32_t* counter, std::uint32_t x) {
  return __atomic_fetch_add(counter, x, __ATOMIC_ACQ_REL); // workgroups run on several threads
}

template <int N>
DSAKIT_DEVICE int dpp_row_ror(int x) {
  return static_cast<int>(
      model::exchange_word("dpp row_ror", static_cast<std::uint32_t>(x), [](Exchange& e) {
        std::uint64_t result[kWaveSize];
        for (int l = 0; l < kWaveSize; ++l)
          result[l] = e.word[0][l / 16 * 16 + (l % 16 + 16 - N) % 16];
        for (int l = 0; l < kWaveSize; ++l)
          e.word[0][l] = result[l];
      }));
}

template <int kMask>
DSAKIT_DEVICE int dpp_quad_xor(int x) {
  return static_cast<int>(
      model::exchange_word("dpp quad_perm", static_cast<std::uint32_t>(x), [](Exchange& e) {
        std::uint64_t result[kWaveSize];
        for (int l = 0; l < kWaveSize; ++l)
          result[l] = e.word[0][l ^ kMask];
        for (int l = 0; l < kWaveSize; ++l)
          e.word[0][l] = result[l];
      }));
}

DSAKIT_DEVICE float ldexp_f32(float x, int e) {
  // In double the product is exact wherever it is not far beyond what a float holds.
  const std::int64_t exponent = e < -1000 ? -1000 : e > 1000 ? 1000 : e;
  const std::int64_t power_bits = (exponent + 1023) << 52;
  double power;
  __builtin_memcpy(&power, &power_bits, sizeof power);
  return static_cast<float>(static_cast<double>(x) * power);
}

template <bool kHigh>
DSAKIT_DEVICE int cvt_pk_fp8_f32(float a, float b, int old) {
  const std::uint32_t pair = host::convert_fp8(a, kNativeFp8) |
                             static_cast<std::uint32_t>(host::convert_fp8(b, kNativeFp8)) << 8;
  const auto bits = static_cast<std::uint32_t>(old);
  return static_cast<int>(kHigh ? (bits & 0x0000FFFFu) | pair << 16 : (bits & 0xFFFF0000u) | pair);
}

DSAKIT_DEVICE Float4 mfma_f32_16x16x32_fp8_fp8(std::uint64_t a, std::uint64_t b, Float4 c) {
  return model::multiply_accumulate("v_mfma_f32_16x16x32_fp8_fp8", a, b, c,
                                    [](Exchange& e) { host::mfma_16x16x32_fp8(e, kNativeFp8); });
}

DSAKIT_DEVICE Float4 mfma_f32_16x16x16_bf16(Short4 a, Short4 b, Float4 c) {
  std::uint64_t a4;
  std::uint64_t b4;
  __builtin_memcpy(&a4, &a, sizeof a4);
  __builtin_memcpy(&b4, &b, sizeof b4);
  return model::multiply_accumulate("v_mfma_f32_16x16x16_bf16", a4, b4, c,
                                    host::mfma_16x16x16_bf16);
}

#if DSAKIT_MXFP4_HARDWARE
DSAKIT_DEVICE Float4 mfma_scale_f32_16x16x128_fp4(const std::uint32_t (&a)[4],
                                                  const std::uint32_t (&b)[4], Float4 c,
                                                  std::uint32_t scale_a, std::uint32_t scale_b) {
  const auto pair = [](std::uint32_t low, std::uint32_t high) {
    return low | static_cast<std::uint64_t>(high) << 32;
  };
  const int lane = lane_id();
  Exchange& exchange = current->exchange();
  exchange.word[2][lane] = pair(a[2], a[3]);
  exchange.word[3][lane] = pair(b[2], b[3]);
  exchange.word[4][lane] = pair(scale_a, scale_b);
  return model::multiply_accumulate("v_mfma_scale_f32_16x16x128_f8f6f4", pair(a[0], a[1]),
                                    pair(b[0], b[1]), c, host::mfma_scale_16x16x128_fp4);
}
#endif

} // namespace dsakit::optimized::DSAKIT_ARCH::amd
