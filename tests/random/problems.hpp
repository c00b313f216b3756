// Random correct problems, one function an operation: contract, config and inputs are drawn,
// outputs have their form and nothing in them yet.
#pragma once

#include "draw.hpp"

namespace dsakit::testing {

/// A recording with one operation, which the seed names, whose outputs are the reference's.
TinyRecording random_problem(std::uint64_t seed);

void draw_index_query_quant(TinyRecording& r, Draw& draw);
void draw_index_query_quant_mxfp4(TinyRecording& r, Draw& draw);
void draw_index_weights_fold(TinyRecording& r, Draw& draw);
void draw_index_key_norm(TinyRecording& r, Draw& draw);
void draw_index_cache_write(TinyRecording& r, Draw& draw);
void draw_index_cache_write_mxfp4(TinyRecording& r, Draw& draw);
void draw_index_cache_gather(TinyRecording& r, Draw& draw);
void draw_index_cache_gather_mxfp4(TinyRecording& r, Draw& draw);
void draw_index_logits_prefill(TinyRecording& r, Draw& draw);
void draw_index_logits_prefill_mxfp4(TinyRecording& r, Draw& draw);
void draw_index_logits_decode(TinyRecording& r, Draw& draw);
void draw_index_logits_decode_mxfp4(TinyRecording& r, Draw& draw);
void draw_topk(TinyRecording& r, Draw& draw);
void draw_mla_cache_write(TinyRecording& r, Draw& draw);
void draw_topk_slots(TinyRecording& r, Draw& draw);
void draw_sparse_attention(TinyRecording& r, Draw& draw);
void draw_sparse_attention_dense(TinyRecording& r, Draw& draw);
void draw_dcp_topk_merge(TinyRecording& r, Draw& draw);
void draw_dcp_attention_merge(TinyRecording& r, Draw& draw);
void draw_qkv_a_proj(TinyRecording& r, Draw& draw);
void draw_q_norm(TinyRecording& r, Draw& draw);
void draw_q_b_proj(TinyRecording& r, Draw& draw);
void draw_kv_norm(TinyRecording& r, Draw& draw);
void draw_index_q_proj(TinyRecording& r, Draw& draw);
void draw_index_k_proj(TinyRecording& r, Draw& draw);
void draw_index_w_proj(TinyRecording& r, Draw& draw);
void draw_absorb_q(TinyRecording& r, Draw& draw);
void draw_absorb_v(TinyRecording& r, Draw& draw);
void draw_gate_proj(TinyRecording& r, Draw& draw);
void draw_output_gate(TinyRecording& r, Draw& draw);
void draw_o_proj(TinyRecording& r, Draw& draw);

} // namespace dsakit::testing
