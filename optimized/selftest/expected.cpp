#include "selftest/expected.hpp"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <limits>

namespace dsakit::optimized {
namespace {

constexpr unsigned kBlock = 256; // lanes of a workgroup of selftest.hip
constexpr unsigned kAllBf16 = 1 << 16;

std::uint32_t bits(float x) {
  return std::bit_cast<std::uint32_t>(x);
}
std::uint32_t bits(double x) {
  return bits(static_cast<float>(x));
}
float bf16(std::uint32_t h) {
  return std::bit_cast<float>(h << 16);
}
std::uint32_t hash(std::uint32_t i) {
  return (i + 1) * 2654435761u;
}

std::string lane_place(std::size_t i) {
  return "lane " + std::to_string(i);
}
std::string code_place(std::size_t i) {
  char text[32];
  std::snprintf(text, sizeof text, "code 0x%02x, byte %u", static_cast<unsigned>(i % 256),
                static_cast<unsigned>(i / 256));
  return text;
}
std::string bf16_place(std::size_t i) {
  char text[32];
  std::snprintf(text, sizeof text, "bf16 0x%04x", static_cast<unsigned>(i));
  return text;
}
std::string workgroup_place(std::size_t i) {
  return "workgroup " + std::to_string(i / kBlock) + ", lane " + std::to_string(i % kBlock);
}

template <class Value>
SelftestSection section(std::string primitive, std::string (*place)(std::size_t), std::size_t count,
                        Value value, bool floats = false) {
  SelftestSection result{std::move(primitive), place, floats, {}};
  for (std::size_t i = 0; i < count; ++i)
    result.values.push_back(value(static_cast<unsigned>(i)));
  return result;
}

SelftestCase lanes(Arch arch) {
  const bool amd = arch != Arch::sm_90;
  const unsigned wave = amd ? 64 : 32;
  SelftestCase c{"lanes", 1, 0, {}, {}};
  const auto add = [&](const std::string& primitive, auto value) {
    c.sections.push_back(section(primitive, lane_place, kBlock, value));
  };
  const auto add_float = [&](const std::string& primitive, auto value) {
    c.sections.push_back(section(primitive, lane_place, kBlock, value, true));
  };
  // fold over the lanes of a lane's wave for which same(its index, the other's index) holds.
  const auto gather = [wave](unsigned lane, auto same, auto fold) {
    float result = 0;
    for (unsigned other = lane / wave * wave; other < (lane / wave + 1) * wave; ++other)
      if (same(lane % wave, other % wave)) result = fold(result, static_cast<float>(other));
    return bits(result);
  };
  const auto sum = [](float a, float b) { return a + b; };
  const auto larger = [](float a, float b) { return std::max(a, b); };
  // Lanes that hold the same operand rows, and the same accumulator columns.
  const auto row = [amd](unsigned lane) { return amd ? lane % 16 : lane / 4; };
  const auto quarter = [amd](unsigned lane) { return amd ? lane / 16 : lane % 4; };
  const auto same_rows = [&](unsigned a, unsigned b) { return row(a) == row(b); };
  const auto same_columns = [&](unsigned a, unsigned b) {
    return amd ? a % 16 == b % 16 : a % 4 == b % 4;
  };

  add("lane_id", [&](unsigned i) { return i % wave; });
  add("wave_id", [&](unsigned i) { return i / wave; });
  add("any", [&](unsigned i) { return i / wave == (kBlock - 1) / wave ? 1u : 0u; });
  for (const unsigned lanes : {4u, 16u})
    add("max_of_" + std::to_string(lanes), [lanes](unsigned i) {
      std::uint32_t largest = 0;
      for (unsigned other = i / lanes * lanes; other < i / lanes * lanes + lanes; ++other)
        largest = std::max(largest, hash(other));
      return largest;
    });
  add_float("sum_of_16", [](unsigned) { return bits(65535.0f); });
  add_float("from_lane", [&](unsigned i) {
    const unsigned source = i / wave * wave + (5 * (i % wave) + 3) % wave;
    return bits(static_cast<float>(source));
  });
  for (const unsigned mask : {1u, 2u, 4u, 8u, 16u})
    add_float("from_lane_xor<" + std::to_string(mask) + ">",
              [mask](unsigned i) { return bits(static_cast<float>(i ^ mask)); });
  add("operand_row(first)", [&](unsigned i) { return row(i % wave); });
  add("operand_row(last)", [&](unsigned i) { return row(i % wave) + (amd ? 0 : 8); });
  add("operand_quarter", [&](unsigned i) { return quarter(i % wave); });
  add("stores_columns", [&](unsigned i) { return i % wave < (amd ? 16u : 4u) ? 1u : 0u; });
  add_float("sum_over_rows", [&](unsigned i) { return gather(i, same_columns, sum); });
  add_float("sum_over_quarters", [&](unsigned i) { return gather(i, same_rows, sum); });
  add_float("max_over_quarters", [&](unsigned i) { return gather(i, same_rows, larger); });
  // The row's last element is NaN, the one before is the largest magnitude.
  add_float("amax_of_row", [](unsigned i) {
    const unsigned last_lane = i / 16 * 16 + 15;
    return bits(static_cast<float>(last_lane * 8 + 6));
  });
  // Whole numbers, which the butterflies add exactly.
  for (unsigned element = 0; element < 8; ++element)
    add_float("rotate_row, element " + std::to_string(element), [element](unsigned i) {
      const unsigned place = i % 16 * 8 + element;
      int sum = 0;
      for (unsigned k = 0; k < 128; ++k) {
        const auto x = static_cast<int>((i / 16 * 128 + k) * 37 % 64);
        sum += std::popcount(place & k) % 2 == 0 ? x : -x;
      }
      return bits(static_cast<float>(sum) * static_cast<float>(1 / std::sqrt(128.0)));
    });
  return c;
}

SelftestCase memory() {
  SelftestCase c{"memory", 1, (4 + 2 + 3) * kBlock, {}, {}};
  for (unsigned i = 0; i < 4 * kBlock; ++i)
    c.input.push_back(hash(i));
  const auto mix = [](unsigned first, unsigned words) {
    std::uint32_t result = 0;
    for (unsigned i = 0; i < words; ++i)
      result += (2 * i + 1) * hash(first + i);
    return result;
  };
  const auto add = [&](const char* primitive, auto value) {
    c.sections.push_back(section(primitive, lane_place, kBlock, value));
  };
  add("load16", [&](unsigned i) { return mix(4 * i, 4); });
  add("load16_aligned4", [&](unsigned i) { return mix(i, 4); });
  add("store16", [&](unsigned i) { return mix(4 * (kBlock - 1 - i), 4); });
  add("store8", [&](unsigned i) { return mix(2 * (kBlock - 1 - i), 2); });
  add("store8_aligned4", [&](unsigned i) { return mix(2 * (kBlock - 1 - i), 2); });
  add("LDS across a barrier", [](unsigned i) { return hash(kBlock - 1 - i); });
  add("lds_fetch_add draws", [](unsigned) { return 1u; });
  add("lds_fetch_add total", [](unsigned) { return kBlock; });
  return c;
}

SelftestCase codes(Arch arch, bool fnuz) {
  const SelftestFp8 fp8 = selftest_fp8(arch, fnuz);
  const std::string encoding = fnuz ? "e4m3fnuz" : "e4m3fn";
  SelftestCase c{"codes_" + encoding, 4, 0, {}, {}};
  const auto add = [&](const char* primitive, bool floats, auto value) {
    c.sections.push_back(
        section(std::string(primitive) + " " + encoding, code_place, 4 * 256, value, floats));
  };
  // A code that the hardware does not read as its value times a power of two.
  const auto misread = [&](unsigned code) {
    if (fp8.native) return false;
    return (code & 0x7F) == 0x7F || (fnuz && code == 0x80);
  };
  add("fp8_to_float", true, [&](unsigned i) { return bits(fp8.value(i % 256)); });
  add("fp8_to_bf16", true, // exact, so the float's lower half is 0
      [&](unsigned i) { return bits(fp8.value(i % 256) * fp8.misread()); });
  add("readable_codes", false, [&](unsigned i) {
    const unsigned shift = 8 * (i / 256);
    const unsigned code = i % 256;
    const bool minus_zero = !fp8.native && !fnuz && code == 0x80; // FNUZ hardware reads it as NaN
    return (0x38383838u & ~(0xFFu << shift)) | (minus_zero ? 0 : code) << shift;
  });
  add("misread_codes", false, [&](unsigned i) { return misread(i % 256) ? 1u : 0u; });
  return c;
}

/// bf16 of the float whose upper half is h, by its two neighbours.
std::uint32_t round_to_bf16(std::uint32_t h, std::uint32_t below) {
  if (std::isnan(std::bit_cast<float>(h << 16 | below))) return h | 0x40;
  if (below == 0x8000) return h + (h & 1);
  return below > 0x8000 ? h + 1 : h;
}

/// The smallest e with amax <= qmax 2^e.
int exponent_of(float amax, float qmax) {
  int e = std::ilogb(amax) - std::ilogb(qmax) - 1;
  while (static_cast<double>(amax) > std::ldexp(static_cast<double>(qmax), e))
    ++e;
  return e;
}

/// Nearest e2m1 code by distance, ties to the even one.
std::uint32_t nearest_e2m1(float x) {
  if (std::isnan(x)) return 0;
  constexpr double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const double magnitude = std::fabs(static_cast<double>(x));
  unsigned best = 0;
  for (unsigned code = 1; code < 8; ++code) {
    const double distance = std::fabs(std::min(magnitude, 6.0) - values[code]);
    const double best_distance = std::fabs(std::min(magnitude, 6.0) - values[best]);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(x) ? 8u : 0u);
}

SelftestCase floats(Arch arch) {
  SelftestCase c{"floats", kAllBf16 / kBlock, 0, {}, {}};
  const auto add = [&](const std::string& primitive, bool floats, auto value) {
    c.sections.push_back(section(primitive, bf16_place, kAllBf16, value, floats));
  };
  add("bf16_to_float", true, [](unsigned h) { return bits(bf16(h)); });
  for (const auto& [name, below] : {std::pair{"exact", 0u},
                                    {"below the tie", 0x7FFFu},
                                    {"tie", 0x8000u},
                                    {"above the tie", 0x8001u}})
    add(std::string("float_to_bf16, ") + name, false,
        [below = below](unsigned h) { return round_to_bf16(h, below); });
  for (const bool fnuz : {false, true}) {
    const SelftestFp8 fp8 = selftest_fp8(arch, fnuz);
    std::vector<std::uint32_t> nearest(kAllBf16);
    for (unsigned h = 0; h < kAllBf16; ++h)
      nearest[h] = fp8.nearest(static_cast<double>(bf16(h)));
    add(std::string("convert_fp8 ") + (fnuz ? "e4m3fnuz" : "e4m3fn"), false, [&](unsigned h) {
      return nearest[h] | nearest[h ^ 1] << 8 | nearest[h ^ 2] << 16 | nearest[h ^ 3] << 24;
    });
  }
  for (const float qmax : {448.0f, 240.0f, 224.0f, 6.0f})
    add("scale_exponent, qmax " + std::to_string(static_cast<int>(qmax)), false,
        [qmax](unsigned h) {
          const std::uint32_t magnitude = h & 0x7FFF;
          const float amax = bf16(magnitude < 0x0500 || magnitude > 0x7F80 ? 0x0500 : magnitude);
          return static_cast<std::uint32_t>(exponent_of(std::isinf(amax) ? FLT_MAX : amax, qmax));
        });
  add("power_of_two", true,
      [](unsigned h) { return bits(std::ldexp(1.0, static_cast<int>(h % 254) - 126)); });
  add("convert_e2m1", false, [](unsigned h) { return nearest_e2m1(bf16(h)); });
  add("times_power_of_two", true, [](unsigned h) {
    const double quarters = (static_cast<int>(h % 4096) - 2048) / 4.0;
    return bits(std::ldexp(quarters, static_cast<int>(h / 7 % 601) - 300));
  });
  return c;
}

SelftestCase workgroups() {
  // More workgroups than an MI300X has compute units, so that every die takes part.
  constexpr std::int32_t count = 512;
  SelftestCase c{"workgroups", count, kBlock + count * kBlock, {}, {}};
  c.sections.push_back(section("arrives_last sees what other workgroups wrote", workgroup_place,
                               count * kBlock, [](unsigned i) { return hash(i) | 1u; }));
  return c;
}

} // namespace

SelftestFp8 selftest_fp8(Arch arch, bool fnuz) {
  return {fnuz, fnuz == (arch == Arch::gfx942)};
}

double SelftestFp8::value(unsigned code) const {
  const int exponent = static_cast<int>(code >> 3 & 15);
  const double mantissa = code & 7;
  const int bias = fnuz ? 8 : 7;
  if (fnuz ? code == 0x80 : (code & 0x7F) == 0x7F) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude =
      exponent ? std::ldexp(1 + mantissa / 8, exponent - bias) : std::ldexp(mantissa / 8, 1 - bias);
  return code & 0x80 ? -magnitude : magnitude;
}

unsigned SelftestFp8::nearest(double x) const {
  if (std::isnan(x)) return fnuz ? 0x80 : 0x7F;
  const unsigned largest = fnuz ? 0x7F : 0x7E;
  const double magnitude = std::min(std::fabs(x), value(largest));
  unsigned best = 0;
  for (unsigned code = 1; code <= largest && magnitude > 0; ++code) {
    const double distance = std::fabs(magnitude - value(code));
    const double best_distance = std::fabs(magnitude - value(best));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code;
  }
  if (best == 0 && fnuz) return 0;
  return std::signbit(x) ? best | 0x80 : best;
}

std::vector<SelftestCase> selftest_cases(Arch arch) {
  std::vector<SelftestCase> cases = {lanes(arch), memory(), codes(arch, false), codes(arch, true),
                                     floats(arch)};
  for (SelftestCase& matrix : selftest_matrix_cases(arch))
    cases.push_back(std::move(matrix));
  cases.push_back(workgroups());
  return cases;
}

} // namespace dsakit::optimized
