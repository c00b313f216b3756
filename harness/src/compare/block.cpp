#include "block.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "dsakit/reference/formats.hpp"

namespace dsakit::harness {
namespace {

template <class Word>
Word load(const std::byte* bytes, std::int64_t i) {
  Word word;
  std::memcpy(&word, bytes + static_cast<std::size_t>(i) * sizeof(Word), sizeof(Word));
  return word;
}

template <class Word, class Value>
void decode_each(const std::byte* bytes, std::int64_t n, double* values, Value value) {
  for (std::int64_t i = 0; i < n; ++i)
    values[i] = value(load<Word>(bytes, i));
}

const std::array<double, 256>& fp8_values(Fp8Encoding encoding) {
  const auto make = [](Fp8Encoding of) {
    std::array<double, 256> values{};
    for (int code = 0; code < 256; ++code)
      values[static_cast<std::size_t>(code)] =
          reference::decode_fp8(of, static_cast<std::uint8_t>(code));
    return values;
  };
  static const std::array<double, 256> fn = make(Fp8Encoding::e4m3fn);
  static const std::array<double, 256> fnuz = make(Fp8Encoding::e4m3fnuz);
  return encoding == Fp8Encoding::e4m3fn ? fn : fnuz;
}

double exponent_value(std::uint8_t code) {
  return code == 0xFF ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, code - 127);
}

/// Sign and magnitude of a float's bits as one integer that grows with the value; both zeros are 0.
template <class Word>
std::int64_t ordered(Word bits) {
  constexpr Word sign = Word{1} << (8 * sizeof(Word) - 1);
  const auto magnitude = static_cast<std::int64_t>(bits & static_cast<Word>(sign - 1));
  return bits & sign ? -magnitude : magnitude;
}

template <class Word, class IsNan>
void steps_of(const std::byte* a, const std::byte* b, std::int64_t n, std::int64_t* steps,
              IsNan is_nan) {
  for (std::int64_t i = 0; i < n; ++i) {
    const Word x = load<Word>(a, i);
    const Word y = load<Word>(b, i);
    steps[i] = is_nan(x) || is_nan(y) ? -1 : std::abs(ordered(x) - ordered(y));
  }
}

/// Of an IEEE format whose infinity has the bits `infinity`.
template <class Word>
void ieee_steps(const std::byte* a, const std::byte* b, std::int64_t n, std::int64_t* steps,
                Word infinity) {
  constexpr auto magnitude = static_cast<Word>(static_cast<Word>(~Word{0}) >> 1);
  steps_of<Word>(a, b, n, steps, [infinity](Word bits) { return (bits & magnitude) > infinity; });
}

/// Steps between two e2m1 codes; those of one sign grow with the value.
std::int64_t fp4_steps(int a, int b) {
  const auto place = [](int code) { return code & 8 ? -(code & 7) : code & 7; };
  return std::abs(place(a) - place(b));
}

template <class Word>
void differ_each(const std::byte* a, const std::byte* b, std::int64_t n, std::uint8_t* differs) {
  for (std::int64_t i = 0; i < n; ++i)
    differs[i] = load<Word>(a, i) != load<Word>(b, i);
}

} // namespace

void decode(Dtype dtype, const std::byte* bytes, std::int64_t n, double* values) {
  switch (dtype) {
  case Dtype::bfloat16:
    return decode_each<std::uint16_t>(bytes, n, values, [](std::uint16_t bits) {
      return std::bit_cast<float>(std::uint32_t{bits} << 16);
    });
  case Dtype::float16:
    return decode_each<std::uint16_t>(bytes, n, values, reference::fp16_to_float);
  case Dtype::float8_e4m3fn:
  case Dtype::float8_e4m3fnuz: {
    const auto& of =
        fp8_values(dtype == Dtype::float8_e4m3fn ? Fp8Encoding::e4m3fn : Fp8Encoding::e4m3fnuz);
    return decode_each<std::uint8_t>(bytes, n, values, [&](std::uint8_t code) { return of[code]; });
  }
  case Dtype::float8_e8m0fnu:
    return decode_each<std::uint8_t>(bytes, n, values, exponent_value);
  case Dtype::float32:
    return decode_each<float>(bytes, n, values, [](float value) { return value; });
  case Dtype::int32:
    return decode_each<std::int32_t>(bytes, n, values, [](std::int32_t value) { return value; });
  case Dtype::int64:
    return decode_each<std::int64_t>(bytes, n, values,
                                     [](std::int64_t value) { return static_cast<double>(value); });
  case Dtype::float4_e2m1fn_x2:
  case Dtype::uint8:
    return decode_each<std::uint8_t>(bytes, n, values, [](std::uint8_t value) { return value; });
  }
}

bool steps_between(Dtype dtype, const std::byte* a, const std::byte* b, std::int64_t n,
                   std::int64_t* steps) {
  switch (dtype) {
  case Dtype::bfloat16:
    ieee_steps<std::uint16_t>(a, b, n, steps, 0x7F80);
    return true;
  case Dtype::float16:
    ieee_steps<std::uint16_t>(a, b, n, steps, 0x7C00);
    return true;
  case Dtype::float32:
    ieee_steps<std::uint32_t>(a, b, n, steps, 0x7F800000);
    return true;
  case Dtype::float8_e4m3fn:
    steps_of<std::uint8_t>(a, b, n, steps, [](std::uint8_t code) { return (code & 0x7F) == 0x7F; });
    return true;
  case Dtype::float8_e4m3fnuz:
    steps_of<std::uint8_t>(a, b, n, steps, [](std::uint8_t code) { return code == 0x80; });
    return true;
  case Dtype::float8_e8m0fnu:
    for (std::int64_t i = 0; i < n; ++i) {
      const int x = load<std::uint8_t>(a, i);
      const int y = load<std::uint8_t>(b, i);
      steps[i] = x == 0xFF || y == 0xFF ? -1 : std::abs(x - y);
    }
    return true;
  case Dtype::float4_e2m1fn_x2:
    for (std::int64_t i = 0; i < n; ++i) {
      const int x = load<std::uint8_t>(a, i);
      const int y = load<std::uint8_t>(b, i);
      steps[i] = std::max(fp4_steps(x & 15, y & 15), fp4_steps(x >> 4, y >> 4));
    }
    return true;
  case Dtype::int32:
  case Dtype::int64:
  case Dtype::uint8:
    return false;
  }
  return false;
}

void differ(Dtype dtype, const std::byte* a, const std::byte* b, std::int64_t n,
            std::uint8_t* differs) {
  switch (size_of(dtype)) {
  case 1:
    return differ_each<std::uint8_t>(a, b, n, differs);
  case 2:
    return differ_each<std::uint16_t>(a, b, n, differs);
  case 4:
    return differ_each<std::uint32_t>(a, b, n, differs);
  default:
    return differ_each<std::uint64_t>(a, b, n, differs);
  }
}

} // namespace dsakit::harness
