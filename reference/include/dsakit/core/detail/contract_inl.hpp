#pragma once

#include <array>
#include <charconv>
#include <cstdio>

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
inline constexpr EnumNames<IndexPageLayout, 2> kMxfp4PageLayouts = {
    {{"flat", IndexPageLayout::flat}, {"preshuffle64", IndexPageLayout::preshuffle64}}};
inline constexpr EnumNames<ScaleKind, 2> kScaleKinds = {
    {{"ue8m0", ScaleKind::ue8m0}, {"fp32", ScaleKind::fp32}}};
inline constexpr EnumNames<Accumulation, 3> kAccumulations = {
    {{"exact", Accumulation::exact},
     {"fp32", Accumulation::fp32},
     {"sm90_wgmma_fp8", Accumulation::sm90_wgmma_fp8}}};
inline constexpr EnumNames<ActivationDtype, 2> kActivationDtypes = {
    {{"bf16", ActivationDtype::bf16}, {"fp16", ActivationDtype::fp16}}};
inline constexpr EnumNames<WeightFold, 2> kWeightFolds = {
    {{"bf16_intermediate", WeightFold::bf16_intermediate}, {"fp32", WeightFold::fp32}}};
inline constexpr EnumNames<Hadamard, 2> kHadamards = {
    {{"none", Hadamard::none}, {"query_and_key", Hadamard::query_and_key}}};
inline constexpr EnumNames<IndexKNorm, 2> kIndexKNorms = {
    {{"layernorm", IndexKNorm::layernorm}, {"rmsnorm", IndexKNorm::rmsnorm}}};
inline constexpr EnumNames<RmsNormRounding, 2> kRmsNormRoundings = {
    {{"one", RmsNormRounding::one}, {"two", RmsNormRounding::two}}};
inline constexpr EnumNames<GateRounding, 2> kGateRoundings = {
    {{"one", GateRounding::one}, {"two", GateRounding::two}}};
inline constexpr EnumNames<WeightFormat, 3> kWeightFormats = {
    {{"bf16", WeightFormat::bf16},
     {"fp8_channel", WeightFormat::fp8_channel},
     {"fp8_block", WeightFormat::fp8_block}}};
inline constexpr EnumNames<MlaScaleRead, 2> kMlaScaleReads = {
    {{"fp32", MlaScaleRead::fp32}, {"bf16", MlaScaleRead::bf16}}};
inline constexpr EnumNames<LseBase, 2> kLseBases = {{{"e", LseBase::e}, {"2", LseBase::two}}};
inline constexpr EnumNames<TopkOrder, 2> kTopkOrders = {
    {{"rank", TopkOrder::rank}, {"ascending", TopkOrder::ascending}}};

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

/// A finite number in [low, high], in plain decimal: no spaces, no hexadecimal.
inline Result<double> number_key(const ContractValues& values, const char* key, double low,
                                 double high) {
  auto text = find_key(values, key);
  if (!text) return text.status();
  double value = 0;
  const char* last = text->data() + text->size();
  const auto [end, error] = std::from_chars(text->data(), last, value);
  if (error != std::errc{} || end != last || !(value >= low && value <= high)) {
    char range[64];
    std::snprintf(range, sizeof range, "[%.9g, %.9g]", low, high);
    return bad_input("contract key " + std::string(key) + ": found '" + *text +
                     "', want a number in " + range);
  }
  return value;
}

/// A whole number of `what` from 1 on.
inline Result<std::int64_t> count_key(const ContractValues& values, const char* key,
                                      const char* what) {
  auto number = number_key(values, key, 1, 1 << 20);
  if (!number) return number.status();
  const std::string& text = values.at(key);
  std::int64_t count = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), count).ptr !=
      text.data() + text.size())
    return bad_input("contract key " + std::string(key) + ": found '" + text +
                     "', want a whole number of " + what);
  return count;
}

