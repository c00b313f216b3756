// Every contract key with the values it may have (design 3).
#pragma once

#include <string_view>

#include "dsakit/core/contract.hpp"
#include "dsakit/core/status.hpp"

namespace dsakit::harness {

/// ok where `key` is known and `value` is one of its values; else bad_input naming those wanted.
/// `accumulation` is a key here although recordings hold it per output tensor.
Status check_contract_value(std::string_view key, std::string_view value);

/// The keys and values that spec 11 decides for Kimi K3.1. Without index_fp8_encoding, which is a
/// property of every tensor; qmax follows from the encoding in `known`, if that names one.
ContractValues kimi_k31_contract(const ContractValues& known);

} // namespace dsakit::harness
