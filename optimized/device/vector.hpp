// Short vectors and 16-byte memory accesses.
#pragma once

#include <cstdint>

#include "device/target.hpp"

namespace dsakit::optimized::DSAKIT_ARCH {

/// 16 bytes: the widest access of one lane.
struct alignas(16) Bytes16 {
  std::uint32_t word[4];
};
struct alignas(8) Bytes8 {
  std::uint32_t word[2];
};

DSAKIT_DEVICE Bytes16 load16(const void* p) {
  return *static_cast<const Bytes16*>(p);
}
DSAKIT_DEVICE void store16(void* p, Bytes16 v) {
  *static_cast<Bytes16*>(p) = v;
}

DSAKIT_DEVICE void store8(void* p, Bytes8 v) {
  *static_cast<Bytes8*>(p) = v;
}

/// 16 bytes at a multiple of 4: index cache pages of odd sizes start anywhere. AMD loads them in
/// one instruction all the same; NVIDIA only where the address allows it.
DSAKIT_DEVICE Bytes16 load16_aligned4(const void* p) {
#if DSAKIT_NVIDIA
  if (reinterpret_cast<std::uintptr_t>(p) % 16 == 0) return load16(p);
  const auto* word = static_cast<const std::uint32_t*>(p);
  return {{word[0], word[1], word[2], word[3]}};
#else
  Bytes16 v;
  __builtin_memcpy(&v, __builtin_assume_aligned(p, 4), sizeof v);
  return v;
#endif
}

/// 8 bytes at a multiple of 4.
DSAKIT_DEVICE void store8_aligned4(void* p, Bytes8 v) {
#if DSAKIT_NVIDIA
  if (reinterpret_cast<std::uintptr_t>(p) % 8 == 0) {
    *static_cast<Bytes8*>(p) = v;
    return;
  }
  auto* word = static_cast<std::uint32_t*>(p);
  word[0] = v.word[0];
  word[1] = v.word[1];
#else
  __builtin_memcpy(__builtin_assume_aligned(p, 4), &v, sizeof v);
#endif
}

DSAKIT_DEVICE std::uint32_t bits(float x) {
  std::uint32_t b;
  __builtin_memcpy(&b, &x, sizeof b);
  return b;
}
DSAKIT_DEVICE float from_bits(std::uint32_t b) {
  float x;
  __builtin_memcpy(&x, &b, sizeof x);
  return x;
}

/// bf16 in the low 16 bits.
DSAKIT_DEVICE float bf16_to_float(std::uint32_t b) {
  return from_bits(b << 16);
}
/// bf16 bits of the nearest, ties to even; NaN stays NaN.
DSAKIT_DEVICE std::uint32_t float_to_bf16(float x) {
  const std::uint32_t b = bits(x);
  if (x != x) return b >> 16 | 0x40u;
  return (b + 0x7FFFu + (b >> 16 & 1u)) >> 16;
}

/// The 8 bf16 of 16 bytes.
DSAKIT_DEVICE void unpack_bf16(const Bytes16& raw, float (&x)[8]) {
  for (int i = 0; i < 8; ++i)
    x[i] = bf16_to_float(raw.word[i / 2] >> 16 * (i % 2) & 0xFFFFu);
}

} // namespace dsakit::optimized::DSAKIT_ARCH
