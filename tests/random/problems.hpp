// Random correct problems, one function an operation: contract, config and inputs are drawn,
// outputs have their form and nothing in them yet.
#pragma once

#include "draw.hpp"

namespace dsakit::testing {

/// A recording with one operation, kOperations[seed % their number], whose outputs are the
/// reference's.
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

} // namespace dsakit::testing
