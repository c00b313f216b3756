#include "device/host/mfma.hpp"

#include <immintrin.h>

#include <bit>
#include <cstring>
#include <limits>

namespace dsakit::optimized::host {
namespace {

struct Operands {
  alignas(64) float a[32][16]; // [k][row]
  alignas(64) float b[32][16]; // [k][column]
};

// D += A B, one fused multiply-add a step. D's row i is register i % 4 of lanes 16 (i / 4) ...
// + 15. Both give the same bits; the wider one is chosen at run time.
using Multiply = void (*)(const Operands&, int depth, float (&acc)[4][64]);

void multiply_avx2(const Operands& operands, int depth, float (&acc)[4][64]) {
  for (int first = 0; first < 16; first += 4) {
    __m256 row[4][2];
    for (int r = 0; r < 4; ++r)
      for (int half = 0; half < 2; ++half)
        row[r][half] = _mm256_load_ps(&acc[r][4 * first + 8 * half]);
    for (int k = 0; k < depth; ++k)
      for (int half = 0; half < 2; ++half) {
        const __m256 b = _mm256_load_ps(&operands.b[k][8 * half]);
        for (int r = 0; r < 4; ++r)
          row[r][half] =
              _mm256_fmadd_ps(_mm256_broadcast_ss(&operands.a[k][first + r]), b, row[r][half]);
      }
    for (int r = 0; r < 4; ++r)
      for (int half = 0; half < 2; ++half)
        _mm256_store_ps(&acc[r][4 * first + 8 * half], row[r][half]);
  }
}

__attribute__((target("avx512f"))) void multiply_avx512(const Operands& operands, int depth,
                                                        float (&acc)[4][64]) {
  __m512 row[16];
  for (int i = 0; i < 16; ++i)
    row[i] = _mm512_load_ps(&acc[i % 4][16 * (i / 4)]);
  for (int k = 0; k < depth; ++k) {
    const __m512 b = _mm512_load_ps(operands.b[k]);
    for (int i = 0; i < 16; ++i)
      row[i] = _mm512_fmadd_ps(_mm512_set1_ps(operands.a[k][i]), b, row[i]);
  }
  for (int i = 0; i < 16; ++i)
    _mm512_store_ps(&acc[i % 4][16 * (i / 4)], row[i]);
}

const Multiply multiply = __builtin_cpu_supports("avx512f") ? multiply_avx512 : multiply_avx2;

/// Eight bytes of each of 16 lanes, as byte q of every lane in codes[q].
void transpose_bytes(const std::uint64_t* lanes, __m128i (&codes)[8]) {
  __m128i low[8];
  for (int i = 0; i < 8; ++i)
    low[i] = _mm_unpacklo_epi8(_mm_cvtsi64_si128(static_cast<long long>(lanes[i])),
                               _mm_cvtsi64_si128(static_cast<long long>(lanes[i + 8])));
  // Each round interleaves the lanes half as far apart, until a vector holds one byte of all 16.
  for (int width = 4; width > 0; width /= 2) {
    __m128i next[8];
    for (int i = 0; i < 8; ++i) {
      const int part = i / (2 * width); // bytes that the earlier rounds have split off
      const int lane = i % (2 * width);
      if (lane >= width) continue;
      const __m128i x = low[part * 2 * width + lane];
      const __m128i y = low[part * 2 * width + lane + width];
      next[2 * part * width + lane] = _mm_unpacklo_epi8(x, y);
      next[(2 * part + 1) * width + lane] = _mm_unpackhi_epi8(x, y);
    }
    for (int i = 0; i < 8; ++i)
      low[i] = next[i];
  }
  for (int q = 0; q < 8; ++q)
    codes[q] = low[q];
}

/// Values of eight codes, each in the low byte of a 32-bit element.
template <Fp8Encoding kEncoding>
__m256 decode(__m256i code) {
  constexpr bool ocp = kEncoding == Fp8Encoding::e4m3fn;
  // Exponent and mantissa on top of a float's, then its bias; subnormals come out right.
  const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi32(0x7F));
  const __m256 value = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20)),
                                     _mm256_set1_ps(ocp ? 0x1p120f : 0x1p119f));
  const __m256i sign = _mm256_slli_epi32(_mm256_xor_si256(code, magnitude), 24);
  const __m256i nan = ocp ? _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7F))
                          : _mm256_cmpeq_epi32(code, _mm256_set1_epi32(0x80));
  return _mm256_or_ps(value, _mm256_castsi256_ps(_mm256_or_si256(sign, nan)));
}

