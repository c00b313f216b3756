// What two recordings of one run must have in common before their outputs are compared.
#pragma once

#include <cstdint>
#include <string>

#include "dsakit/core/contract.hpp"
#include "dsakit/core/status.hpp"
#include "dsakit/core/tensor.hpp"
#include "dsakit/harness/report.hpp"

namespace dsakit::harness {

/// "[2, 3] of float32"
std::string form_of(const Tensor& tensor);

/// "found GOT and WANT, want the same"
std::string differ(const std::string& got, const std::string& want);
/// "WHAT: found GOT and WANT, want the same"
std::string differ(const std::string& what, const std::string& got, const std::string& want);

/// The first key that differs, as bad_input.
Status same_contract(const ContractValues& got, const ContractValues& want, std::int64_t step);

/// How an input differs; empty where it does not. Fills in the numbers of `line`.
std::string input_differs(const Tensor& got, const Tensor& want, ReportLine& line);

} // namespace dsakit::harness
