import types

import torch

from vllm.player import play

# What vLLM's compiled library registers; like torch's, these have no signature that can be asked.
torch.ops._C = types.SimpleNamespace(
    top_k_per_row_prefill=lambda *a: play("top_k_per_row", raw_topk_indices=a[3]),
    top_k_per_row_decode=lambda *a: play("top_k_per_row", raw_topk_indices=a[3]))


def indexer_k_quant_and_cache(k, kv_cache, slot_mapping, quant_block_size, kv_cache_dtype):
    play("indexer_k_quant_and_cache", kv_cache=kv_cache)


def cp_gather_indexer_k_quant_cache(kv_cache, dst_k, dst_scale, block_table, cu_seq_lens):
    play("cp_gather_indexer_k_quant_cache", dst_k=dst_k, dst_scale=dst_scale)


def top_k_per_row_prefill(logits, cu_seqlen_ks, cu_seqlen_ke, raw_topk_indices, num_rows, stride0, stride1,
                          topk_tokens):
    torch.ops._C.top_k_per_row_prefill(logits, cu_seqlen_ks, cu_seqlen_ke, raw_topk_indices, num_rows, stride0, stride1,
                                       topk_tokens)


def top_k_per_row_decode(logits, next_n, seq_lens, raw_topk_indices, num_rows, stride0, stride1, topk_tokens):
    torch.ops._C.top_k_per_row_decode(logits, next_n, seq_lens, raw_topk_indices, num_rows, stride0, stride1, topk_tokens)


def concat_and_cache_mla(kv_c, k_pe, kv_cache, slot_mapping, kv_cache_dtype, scale):
    play("concat_and_cache_mla", kv_cache=kv_cache)
