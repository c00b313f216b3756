// The adapters. Projections share a file, as do absorptions and RMSNorms; the others have their
// own.
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
const OperationAdapter& dcp_topk_merge_adapter();
const OperationAdapter& dcp_attention_merge_adapter();
const OperationAdapter& sparse_attention_adapter();
const OperationAdapter& qkv_a_proj_adapter();
const OperationAdapter& q_norm_adapter();
const OperationAdapter& q_b_proj_adapter();
const OperationAdapter& kv_norm_adapter();
const OperationAdapter& index_q_proj_adapter();
const OperationAdapter& index_k_proj_adapter();
const OperationAdapter& index_w_proj_adapter();
const OperationAdapter& absorb_q_adapter();
const OperationAdapter& absorb_v_adapter();
const OperationAdapter& gate_proj_adapter();
const OperationAdapter& output_gate_adapter();
const OperationAdapter& o_proj_adapter();

} // namespace dsakit::harness
