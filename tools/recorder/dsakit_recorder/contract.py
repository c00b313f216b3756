"""What dsakit's reader wants of a contract: refused while it is recorded, a call costs a line to mend; found out when
the file is opened, a run. The tests hold this table to `dsakit info`.
"""
import re

COUNT = "a whole number from 1 to 2^20"
NUMBER = "a number > 0"

# Every key, with its values.
KEYS = {
    "activation_dtype": ("bf16", "fp16"),
    "dcp_interleave": COUNT,
    "dcp_world": COUNT,
    "empty_row": ("zero", "nan"),
    "gate_rounding": ("one", "two"),
    "hadamard": ("none", "query_and_key"),
    "index_fp8_encoding": ("e4m3fn", "e4m3fnuz"),
    "index_k_floor": NUMBER,
    "index_k_norm": ("layernorm", "rmsnorm"),
    "index_page_layout": ("block_flat", "mfma_preshuffle", "flat", "preshuffle64"),
    "index_q_floor": NUMBER,
    "lse_base": ("e", "2"),
    "mla_fp8_encoding": ("e4m3fn", "e4m3fnuz"),
    "mla_record": ("fp8_ds_mla", "bf16_576"),
    "page_size": COUNT,
    "qmax": ("448", "240", "224"),
    "rmsnorm_rounding": ("one", "two"),
    "scale_kind": ("ue8m0", "fp32"),
    "tie_rule": ("smaller_index", "unspecified"),
    "topk_order": ("rank", "ascending", "unspecified"),
    "weight_fold": ("bf16_intermediate", "fp32"),
}

# Keys that each output says of its producer.
OUTPUT_KEYS = {
    "accumulation": ("exact", "fp32", "sm90_wgmma_fp8"),
    "mla_scale_read": ("fp32", "bf16"),
}

# What an operation needs; of one that exists in two formats what each does.
NEEDS = {
    **dict.fromkeys("qkv_a_proj q_b_proj index_q_proj index_k_proj index_w_proj absorb_q absorb_v gate_proj "
                    "o_proj".split(), {"": "activation_dtype"}),
    "q_norm": {"": "activation_dtype rmsnorm_rounding"},
    "kv_norm": {"": "activation_dtype rmsnorm_rounding"},
    "index_query_quant": {"fp8": "index_fp8_encoding activation_dtype scale_kind index_q_floor qmax",
                          "mxfp4": "activation_dtype hadamard"},
    "index_weights_fold": {"": "weight_fold activation_dtype"},
    "index_key_norm": {"": "activation_dtype index_k_norm rmsnorm_rounding"},
    "index_cache_write": {"fp8": "index_fp8_encoding index_page_layout page_size activation_dtype scale_kind index_k_floor "
                                 "qmax",
                          "mxfp4": "index_page_layout page_size activation_dtype hadamard"},
    "index_cache_gather": {"fp8": "index_fp8_encoding index_page_layout page_size", "mxfp4": "index_page_layout page_size"},
    "index_logits_prefill": {"fp8": "index_fp8_encoding", "mxfp4": "activation_dtype"},
    "index_logits_decode": {"fp8": "index_fp8_encoding index_page_layout page_size",
                            "mxfp4": "index_page_layout page_size activation_dtype"},
    "topk": {"": "tie_rule topk_order"},
    "dcp_topk_merge": {"": "topk_order"},
    "mla_cache_write": {"fp8_ds_mla": "mla_fp8_encoding mla_record page_size activation_dtype qmax", "bf16_576": ""},
    "topk_slots": {"": "page_size"},
    "sparse_attention": {"fp8_ds_mla": "mla_fp8_encoding mla_record page_size lse_base", "bf16_576": "mla_record"},
    "dcp_attention_merge": {"": "lse_base"},
    "output_gate": {"": "activation_dtype gate_rounding"},
}
CONFIG_NEEDS = {"q_norm": "rms_norm_eps", "kv_norm": "rms_norm_eps", "index_key_norm": "rms_norm_eps",
                "sparse_attention": "softmax_scale"}
