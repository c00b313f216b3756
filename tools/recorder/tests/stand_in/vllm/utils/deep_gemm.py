from vllm.player import play


def fp8_mqa_logits(q, kv, weights, cu_seqlen_ks, cu_seqlen_ke, clean_logits=True):
    return play("fp8_mqa_logits")


def fp8_paged_mqa_logits(q_fp8, kv_cache_fp8, weights, context_lens, block_tables, schedule_metadata, max_model_len,
                         clean_logits=True):
    return play("fp8_paged_mqa_logits")