/// The divisor of a quantiser that writes `encoding`.
inline Result<float> qmax_key(const ContractValues& values, Fp8Encoding encoding) {
  auto qmax = number_key(values, "qmax", 1, 448);
  if (!qmax) return qmax.status();
  const std::string found = "contract key qmax: found '" + values.at("qmax") + "', want ";
  if (*qmax != 448 && *qmax != 240 && *qmax != 224) return bad_input(found + "448 | 240 | 224");
  if (*qmax > 240 && encoding == Fp8Encoding::e4m3fnuz)
    return bad_input(found + "at most 240, the largest e4m3fnuz");
  return static_cast<float>(*qmax);
}

/// The smallest amax of a quantiser: a normal fp32 number.
inline Result<float> floor_key(const ContractValues& values, const char* key) {
  auto floor = number_key(values, key, 0x1p-126, 1e30);
  if (!floor) return floor.status();
  return static_cast<float>(*floor);
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
inline std::string_view name(WeightFold v) {
  return detail::enum_name(v, detail::kWeightFolds);
}
inline std::string_view name(Hadamard v) {
  return detail::enum_name(v, detail::kHadamards);
}
inline std::string_view name(IndexKNorm v) {
  return detail::enum_name(v, detail::kIndexKNorms);
}
inline std::string_view name(RmsNormRounding v) {
  return detail::enum_name(v, detail::kRmsNormRoundings);
}
inline std::string_view name(GateRounding v) {
  return detail::enum_name(v, detail::kGateRoundings);
}
inline std::string_view name(WeightFormat v) {
  return detail::enum_name(v, detail::kWeightFormats);
}
inline std::string_view name(MlaScaleRead v) {
  return detail::enum_name(v, detail::kMlaScaleReads);
}
inline std::string_view name(LseBase v) {
  return detail::enum_name(v, detail::kLseBases);
}
inline std::string_view name(TopkOrder v) {
  return detail::enum_name(v, detail::kTopkOrders);
}

inline Result<Fp8Encoding> parse_index_fp8_encoding(const ContractValues& values) {
  return detail::enum_key(values, "index_fp8_encoding", detail::kFp8Encodings);
}
inline Result<Fp8Encoding> parse_mla_fp8_encoding(const ContractValues& values) {
  return detail::enum_key(values, "mla_fp8_encoding", detail::kFp8Encodings);
}
inline Result<ActivationDtype> parse_activation_dtype(const ContractValues& values) {
  return detail::enum_key(values, "activation_dtype", detail::kActivationDtypes);
}
inline Result<IndexPageLayout> parse_index_page_layout(const ContractValues& values) {
  return detail::enum_key(values, "index_page_layout", detail::kIndexPageLayouts);
}
inline Result<WeightFold> parse_weight_fold(const ContractValues& values) {
  return detail::enum_key(values, "weight_fold", detail::kWeightFolds);
}
inline Result<Hadamard> parse_hadamard(const ContractValues& values) {
  return detail::enum_key(values, "hadamard", detail::kHadamards);
}
inline Result<IndexKNorm> parse_index_k_norm(const ContractValues& values) {
  return detail::enum_key(values, "index_k_norm", detail::kIndexKNorms);
}
inline Result<RmsNormRounding> parse_rmsnorm_rounding(const ContractValues& values) {
  return detail::enum_key(values, "rmsnorm_rounding", detail::kRmsNormRoundings);
}
inline Result<GateRounding> parse_gate_rounding(const ContractValues& values) {
  return detail::enum_key(values, "gate_rounding", detail::kGateRoundings);
}
inline Result<LseBase> parse_lse_base(const ContractValues& values) {
  return detail::enum_key(values, "lse_base", detail::kLseBases);
}
inline Result<TopkOrder> parse_topk_order(const ContractValues& values) {
  return detail::enum_key(values, "topk_order", detail::kTopkOrders);
}
inline Result<std::int64_t> parse_page_size(const ContractValues& values) {
  return detail::count_key(values, "page_size", "tokens");
}
inline Result<std::int64_t> parse_dcp_world(const ContractValues& values) {
  if (!values.count("dcp_world")) return std::int64_t{1};
  return detail::count_key(values, "dcp_world", "ranks");
}
inline Result<std::int64_t> parse_dcp_interleave(const ContractValues& values) {
  if (!values.count("dcp_interleave")) return std::int64_t{1};
  return detail::count_key(values, "dcp_interleave", "positions");
}

inline Result<IndexPages> parse_index_pages(const ContractValues& values) {
  auto encoding = parse_index_fp8_encoding(values);
  if (!encoding) return encoding.status();
  auto layout = parse_index_page_layout(values);
  if (!layout) return layout.status();
  auto page_size = parse_page_size(values);
  if (!page_size) return page_size.status();
  return IndexPages{*encoding, *layout, *page_size};
}

inline Result<IndexKeyQuant> parse_index_key_quant(const ContractValues& values) {
  auto pages = parse_index_pages(values);
  if (!pages) return pages.status();
  auto dtype = parse_activation_dtype(values);
  if (!dtype) return dtype.status();
  auto scale_kind = detail::enum_key(values, "scale_kind", detail::kScaleKinds);
  if (!scale_kind) return scale_kind.status();
  auto floor = detail::floor_key(values, "index_k_floor");
  if (!floor) return floor.status();
  auto qmax = detail::qmax_key(values, pages->index_fp8_encoding);
  if (!qmax) return qmax.status();
  return IndexKeyQuant{*pages, *dtype, *scale_kind, *floor, *qmax};
}

inline Result<IndexQueryQuant> parse_index_query_quant(const ContractValues& values) {
  auto encoding = parse_index_fp8_encoding(values);
  if (!encoding) return encoding.status();
  auto dtype = parse_activation_dtype(values);
  if (!dtype) return dtype.status();
  auto scale_kind = detail::enum_key(values, "scale_kind", detail::kScaleKinds);
  if (!scale_kind) return scale_kind.status();
  auto floor = detail::floor_key(values, "index_q_floor");
  if (!floor) return floor.status();
  auto qmax = detail::qmax_key(values, *encoding);
  if (!qmax) return qmax.status();
  return IndexQueryQuant{*encoding, *dtype, *scale_kind, *floor, *qmax};
}

inline Result<Mxfp4Quant> parse_mxfp4_quant(const ContractValues& values) {
  auto dtype = parse_activation_dtype(values);
  if (!dtype) return dtype.status();
  auto hadamard = parse_hadamard(values);
  if (!hadamard) return hadamard.status();
  return Mxfp4Quant{*dtype, *hadamard};
}

inline Result<Mxfp4Pages> parse_mxfp4_pages(const ContractValues& values) {
  auto layout = detail::enum_key(values, "index_page_layout", detail::kMxfp4PageLayouts);
  if (!layout) return layout.status();
  auto page_size = parse_page_size(values);
  if (!page_size) return page_size.status();
  return Mxfp4Pages{*layout, *page_size};
}

inline Result<MlaQuant> parse_mla_quant(const ContractValues& values) {
  auto encoding = parse_mla_fp8_encoding(values);
  if (!encoding) return encoding.status();
  auto dtype = parse_activation_dtype(values);
  if (!dtype) return dtype.status();
  auto qmax = detail::qmax_key(values, *encoding);
  if (!qmax) return qmax.status();
  return MlaQuant{*encoding, *dtype, *qmax};
}

inline Result<Accumulation> parse_accumulation(std::string_view text) {
  return detail::parse_enum("accumulation", text, detail::kAccumulations);
}
inline Result<MlaScaleRead> parse_mla_scale_read(std::string_view text) {
  return detail::parse_enum("mla_scale_read", text, detail::kMlaScaleReads);
}
inline Result<WeightFormat> parse_weight_format(std::string_view text) {
  return detail::parse_enum("weight_format", text, detail::kWeightFormats);
}

} // namespace dsakit
