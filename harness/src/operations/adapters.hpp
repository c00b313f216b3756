// The adapters, one a file.
#pragma once

#include "dsakit/harness/operations.hpp"

namespace dsakit::harness {

const OperationAdapter& index_query_quant_adapter();
const OperationAdapter& index_weights_fold_adapter();
const OperationAdapter& index_key_norm_adapter();
const OperationAdapter& index_cache_write_adapter();
const OperationAdapter& index_cache_gather_adapter();
const OperationAdapter& index_logits_prefill_adapter();
const OperationAdapter& index_logits_decode_adapter();
const OperationAdapter& index_query_quant_mxfp4_adapter();
const OperationAdapter& index_cache_write_mxfp4_adapter();
const OperationAdapter& index_cache_gather_mxfp4_adapter();
const OperationAdapter& index_logits_prefill_mxfp4_adapter();
const OperationAdapter& index_logits_decode_mxfp4_adapter();
const OperationAdapter& topk_adapter();
const OperationAdapter& mla_cache_write_adapter();
const OperationAdapter& topk_slots_adapter();
const OperationAdapter& sparse_attention_adapter();

} // namespace dsakit::harness
