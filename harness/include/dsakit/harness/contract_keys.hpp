// Every contract key with the values it may have (design 3).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "dsakit/core/contract.hpp"
#include "dsakit/core/status.hpp"

namespace dsakit::harness {

/// ok where `key` is known and `value` is one of its values; else bad_input naming those wanted.
/// `accumulation` and `mla_scale_read` are keys here although recordings hold them per output.
Status check_contract_value(std::string_view key, std::string_view value);
/// "fp32 | bf16": the values of a known key, for messages; "a number > 0" for a number.
std::string contract_key_values(std::string_view key);
/// A finite number > 0 in plain decimal digits ("1e-4", "64"); nullopt for any other text.
std::optional<double> parse_number(std::string_view text);

/// The keys and values that spec 11 decides for Kimi K3.1. Without index_fp8_encoding, which is a
/// property of every tensor; qmax follows from the encoding in `known`, if that names one.
ContractValues kimi_k31_contract(const ContractValues& known);

} // namespace dsakit::harness
