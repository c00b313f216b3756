from vllm.player import play


def per_token_group_quant_fp8(x, group_size, eps=1e-10, dtype=None, column_major_scales=False, out_q=None,
                              use_ue8m0=None):
    return play("per_token_group_quant_fp8")
