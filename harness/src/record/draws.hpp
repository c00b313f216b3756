// The numbers of synthetic recordings: a function of seed, stream and place alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dsakit/core/contract_enums.hpp"

namespace dsakit::harness {

/// What the rows of hidden states and of earlier tokens' latents are like.
enum class Distribution : std::uint8_t {
  normal,   ///< independent, variance 1
  outliers, ///< one column in 64 is 20 times as large, as trained models have it
  ties,     ///< eight different rows, so that logits tie exactly
  narrow,   ///< one row, plus 2^-7 of noise: logits lie close together
  zeros,    ///< seven rows of eight are zero
  extreme,  ///< each row times a power of two from 2^-40 to 2^20
};

std::optional<Distribution> parse_distribution(std::string_view text);
/// "normal | outliers | ..."
std::string distribution_names();

class Draws {
public:
  Draws(std::uint64_t seed, std::uint32_t stream) : seed_(seed), stream_(stream) {}

  std::uint32_t bits(std::uint64_t i) const;
  /// Independent, mean 0, variance 1 (Box and Muller).
  double normal(std::uint64_t i) const;
  /// Element of a row of `width` columns.
  double element(Distribution distribution, std::uint64_t row, std::uint64_t column,
                 std::uint64_t width) const;
  /// 0, 1, ..., n - 1 in random order.
  std::vector<std::int32_t> permutation(std::int64_t n) const;

private:
  std::uint64_t seed_;
  std::uint32_t stream_;
};

/// [rows, width] activations, rows numbered from first_row; in parallel.
std::vector<std::uint16_t> draw_rows(const Draws& draws, Distribution distribution,
                                     std::uint64_t first_row, std::int64_t rows, std::int64_t width,
                                     ActivationDtype dtype);

} // namespace dsakit::harness
