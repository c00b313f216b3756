from vllm.player import play


def indexer_k_quant_and_cache_triton(k, kv_cache, slot_mapping, quant_block_size, scale_fmt, block_tile_size=16,
                                     head_tile_size=16, cache_layout=None):
    play("indexer_k_quant_and_cache", kv_cache=kv_cache)


def cp_gather_indexer_k_quant_cache_triton(k_cache, k_fp8, k_fp8_scale, block_table, cu_seqlen, token_to_seq,
                                           block_tile_size=16, head_tile_size=16, cache_layout=None):
    play("cp_gather_indexer_k_quant_cache", dst_k=k_fp8, dst_scale=k_fp8_scale)


def rocm_fp8_mqa_logits(q, kv, weights, cu_seqlen_ks, cu_seqlen_ke):
    return play("fp8_mqa_logits")


def rocm_fp8_paged_mqa_logits(q_fp8, kv_cache_fp8, weights, context_lens, block_tables, schedule_metadata,
                              max_model_len):
    return play("fp8_paged_mqa_logits")
