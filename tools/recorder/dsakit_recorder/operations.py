"""What the recorder knows of operations and tensors: the names of their axes, which tensors lose rows in a sample,
and which pages of a cache an operation reaches.
"""
import sys

import numpy as np

from .tensors import dtype_name, is_torch

# Names of axes by canonical tensor; of several, those of the tensor's rank are taken.
_AXES = {
    "attn_gated": ["tokens,dim"], "attn_value": ["tokens,dim"], "block_table": ["requests,columns"],
    "column_origin": ["rows"], "compact_slots": ["rows,columns"], "corrected": ["ranks,rows,heads,dim"],
    "counts": ["rows"], "cu_seq_lens": ["bounds"], "dcp_scores": ["rows,columns"], "gate": ["tokens,dim"],
    "hidden_states": ["tokens,dim"], "index_cache": ["pages,bytes"], "index_k": ["tokens,dim"],
    "index_k_raw": ["tokens,dim"], "index_q": ["rows,heads,dim"], "index_q_fp8": ["rows,heads,dim"],
    "index_q_input": ["tokens,dim"], "index_q_packed": ["rows,heads,bytes"],
    "index_q_scale": ["rows,heads", "rows,heads,groups"], "index_weights": ["rows,heads"],
    "index_weights_folded": ["rows,heads"], "k_fp8": ["rows,dim"], "k_packed": ["rows,bytes"], "k_pe": ["tokens,dim"],
    "k_scale": ["rows", "rows,groups"], "ke": ["rows"], "ks": ["rows"], "kv_c": ["tokens,dim"],
    "kv_c_raw": ["tokens,dim"], "latent": ["rows,heads,dim"], "logits": ["rows,keys"], "lse": ["rows,heads"],
    "mla_cache": ["pages,tokens,bytes", "cached,dim"], "mla_query": ["rows,heads,dim"], "norm_bias": ["dim"],
    "norm_weight": ["dim"], "output": ["tokens,dim"], "q": ["tokens,heads,dim"], "q_c_raw": ["tokens,dim"],
    "qkv_a": ["tokens,dim"], "rank_indices": ["ranks,rows,columns"], "rank_latent": ["ranks,rows,heads,dim"],
    "rank_lse": ["ranks,rows,heads"], "rank_scores": ["ranks,rows,columns"], "row_lens": ["rows"],
    "row_request": ["rows"], "slot_mapping": ["tokens"], "slots": ["rows,columns"], "topk_indices": ["rows,columns"],
    "weight": ["outputs,inputs"],
}

# Tensors that have a row for each output row of the operation; the other operations are kept whole.
ROWS = {
    "index_query_quant": {"index_q", "index_q_fp8", "index_q_packed", "index_q_scale"},
    "index_weights_fold": {"index_weights", "index_q_scale", "index_weights_folded"},
    "index_key_norm": {"index_k_raw", "index_k"},
    "index_logits_prefill": {"index_q_fp8", "index_q_packed", "index_q_scale", "index_weights",
                             "index_weights_folded", "ks", "ke", "column_origin", "logits"},
    "index_logits_decode": {"index_q_fp8", "index_q_packed", "index_q_scale", "index_weights",
                            "index_weights_folded", "row_lens", "row_request", "logits"},
    "topk": {"logits", "row_lens", "topk_indices", "dcp_scores"},
    "topk_slots": {"topk_indices", "row_request", "row_lens", "slots", "compact_slots", "counts"},
    "sparse_attention": {"mla_query", "slots", "latent", "lse"},
    "output_gate": {"attn_value", "gate", "attn_gated"},
}

OPERATIONS = (
    "layer qkv_a_proj q_norm q_b_proj kv_norm index_q_proj index_k_proj index_w_proj fp8_cast index_query_quant "
    "index_weights_fold index_key_norm index_cache_write index_cache_gather index_logits_prefill index_logits_decode "
    "topk dcp_topk_merge mla_cache_write topk_slots absorb_q sparse_attention dcp_attention_merge absorb_v gate_proj "
    "output_gate o_proj").split()


def axes_of(name, rank):
    for text in _AXES.get(name, []):
        if len(text.split(",")) == rank:
            return text
    return ",".join(f"axis{i}" for i in range(rank))


def host_ids(tensor):
    """Ids of any device as an array."""
    if is_torch(tensor):
        tensor = tensor.detach().cpu().numpy()
    return np.asarray(tensor).astype(np.int64)


def pick(tensor, indices):
    """Entries of the first axis, whatever holds them."""
    if not is_torch(tensor):
        return np.asarray(tensor)[indices]
    torch = sys.modules["torch"]
    if dtype_name(tensor).startswith("float8"):  # few dtypes can be indexed on every device
        return tensor.view(torch.uint8)[torch.from_numpy(indices)].view(tensor.dtype)
    return tensor[torch.from_numpy(indices)]


class Pages:
    """The pages of a pool that ids name, in order, and what to call them once the others are left out."""

    def __init__(self, ids, pool):
        self.pool = pool
        valid = ids[(ids >= 0) & (ids < pool)]
        self.kept = np.unique(valid) if valid.size else np.arange(min(pool, 1))

    def of(self, cache):
        return pick(cache, self.kept)

    def renamed(self, ids):
        """-1 stays, and what is past the pool stays past it."""
        new = np.searchsorted(self.kept, ids)
        new = np.where(ids < 0, ids, np.where(ids >= self.pool, len(self.kept) + ids - self.pool, new))
        return np.minimum(new, np.iinfo(np.int32).max)

    def renamed_slots(self, slots, page_size):
        page = self.renamed(np.where(slots < 0, -1, slots // page_size))
        return np.where(slots < 0, slots, page * page_size + slots % page_size)


def _used_columns(operation, inputs, page_size):
    """How many columns of each row of the block table are read."""
    requests, columns = inputs["block_table"].shape
    if operation == "index_cache_gather":
        lengths = np.diff(host_ids(inputs["cu_seq_lens"]))
    else:
        rows = host_ids(inputs["row_lens"])
        owner = host_ids(inputs["row_request"]) if "row_request" in inputs else \
            np.repeat(np.arange(requests), len(rows) // max(requests, 1))
        lengths = np.zeros(requests, np.int64)
        np.maximum.at(lengths, owner, rows)
    return np.minimum(-(-lengths // page_size), columns)


def compact(operation, inputs, outputs, page_size):
    """Leaves out the pages that the operation does not reach. New dicts."""
    inputs, outputs = dict(inputs), dict(outputs)
    cache = "mla_cache" if operation in ("mla_cache_write", "sparse_attention") else "index_cache"
    if operation in ("index_cache_gather", "index_logits_decode"):
        table = host_ids(inputs["block_table"])
        used = np.arange(table.shape[1]) < _used_columns(operation, inputs, page_size)[:, None]
        pages = Pages(table[used], inputs[cache].shape[0])
        inputs["block_table"] = np.where(used, pages.renamed(table), -1).astype(np.int32)
    elif operation in ("index_cache_write", "mla_cache_write", "sparse_attention"):
        name = "slots" if operation == "sparse_attention" else "slot_mapping"
        slots = host_ids(inputs[name])
        pages = Pages(slots[slots >= 0] // page_size, inputs[cache].shape[0])
        inputs[name] = pages.renamed_slots(slots, page_size).astype(np.int32 if name == "slots" else np.int64)
    else:
        return inputs, outputs
    inputs[cache] = pages.of(inputs[cache])
    for name in outputs:
        if name.partition(".")[0] == cache:
            outputs[name] = pages.of(outputs[name])
    return inputs, outputs
