#include "draws.hpp"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

#include "dsakit/reference/formats.hpp"
#include "philox.hpp"

namespace dsakit::harness {
namespace {

constexpr std::pair<const char*, Distribution> kDistributions[] = {
    {"normal", Distribution::normal}, {"outliers", Distribution::outliers},
    {"ties", Distribution::ties},     {"narrow", Distribution::narrow},
    {"zeros", Distribution::zeros},   {"extreme", Distribution::extreme}};

constexpr std::uint64_t kShared = std::uint64_t{1} << 63; ///< first index of what rows share

PhiloxCounter block(std::uint64_t seed, std::uint32_t stream, std::uint64_t i) {
  return philox4x32_10(
      {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32), stream, 0},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
}

} // namespace

std::optional<Distribution> parse_distribution(std::string_view text) {
  for (const auto& [name, distribution] : kDistributions)
    if (text == name) return distribution;
  return std::nullopt;
}

std::string distribution_names() {
  std::string names;
  for (const auto& [name, distribution] : kDistributions)
    names += (names.empty() ? "" : " | ") + std::string(name);
  return names;
}

std::uint32_t Draws::bits(std::uint64_t i) const {
  return block(seed_, stream_, i / 4)[i % 4];
}

double Draws::normal(std::uint64_t i) const {
  const PhiloxCounter words = block(seed_, stream_, i / 4);
  const std::size_t pair = i % 4 / 2 * 2;
  const double u = (words[pair] + 0.5) * 0x1p-32; // never 0
  const double angle = 2 * std::numbers::pi * words[pair + 1] * 0x1p-32;
  return std::sqrt(-2 * std::log(u)) * (i % 2 ? std::sin(angle) : std::cos(angle));
}

double Draws::element(Distribution distribution, std::uint64_t row, std::uint64_t column,
                      std::uint64_t width) const {
  const std::uint64_t i = row * width + column;
  switch (distribution) {
  case Distribution::normal:
    return normal(i);
  case Distribution::outliers:
    return normal(i) * (bits(kShared + column) % 64 == 0 ? 20 : 1);
  case Distribution::ties:
    return normal(bits(kShared + row) % 8 * width + column);
  case Distribution::narrow:
    return normal(kShared + column) + 0x1p-7 * normal(i);
  case Distribution::zeros:
    return bits(kShared + row) % 8 == 0 ? normal(i) : 0;
  case Distribution::extreme:
    return std::ldexp(normal(i), static_cast<int>(bits(kShared + row) % 61) - 40);
  }
  return 0;
}

std::vector<std::int32_t> Draws::permutation(std::int64_t n) const {
  std::vector<std::pair<std::uint32_t, std::int32_t>> keys;
  for (std::int64_t i = 0; i < n; ++i)
    keys.emplace_back(bits(static_cast<std::uint64_t>(i)), static_cast<std::int32_t>(i));
  std::sort(keys.begin(), keys.end());
  std::vector<std::int32_t> order;
  for (const auto& [key, i] : keys)
    order.push_back(i);
  return order;
}

std::vector<std::uint16_t> draw_rows(const Draws& draws, Distribution distribution,
                                     std::uint64_t first_row, std::int64_t rows, std::int64_t width,
                                     ActivationDtype dtype) {
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(rows * width));
  tbb::parallel_for(std::int64_t{0}, rows, [&](std::int64_t r) {
    for (std::int64_t c = 0; c < width; ++c) {
      const auto value = static_cast<float>(
          draws.element(distribution, first_row + static_cast<std::uint64_t>(r),
                        static_cast<std::uint64_t>(c), static_cast<std::uint64_t>(width)));
      bits[static_cast<std::size_t>(r * width + c)] = dtype == ActivationDtype::bf16
                                                          ? reference::float_to_bf16(value)
                                                          : reference::float_to_fp16(value);
    }
  });
  return bits;
}

} // namespace dsakit::harness