OUTPUT_NEEDS = {"index_logits_prefill": {"": "accumulation"}, "index_logits_decode": {"": "accumulation"},
                "sparse_attention": {"fp8_ds_mla": "accumulation mla_scale_read", "bf16_576": "accumulation"},
                "dcp_attention_merge": {"": "accumulation"}}


def _is_number(text, least):
    return bool(re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", text)) and least <= float(text) < 1e30


def _takes(values, text):
    if values == COUNT:
        return text.isascii() and text.isdigit() and 1 <= int(text) <= 1 << 20
    if values == NUMBER:
        return _is_number(text, 2.0**-126)  # a normal float32
    return text in values


def value_fault(key, value, keys=None):
    """Why the reader would refuse `key` = `value`; empty where it would not. A key that it does not know is a slip."""
    keys = KEYS if keys is None else keys
    if key not in keys:
        return f"contract key {key!r} is unknown, want one of {', '.join(keys)}"
    if _takes(keys[key], value):
        return ""
    return f"contract key {key}: found {value!r}, want {_wanted(keys[key])}"


def format_of(operation, contract, tensors):
    """Which of an operation's formats it is, as the reader tells them apart; "" of one that has none."""
    formats = NEEDS.get(operation, {"": ""})
    if "bf16_576" in formats:
        return "bf16_576" if contract.get("mla_record") == "bf16_576" else "fp8_ds_mla"
    if "mxfp4" not in formats:
        return ""
    by_layout = contract.get("index_page_layout") in ("flat", "preshuffle64") and \
        "index_page_layout" in formats["mxfp4"]
    packed = any(name in ("index_q_packed", "k_packed") for name in tensors)
    return "mxfp4" if by_layout or packed else "fp8"


def call_fault(operation, contract, config, inputs, outputs, attributes):
    """Why the reader would refuse what a call says beside its tensors; empty where it would not.

    contract and config with those of the file; `inputs` and `outputs` are names, `attributes` by output.
    """
    if operation not in NEEDS:
        return ""
    names = [*inputs, *(name.partition(".")[0] for name in outputs)]
    kind = format_of(operation, contract, names)
    needs = NEEDS[operation][kind].split()
    for key in needs:
        if key not in contract:
            return f"found no contract key {key}, want {_wanted(KEYS[key])}"
        if fault := value_fault(key, contract[key]):
            return fault
    for key, other in (("dcp_world", "dcp_interleave"), ("dcp_interleave", "dcp_world")):
        if operation in ("topk", "topk_slots") and key in contract and other not in contract:
            return f"found no contract key {other}, want it with {key}"
    if kind == "mxfp4" and "index_page_layout" in needs and contract["index_page_layout"] not in ("flat", "preshuffle64"):
        return f"contract key index_page_layout: found {contract['index_page_layout']!r}, want flat | preshuffle64"
    encoding = contract.get("mla_fp8_encoding" if operation == "mla_cache_write" else "index_fp8_encoding")
    if "qmax" in needs and encoding == "e4m3fnuz" and contract["qmax"] == "448":
        return "contract key qmax: found '448', want at most 240, the largest e4m3fnuz"
    for key in CONFIG_NEEDS.get(operation, "").split():
        if not _is_number(config.get(key, ""), 5e-324):
            return f"config {key}: found {config.get(key)!r}, want a number > 0"
    for output in outputs:
        for key in OUTPUT_NEEDS.get(operation, {}).get(kind, "").split():
            value = attributes.get(output, {}).get(key)
            if value is None:
                return f"{output}: found no attribute {key}, want {_wanted(OUTPUT_KEYS[key])}"
            if fault := value_fault(key, str(value), OUTPUT_KEYS):
                return f"{output}: {fault}"
    return ""


def _wanted(values):
    return values if isinstance(values, str) else " | ".join(values)
