// The adapters, one a file.
#pragma once

#include "dsakit/harness/operations.hpp"

namespace dsakit::harness {

const OperationAdapter& index_cache_write_adapter();
const OperationAdapter& index_cache_gather_adapter();
const OperationAdapter& index_logits_decode_adapter();

} // namespace dsakit::harness
