#pragma once

#include <array>
#include <cstdlib>

namespace dsakit {
namespace detail {

template <class E, std::size_t N>
using EnumNames = std::array<std::pair<std::string_view, E>, N>;

inline constexpr EnumNames<Fp8Encoding, 2> kFp8Encodings = {
    {{"e4m3fn", Fp8Encoding::e4m3fn}, {"e4m3fnuz", Fp8Encoding::e4m3fnuz}}};
inline constexpr EnumNames<IndexPageLayout, 4> kIndexPageLayouts = {
    {{"block_flat", IndexPageLayout::block_flat},
     {"mfma_preshuffle", IndexPageLayout::mfma_preshuffle},
     {"flat", IndexPageLayout::flat},
     {"preshuffle64", IndexPageLayout::preshuffle64}}};
inline constexpr EnumNames<ScaleKind, 2> kScaleKinds = {
    {{"ue8m0", ScaleKind::ue8m0}, {"fp32", ScaleKind::fp32}}};
inline constexpr EnumNames<Accumulation, 3> kAccumulations = {
    {{"exact", Accumulation::exact},
     {"fp32", Accumulation::fp32},
     {"sm90_wgmma_fp8", Accumulation::sm90_wgmma_fp8}}};
inline constexpr EnumNames<ActivationDtype, 2> kActivationDtypes = {
    {{"bf16", ActivationDtype::bf16}, {"fp16", ActivationDtype::fp16}}};

template <class E, std::size_t N>
Result<E> parse_enum(std::string_view key, std::string_view text, const EnumNames<E, N>& names) {
  std::string wanted;
  for (const auto& [name, value] : names) {
    if (name == text) return value;
    wanted += (wanted.empty() ? "" : " | ") + std::string(name);
  }
  return bad_input("contract key " + std::string(key) + ": found '" + std::string(text) +
                   "', want " + wanted);
}

inline Result<std::string> find_key(const ContractValues& values, const char* key) {
  auto found = values.find(key);
  if (found == values.end()) return bad_input("contract key " + std::string(key) + " is missing");
  return found->second;
}

template <class E, std::size_t N>
Result<E> enum_key(const ContractValues& values, const char* key, const EnumNames<E, N>& names) {
  auto text = find_key(values, key);
  if (!text) return text.status();
  return parse_enum(key, *text, names);
}

/// A finite number in [low, high].
inline Result<double> number_key(const ContractValues& values, const char* key, double low,
                                 double high) {
  auto text = find_key(values, key);
  if (!text) return text.status();
  char* end = nullptr;
  const double value = std::strtod(text->c_str(), &end);
  if (text->empty() || *end != '\0' || !(value >= low && value <= high))
    return bad_input("contract key " + std::string(key) + ": found '" + *text +
                     "', want a number in [" + std::to_string(low) + ", " + std::to_string(high) +
                     "]");
  return value;
}

template <class E, std::size_t N>
std::string_view enum_name(E value, const EnumNames<E, N>& names) {
  for (const auto& [name, v] : names)
    if (v == value) return name;
  return "?";
}

} // namespace detail

inline std::string_view name(Fp8Encoding v) {
  return detail::enum_name(v, detail::kFp8Encodings);
}
inline std::string_view name(IndexPageLayout v) {
  return detail::enum_name(v, detail::kIndexPageLayouts);
}
inline std::string_view name(ScaleKind v) {
  return detail::enum_name(v, detail::kScaleKinds);
}
inline std::string_view name(Accumulation v) {
  return detail::enum_name(v, detail::kAccumulations);
}
inline std::string_view name(ActivationDtype v) {
  return detail::enum_name(v, detail::kActivationDtypes);
}

inline Result<IndexPages> parse_index_pages(const ContractValues& values) {
  auto encoding = detail::enum_key(values, "index_fp8_encoding", detail::kFp8Encodings);
  if (!encoding) return encoding.status();
  auto layout = detail::enum_key(values, "index_page_layout", detail::kIndexPageLayouts);
  if (!layout) return layout.status();
  auto page_size = detail::number_key(values, "page_size", 1, 1 << 20);
  if (!page_size) return page_size.status();
  const auto tokens = static_cast<std::int64_t>(*page_size);
  if (static_cast<double>(tokens) != *page_size)
    return bad_input("contract key page_size: found '" + values.at("page_size") +
                     "', want a whole number of tokens");
  return IndexPages{*encoding, *layout, tokens};
}

inline Result<IndexKeyQuant> parse_index_key_quant(const ContractValues& values) {
  auto pages = parse_index_pages(values);
  if (!pages) return pages.status();
  auto dtype = detail::enum_key(values, "activation_dtype", detail::kActivationDtypes);
  if (!dtype) return dtype.status();
  auto scale_kind = detail::enum_key(values, "scale_kind", detail::kScaleKinds);
  if (!scale_kind) return scale_kind.status();
  auto floor = detail::number_key(values, "index_k_floor", 0x1p-126, 1e30);
  if (!floor) return floor.status();
  auto qmax = detail::number_key(values, "qmax", 1, 448);
  if (!qmax) return qmax.status();
  if (*qmax != 448 && *qmax != 240 && *qmax != 224)
    return bad_input("contract key qmax: found '" + values.at("qmax") + "', want 448 | 240 | 224");
  if (*qmax > 240 && pages->index_fp8_encoding.value == Fp8Encoding::e4m3fnuz)
    return bad_input("contract key qmax: found '" + values.at("qmax") +
                     "', want at most 240, the largest e4m3fnuz");
  return IndexKeyQuant{*pages, *dtype, *scale_kind, static_cast<float>(*floor),
                       static_cast<float>(*qmax)};
}

inline Result<Accumulation> parse_accumulation(std::string_view text) {
  return detail::parse_enum("accumulation", text, detail::kAccumulations);
}

} // namespace dsakit
