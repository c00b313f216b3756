// The element types of recordings, under their ml_dtypes/torch names.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace dsakit {

enum class Dtype : std::uint8_t {
  bfloat16,
  float16,
  float8_e4m3fn,
  float8_e4m3fnuz,
  float4_e2m1fn_x2, ///< two codes a byte, element 0 in the low nibble; shapes count bytes
  float8_e8m0fnu,
  float32,
  int32,
  int64,
  uint8,
};

namespace detail {
struct DtypeInfo {
  std::string_view name;
  std::size_t bytes;
};
inline constexpr std::array<DtypeInfo, 10> kDtypes = {{{"bfloat16", 2},
                                                       {"float16", 2},
                                                       {"float8_e4m3fn", 1},
                                                       {"float8_e4m3fnuz", 1},
                                                       {"float4_e2m1fn_x2", 1},
                                                       {"float8_e8m0fnu", 1},
                                                       {"float32", 4},
                                                       {"int32", 4},
                                                       {"int64", 8},
                                                       {"uint8", 1}}};
} // namespace detail

/// "bfloat16", "float8_e4m3fn", ...
constexpr std::string_view name(Dtype d) {
  return detail::kDtypes[static_cast<std::size_t>(d)].name;
}

/// Bytes of one stored element.
constexpr std::size_t size_of(Dtype d) {
  return detail::kDtypes[static_cast<std::size_t>(d)].bytes;
}

constexpr std::optional<Dtype> parse_dtype(std::string_view text) {
  for (std::size_t i = 0; i < detail::kDtypes.size(); ++i)
    if (detail::kDtypes[i].name == text) return static_cast<Dtype>(i);
  return std::nullopt;
}

} // namespace dsakit
