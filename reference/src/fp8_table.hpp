// Values of all 256 codes of an e4m3 encoding: what decode_fp8 looks up.
#pragma once

#include <array>

#include "dsakit/core/contract.hpp"

namespace dsakit::reference {

const std::array<float, 256>& fp8_table(Fp8Encoding encoding);

} // namespace dsakit::reference