/// Values of the codes that 64 lanes hold, 8 each, as [k][row]: lane l has row l % 16.
template <Fp8Encoding kEncoding>
void decode_operand(const std::uint64_t (&lanes)[64], float (&values)[32][16]) {
  for (int group = 0; group < 4; ++group) {
    __m128i codes[8];
    transpose_bytes(&lanes[16 * group], codes);
    for (int q = 0; q < 8; ++q) {
      float* row = values[8 * group + q];
      _mm256_store_ps(row, decode<kEncoding>(_mm256_cvtepu8_epi32(codes[q])));
      _mm256_store_ps(row + 8,
                      decode<kEncoding>(_mm256_cvtepu8_epi32(_mm_srli_si128(codes[q], 8))));
    }
  }
}

template <Fp8Encoding kEncoding>
void multiply_fp8(Exchange& exchange) {
  Operands operands;
  decode_operand<kEncoding>(exchange.word[0], operands.a);
  decode_operand<kEncoding>(exchange.word[1], operands.b);
  multiply(operands, 32, exchange.acc);
}

/// Values of the 32 codes that each of 16 lanes holds, as [k][lane].
void decode_e2m1(const std::uint64_t* low, const std::uint64_t* high, float (&values)[32][16]) {
  alignas(32) std::uint32_t words[4][16];
  for (int i = 0; i < 16; ++i) {
    words[0][i] = static_cast<std::uint32_t>(low[i]);
    words[1][i] = static_cast<std::uint32_t>(low[i] >> 32);
    words[2][i] = static_cast<std::uint32_t>(high[i]);
    words[3][i] = static_cast<std::uint32_t>(high[i] >> 32);
  }
  const __m256 magnitudes = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
  for (int k = 0; k < 32; ++k)
    for (int half = 0; half < 2; ++half) {
      const __m256i word =
          _mm256_load_si256(reinterpret_cast<const __m256i*>(&words[k / 8][8 * half]));
      // The permutation looks at three bits of its index: the magnitude.
      const __m256i code = _mm256_srli_epi32(word, 4 * (k % 8));
      const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(8)), 28);
      _mm256_store_ps(&values[k][8 * half], _mm256_or_ps(_mm256_permutevar8x32_ps(magnitudes, code),
                                                         _mm256_castsi256_ps(sign)));
    }
}

/// 2^(b - 127) of the lowest byte b; NaN for 0xFF.
double e8m0_value(std::uint64_t word) {
  const std::uint64_t byte = word & 0xFF;
  if (byte == 0xFF) return std::numeric_limits<double>::quiet_NaN();
  return std::bit_cast<double>((byte + 1023 - 127) << 52);
}

} // namespace

void mfma_16x16x32_fp8(Exchange& exchange, Fp8Encoding encoding) {
  if (encoding == Fp8Encoding::e4m3fn)
    multiply_fp8<Fp8Encoding::e4m3fn>(exchange);
  else
    multiply_fp8<Fp8Encoding::e4m3fnuz>(exchange);
}

void mfma_16x16x16_bf16(Exchange& exchange) {
  const auto value = [](std::uint64_t packed, int q) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(packed >> 16 * q & 0xFFFF) << 16);
  };
  Operands operands;
  for (int group = 0; group < 4; ++group)
    for (int i = 0; i < 16; ++i)
      for (int q = 0; q < 4; ++q) {
        operands.a[4 * group + q][i] = value(exchange.word[0][16 * group + i], q);
        operands.b[4 * group + q][i] = value(exchange.word[1][16 * group + i], q);
      }
  multiply(operands, 16, exchange.acc);
}

void mfma_scale_16x16x128_fp4(Exchange& exchange) {
  alignas(64) float dot[4][64];
  for (int group = 0; group < 4; ++group) {
    Operands operands;
    const int first = 16 * group;
    decode_e2m1(&exchange.word[0][first], &exchange.word[2][first], operands.a);
    decode_e2m1(&exchange.word[1][first], &exchange.word[3][first], operands.b);
    std::memset(dot, 0, sizeof dot);
    multiply(operands, 32, dot);

    double scale_a[16];
    double scale_b[16];
    for (int i = 0; i < 16; ++i) {
      scale_a[i] = e8m0_value(exchange.word[4][first + i]);
      scale_b[i] = e8m0_value(exchange.word[4][first + i] >> 32);
    }
    for (int r = 0; r < 4; ++r)
      for (int lane = 0; lane < 64; ++lane)
        exchange.acc[r][lane] +=
            static_cast<float>(static_cast<double>(dot[r][lane]) *
                               (scale_a[4 * (lane / 16) + r] * scale_b[lane % 16]));
  }
}

} // namespace dsakit::optimized::host
