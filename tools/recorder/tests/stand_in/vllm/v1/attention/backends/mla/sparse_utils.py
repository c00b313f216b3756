from vllm.player import play


def triton_convert_req_index_to_global_index(req_id, block_table, token_indices, BLOCK_SIZE=64, NUM_TOPK_TOKENS=2048,
                                             BLOCK_N=128, HAS_PREFILL_WORKSPACE=False,
                                             prefill_workspace_request_ids=None, prefill_workspace_starts=None,
                                             return_valid_counts=False):
    return play("triton_convert_req_index_to_global_index")
