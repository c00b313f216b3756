// The contract: everything that two correct implementations may do differently, named.
// A value without defaults: leaving a member out does not compile, a missing key does not load.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "dsakit/core/contract_enums.hpp"
#include "dsakit/core/status.hpp"

namespace dsakit {

/// Has no default constructor, so an aggregate that forgets it does not compile.
template <class T>
struct Required {
  T value;
  constexpr Required(T v) : value(std::move(v)) {}
  constexpr operator const T&() const { return value; }
};

/// What is needed to read an index cache.
struct IndexPages {
  Required<Fp8Encoding> index_fp8_encoding;
  Required<IndexPageLayout> index_page_layout;
  Required<std::int64_t> page_size; ///< tokens a page
};

/// What is needed to write one.
struct IndexKeyQuant {
  Required<IndexPages> pages;
  Required<ActivationDtype> activation_dtype;
  Required<ScaleKind> scale_kind;
  Required<float> index_k_floor; ///< smallest amax that a key row is scaled by
  Required<float> qmax;          ///< divisor of the dynamic quantiser: 448, 240 or 224
};

/// What is needed to quantise indexer queries.
struct IndexQueryQuant {
  Required<Fp8Encoding> index_fp8_encoding;
  Required<ActivationDtype> activation_dtype;
  Required<ScaleKind> scale_kind;
  Required<float> index_q_floor; ///< smallest amax that a query row is scaled by
  Required<float> qmax;
};

/// What is needed to quantise to MXFP4; its scales have no choice of floor, divisor or rounding.
struct Mxfp4Quant {
  Required<ActivationDtype> activation_dtype;
  Required<Hadamard> hadamard;
};

/// What is needed to read an MXFP4 index cache.
struct Mxfp4Pages {
  Required<IndexPageLayout> index_page_layout; ///< flat or preshuffle64
  Required<std::int64_t> page_size;            ///< tokens a page
};

/// What is needed to write MLA records.
struct MlaQuant {
  Required<Fp8Encoding> mla_fp8_encoding;
  Required<ActivationDtype> activation_dtype;
  Required<float> qmax;
};

/// A contract as a recording stores it: key -> value text ("index_fp8_encoding" -> "e4m3fn").
using ContractValues = std::map<std::string, std::string>;

/// The typed part that an operation needs; bad_input naming the key that is missing or the value
/// found and the values wanted.
Result<IndexPages> parse_index_pages(const ContractValues& values);
Result<IndexKeyQuant> parse_index_key_quant(const ContractValues& values);
Result<IndexQueryQuant> parse_index_query_quant(const ContractValues& values);
Result<Mxfp4Quant> parse_mxfp4_quant(const ContractValues& values);
Result<Mxfp4Pages> parse_mxfp4_pages(const ContractValues& values);
Result<MlaQuant> parse_mla_quant(const ContractValues& values);

/// One key, named as the function is.
Result<Fp8Encoding> parse_index_fp8_encoding(const ContractValues& values);
Result<Fp8Encoding> parse_mla_fp8_encoding(const ContractValues& values);
Result<ActivationDtype> parse_activation_dtype(const ContractValues& values);
Result<IndexPageLayout> parse_index_page_layout(const ContractValues& values);
Result<WeightFold> parse_weight_fold(const ContractValues& values);
Result<Hadamard> parse_hadamard(const ContractValues& values);
Result<IndexKNorm> parse_index_k_norm(const ContractValues& values);
Result<RmsNormRounding> parse_rmsnorm_rounding(const ContractValues& values);
Result<GateRounding> parse_gate_rounding(const ContractValues& values);
Result<LseBase> parse_lse_base(const ContractValues& values);
Result<TopkOrder> parse_topk_order(const ContractValues& values);
Result<std::int64_t> parse_page_size(const ContractValues& values);
/// Ranks that share a request's keys, and how many positions in a row each holds; 1 without the
/// key: a recording that does not know of ranks.
Result<std::int64_t> parse_dcp_world(const ContractValues& values);
Result<std::int64_t> parse_dcp_interleave(const ContractValues& values);

/// What a contract says of one output tensor, from its text.
Result<Accumulation> parse_accumulation(std::string_view text);
Result<MlaScaleRead> parse_mla_scale_read(std::string_view text);

/// How one projection's weight is stored, from its text.
Result<WeightFormat> parse_weight_format(std::string_view text);

} // namespace dsakit

#include "dsakit/core/detail/contract_inl.hpp"
