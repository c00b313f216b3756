#include "device/host/mfma.hpp"

#include <bit>
#include <cstring>
#include <limits>

namespace dsakit::optimized::host {
namespace {

typedef float Row __attribute__((vector_size(64))); // 16 columns

struct Operands {
  alignas(64) float a[32][16]; // [k][row]
  alignas(64) float b[32][16]; // [k][column]
};

/// D += A B, D row i in register i % 4 of lanes 16 (i / 4) ... + 15.
DSAKIT_ALWAYS_INLINE void multiply(const Operands& operands, int depth, float (&acc)[4][64]) {
  for (int first = 0; first < 16; first += 4) {
    Row row[4];
    for (int r = 0; r < 4; ++r)
      std::memcpy(&row[r], &acc[r][4 * first], sizeof(Row));
    for (int k = 0; k < depth; ++k) {
      Row b;
      std::memcpy(&b, operands.b[k], sizeof b);
      for (int r = 0; r < 4; ++r) {
        const float a = operands.a[k][first + r];
        for (int j = 0; j < 16; ++j)
          row[r][j] = __builtin_fmaf(a, b[j], row[r][j]);
      }
    }
    for (int r = 0; r < 4; ++r)
      std::memcpy(&acc[r][4 * first], &row[r], sizeof(Row));
  }
}

__attribute__((target("arch=x86-64-v4"))) void multiply_512(const Operands& operands, int depth,
                                                            float (&acc)[4][64]) {
  multiply(operands, depth, acc);
}
void multiply_256(const Operands& operands, int depth, float (&acc)[4][64]) {
  multiply(operands, depth, acc);
}

using Multiply = void (*)(const Operands&, int, float (&)[4][64]);
const Multiply kMultiply = __builtin_cpu_supports("x86-64-v4") ? multiply_512 : multiply_256;

/// Values of all 256 codes.
struct CodeTable {
  float value[256];
  explicit CodeTable(Fp8Encoding encoding) {
    const bool ocp = encoding == Fp8Encoding::e4m3fn;
    for (unsigned code = 0; code < 256; ++code) {
      const int exponent = static_cast<int>(code >> 3 & 15);
      const auto mantissa = static_cast<float>(code & 7);
      const int bias = ocp ? 7 : 8;
      float v =
          exponent ? std::bit_cast<float>(static_cast<std::uint32_t>(exponent - bias + 127) << 23) *
                         (1 + mantissa / 8)
                   : mantissa / 8 * (ocp ? 0x1p-6f : 0x1p-7f);
      if (code & 0x80u) v = -v;
      const bool nan = ocp ? (code & 0x7Fu) == 0x7Fu : code == 0x80u;
      value[code] = nan ? std::numeric_limits<float>::quiet_NaN() : v;
    }
  }
};
const CodeTable kOcpCodes(Fp8Encoding::e4m3fn);
const CodeTable kFnuzCodes(Fp8Encoding::e4m3fnuz);

} // namespace

void mfma_16x16x32_fp8(Exchange& exchange, Fp8Encoding encoding) {
  const float* value = (encoding == Fp8Encoding::e4m3fn ? kOcpCodes : kFnuzCodes).value;
  Operands operands;
  for (int group = 0; group < 4; ++group)
    for (int i = 0; i < 16; ++i) {
      const std::uint64_t a = exchange.word[0][16 * group + i];
      const std::uint64_t b = exchange.word[1][16 * group + i];
      for (int q = 0; q < 8; ++q) {
        operands.a[8 * group + q][i] = value[a >> 8 * q & 0xFF];
        operands.b[8 * group + q][i] = value[b >> 8 * q & 0xFF];
      }
    }
  kMultiply(operands, 32, exchange.acc);
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
  kMultiply(operands, 16, exchange.acc);
}

} // namespace dsakit::optimized::host
