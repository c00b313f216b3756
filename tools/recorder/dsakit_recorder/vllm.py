"""vLLM's sparse indexer and sparse MLA operations, and what dsakit calls them.

    import dsakit_recorder.vllm
    recorder = dsakit_recorder.vllm.attach(Recorder("run.h5", contract={"index_fp8_encoding": "e4m3fnuz"}))

or, without a change to the program, where this package is installed: DSAKIT_RECORD=run-{rank}.h5 vllm serve ...
RULES is the table; RULES.append(Rule(...)) extends it.

A rule says what the operation is of the call's own arguments; what no call says (index_fp8_encoding of a uint8
cache) is the recorder's contract, whose index_page_layout goes before what the table takes a cache for. A rule gives
one Call or None.
"""
import atexit
import importlib
import os
import sys
from dataclasses import dataclass
from typing import Callable, Optional

import numpy as np

from .operations import Pages, host_ids
from .recorder import Call, Recorder, RecorderError
from .tensors import dtype_name


@dataclass
class Rule:
    """The function `name` of `module`; `after` and `before` as Recorder.hook takes them. `parameters` names those of
    a function that cannot be asked, as torch's own operations."""
    module: str
    name: str
    after: Callable
    before: Optional[Callable] = None
    parameters: str = ""


def _activation(tensor):
    return {"bfloat16": "bf16", "float16": "fp16"}[dtype_name(tensor)]


def _merged(tensor, rank):
    """Leading axes become one until `rank` are left."""
    return tensor.reshape((-1,) + tuple(tensor.shape[len(tensor.shape) - rank + 1:]))


def _pages(cache):
    """[pages, bytes] of [pages, tokens, bytes] or [pages, tokens, 1, bytes]."""
    return cache.reshape((cache.shape[0], -1))


def _encoding(*tensors):
    """{"index_fp8_encoding": ...} where a tensor's own dtype says it."""
    for tensor in tensors:
        name = dtype_name(tensor)
        if name.startswith("float8_e4m3"):
            return {"index_fp8_encoding": name[len("float8_"):]}
    return {}


# -- the indexer's cache --------------------------------------------------------------------------------------------

def _touched_pages(a):
    """The pages that are written and what they hold before; the pool may be the whole memory."""
    page_size = a["kv_cache"].shape[1]
    slots = host_ids(a["slot_mapping"]).reshape(-1)
    pages = Pages(slots[slots >= 0] // page_size, a["kv_cache"].shape[0])
    before = pages.of(a["kv_cache"])
    return pages, before, pages.renamed_slots(slots, page_size)


def _index_cache_write(layout):
    def after(a, result, kept):
        pages, before, slots = kept
        tokens = len(slots)
        return Call(
            "index_cache_write",
            {"index_k": _merged(a["k"], 2)[:tokens], "slot_mapping": slots, "index_cache": _pages(before)},
            {"index_cache.vllm": _pages(pages.of(a["kv_cache"]))},
            contract={"index_page_layout": layout(a), "page_size": a["kv_cache"].shape[1],
                      "activation_dtype": _activation(a["k"]), "index_k_floor": "1e-4",
                      "scale_kind": "ue8m0" if a.get("scale_fmt", a.get("kv_cache_dtype")) == "ue8m0" else "fp32", **_encoding(before)},
            dtypes={"index_cache": "uint8"})
    return after


def _rocm_layout(a):
    """The Triton writer tiles pages of more than one token unless it is told otherwise."""
    if a.get("cache_layout") is not None:
        return "block_flat" if a["cache_layout"] == "NORMAL" else "mfma_preshuffle"
    return "block_flat" if a["kv_cache"].shape[1] == 1 else "mfma_preshuffle"


def _gather_names(a):
    """The two functions name the same arguments differently."""
    return (a.get("k_cache", a.get("kv_cache")), a.get("k_fp8", a.get("dst_k")),
            a.get("k_fp8_scale", a.get("dst_scale")), a["block_table"], a.get("cu_seqlen", a.get("cu_seq_lens")))


def _scales(tensor):
    """fp32 [rows] of [rows, 4] bytes or [rows, 1]."""
    if dtype_name(tensor) == "uint8":
        float32 = sys.modules["torch"].float32 if hasattr(tensor, "detach") else np.float32
        tensor = tensor.view(float32)
    return tensor.reshape((-1,))


def _gather_before(a):
    _, keys, scales, _, _ = _gather_names(a)
    copy = (lambda tensor: tensor.clone()) if hasattr(keys, "clone") else np.copy
    return copy(keys), copy(_scales(scales))


def _index_cache_gather(layout):
    def after(a, result, kept):
        cache, keys, scales, table, bounds = _gather_names(a)
        total = int(host_ids(bounds)[-1])
        owner = a.get("token_to_seq")
        return Call(
            "index_cache_gather",
            {"index_cache": _pages(cache), "block_table": table, "cu_seq_lens": bounds,
             "k_fp8": kept[0][:total], "k_scale": kept[1][:total],
             **({"row_request": owner[:total]} if owner is not None else {})},
            {"k_fp8.vllm": keys[:total], "k_scale.vllm": _scales(scales)[:total]},
            contract={"index_page_layout": layout({**a, "kv_cache": cache}), "page_size": cache.shape[1],
                      **_encoding(keys)},
            dtypes={"index_cache": "uint8"})
    return after


# -- scores and selection -------------------------------------------------------------------------------------------

def _query_quant(a, result, kept):
    x = a["x"]
    if x.shape[-1] != 128 or a["group_size"] != 128:
        return None  # other layers quantise their activations by it, too
    codes, scales = result[0], result[1]
    heads = x.shape[-2] if len(x.shape) == 3 else 1
    rows = lambda tensor, width: tensor.reshape((-1, heads) + ((width,) if width else ()))  # noqa: E731
    encoding = _encoding(codes)
    fnuz = encoding.get("index_fp8_encoding") == "e4m3fnuz"
    return Call(
        "index_query_quant", {"index_q": rows(x, 128)},
        {"index_q_fp8.vllm": rows(codes, 128), "index_q_scale.vllm": rows(scales, 0)},
        contract={"activation_dtype": _activation(x), "index_q_floor": repr(float(a.get("eps", 1e-10))),
                  "scale_kind": "ue8m0" if a.get("use_ue8m0") else "fp32", "qmax": 224 if fnuz else 448, **encoding})


def _accumulation():
    """FP8 products on sm_90 are added with 14 bits; AMD's matrix cores have fp32."""
    version = getattr(sys.modules.get("torch"), "version", None)
    return {"logits.vllm": {"accumulation": "fp32" if getattr(version, "hip", None) else "sm90_wgmma_fp8"}}


def _logits_prefill(a, result, kept):
    q, (keys, scales) = a["q"], a["kv"]
    return Call(
        "index_logits_prefill",
        {"index_q_fp8": q, "k_fp8": keys, "k_scale": _scales(scales),
         "index_weights_folded": a["weights"], "ks": a["cu_seqlen_ks"], "ke": a["cu_seqlen_ke"]},
        {"logits.vllm": result}, contract=_encoding(q, keys), attributes=_accumulation())


def _row_lengths(lengths, rows):
    """One for each row: given so, or the request's, of which the last row sees all."""
    lengths = host_ids(lengths)
    if lengths.size == rows:
        return np.maximum(lengths.reshape(-1), 0)
    next_n = rows // lengths.size
    return np.maximum(lengths.reshape(-1, 1) - next_n + np.arange(next_n) + 1, 0).reshape(-1)


def _logits_decode(layout):
    def after(a, result, kept):
        q, cache = (a[name] if name in a else a[name.replace("_fp8", "")] for name in ("q_fp8", "kv_cache_fp8"))
        requests = q.shape[0]
        q = _merged(q, 3)
        rows = q.shape[0]
        lengths = _row_lengths(a["context_lens"], rows)
        return Call(
            "index_logits_decode",
            {"index_q_fp8": q, "index_cache": _pages(cache), "index_weights_folded": a["weights"],
             "block_table": a["block_tables"], "row_lens": lengths.astype(np.int32),
             "row_request": np.repeat(np.arange(requests, dtype=np.int32), rows // requests)},
            {"logits.vllm": result[:rows, :max(int(lengths.max(initial=0)), 1)]},
            contract={"index_page_layout": layout({**a, "kv_cache": cache}), "page_size": cache.shape[1],
                      **_encoding(q)},
            attributes=_accumulation(), dtypes={"index_cache": "uint8"})
    return after


_OPEN_SELECTION = {"tie_rule": "unspecified", "topk_order": "unspecified"}


def _topk_prefill(a, result, kept):
    """Rows start at their window's first column: positions count from there."""
    rows = a["num_rows"]
    starts, ends = host_ids(a["cu_seqlen_ks"])[:rows], host_ids(a["cu_seqlen_ke"])[:rows]
    lengths = np.maximum(ends - starts, 0)
    logits = a["logits"][:rows]
    logits = logits.detach().cpu().numpy() if hasattr(logits, "detach") else logits
    local = np.full((rows, max(int(lengths.max(initial=0)), 1)), -np.inf, np.float32)
    for row in range(rows):
        local[row, :lengths[row]] = logits[row, starts[row]:starts[row] + lengths[row]]
    return Call("topk", {"logits": local, "row_lens": lengths.astype(np.int32)},
                {"topk_indices.vllm": a["raw_topk_indices"][:rows, :a["topk_tokens"]]}, contract=_OPEN_SELECTION)


def _topk_decode(a, result, kept):
    rows = a["num_rows"]
    lengths = _row_lengths(a["seq_lens"], rows)
    return Call("topk", {"logits": a["logits"][:rows, :max(int(lengths.max(initial=0)), 1)],
                         "row_lens": lengths.astype(np.int32)},
                {"topk_indices.vllm": a["raw_topk_indices"][:rows, :a["topk_tokens"]]}, contract=_OPEN_SELECTION)


# -- the latents' cache and attention -------------------------------------------------------------------------------

def _mla_before(a):
    return _touched_pages(a) if a["kv_cache_dtype"] == "fp8_ds_mla" else None


def _mla_cache_write(a, result, kept):
    if kept is None:
        return None  # rows of another kind, which dsakit does not replay
    pages, before, slots = kept
    tokens = len(slots)
    return Call("mla_cache_write",
                {"kv_c": _merged(a["kv_c"], 2)[:tokens], "k_pe": _merged(a["k_pe"], 2)[:tokens],
                 "slot_mapping": slots, "mla_cache": before},
                {"mla_cache.vllm": pages.of(a["kv_cache"])},
                contract={"mla_record": "fp8_ds_mla", "page_size": a["kv_cache"].shape[1],
                          "activation_dtype": _activation(a["kv_c"])},
                dtypes={"mla_cache": "uint8"})


def _topk_slots(a, result, kept):
    if a.get("HAS_PREFILL_WORKSPACE"):
        return None  # positions of prefill rows become places in a workspace
    outputs = {"slots.vllm": result}
    if a.get("return_valid_counts"):
        outputs = {"slots.vllm": result[0], "counts.vllm": result[1]}
    return Call("topk_slots", {"topk_indices": a["token_indices"], "block_table": a["block_table"],
                               "row_request": a["req_id"]}, outputs, contract={"page_size": a["BLOCK_SIZE"]})


def _sparse_decode(a, result, kept):
    if a.get("indices") is None or not a.get("is_fp8_kvcache"):
        return None  # dense attention, or a cache of another kind
    q, cache = a["q"], a["k_cache"]
    out, lse = result[0], result[1]
    scale = a.get("softmax_scale")
    return Call("sparse_attention",
                {"mla_query": _merged(q, 3), "mla_cache": cache.reshape((cache.shape[0], cache.shape[1], -1)),
                 "slots": _merged(a["indices"], 2)},
                {"latent.flashmla": _merged(out, 3), "lse.flashmla": _merged(_last_two_swapped(lse), 2)},
                contract={"mla_record": "fp8_ds_mla", "page_size": cache.shape[1], "lse_base": "e"},
                config={"softmax_scale": repr(float(scale if scale is not None else q.shape[-1] ** -0.5))},
                attributes={name: {"accumulation": "fp32", "mla_scale_read": "bf16"}
                            for name in ("latent.flashmla", "lse.flashmla")},
                dtypes={"mla_cache": "uint8"})


def _last_two_swapped(lse):
    """[requests, heads, tokens] -> [requests, tokens, heads]"""
    return lse.transpose(1, 2) if hasattr(lse, "detach") else np.swapaxes(lse, 1, 2)


def _flat(_):
    return "block_flat"


_OPS = "vllm._custom_ops"
_ROCM = "vllm.v1.attention.ops.rocm_aiter_mla_sparse"
_DEEP_GEMM = "vllm.utils.deep_gemm"

RULES = [
    Rule(_OPS, "indexer_k_quant_and_cache", _index_cache_write(_flat), _touched_pages),
    Rule(_ROCM, "indexer_k_quant_and_cache_triton", _index_cache_write(_rocm_layout), _touched_pages),
    Rule(_OPS, "cp_gather_indexer_k_quant_cache", _index_cache_gather(_flat), _gather_before),
    Rule(_ROCM, "cp_gather_indexer_k_quant_cache_triton", _index_cache_gather(_rocm_layout), _gather_before),
    Rule("vllm.model_executor.layers.quantization.utils.fp8_utils", "per_token_group_quant_fp8", _query_quant),
    Rule(_DEEP_GEMM, "fp8_mqa_logits", _logits_prefill),
    Rule(_ROCM, "rocm_fp8_mqa_logits", _logits_prefill),
    Rule(_DEEP_GEMM, "fp8_paged_mqa_logits", _logits_decode(_flat)),
    Rule(_ROCM, "rocm_fp8_paged_mqa_logits", _logits_decode(_rocm_layout)),
    Rule("torch.ops._C", "top_k_per_row_prefill", _topk_prefill, parameters=(
        "logits cu_seqlen_ks cu_seqlen_ke raw_topk_indices num_rows stride0 stride1 topk_tokens")),
    Rule("torch.ops._C", "top_k_per_row_decode", _topk_decode, parameters=(
        "logits next_n seq_lens raw_topk_indices num_rows stride0 stride1 topk_tokens")),
    Rule(_OPS, "concat_and_cache_mla", _mla_cache_write, _mla_before),
    Rule("vllm.v1.attention.backends.mla.sparse_utils", "triton_convert_req_index_to_global_index", _topk_slots),
    Rule("vllm.v1.attention.ops.flashmla", "flash_mla_with_kvcache", _sparse_decode),
]


def attach(recorder, rules=None, skip=0, calls=None):
    """Hooks every function of the table that this vLLM has; the recorder, whose missing lists the others.

    Of each function the first `skip` calls pass (a server warms up with dummies), then at most `calls` are recorded.
    """
    encoding = recorder.contract.get("index_fp8_encoding", recorder.contract.get("mla_fp8_encoding"))
    if encoding:
        recorder.contract.setdefault("qmax", "224" if encoding == "e4m3fnuz" else "448")  # vLLM's writers
    recorder.missing = []
    for rule in RULES if rules is None else rules:
        try:
            module = _find(rule.module)
            getattr(module, rule.name)
        except Exception as error:  # noqa: BLE001 a module for another GPU fails in its own way
            recorder.missing.append(f"{rule.module}.{rule.name}: {type(error).__name__}")
            continue
        recorder.hook(module, rule.name, *_counted(rule, recorder, skip, calls), parameters=rule.parameters)
    if len(recorder.missing) == len(RULES if rules is None else rules):
        raise RecorderError("vllm: found none of the functions of the table: " + "; ".join(recorder.missing))
    return recorder


def _find(path):
    """A module, or what attributes of one lead to: torch.ops._C is no module."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        owner, dot, name = path.rpartition(".")
        if not dot:
            raise
        return getattr(_find(owner), name)


def _counted(rule, recorder, skip, calls):
    seen = [0]

    def before(arguments):
        seen[0] += 1
        wanted = seen[0] > skip and (calls is None or seen[0] <= skip + calls)
        return (rule.before(arguments) if rule.before else None,) if wanted else None

    def after(arguments, result, kept):
        call = rule.after(arguments, result, kept[0]) if kept is not None else None
        if call is not None and "index_page_layout" in recorder.contract:
            call.contract.pop("index_page_layout", None)  # who watches knows better than the table
        return call

    return after, before


def install():
    """Records as the variable DSAKIT_RECORD says; does nothing without it. vLLM calls it in each of its processes.

    DSAKIT_RECORD=FILE.h5[,skip=N][,calls=N][,rows=N][,max_mib=N][,KEY=VALUE...]: KEY is one of the contract. In FILE
    {rank} is torch.distributed's rank or the variable RANK, {pid} the process. The file appears when the process ends.
    """
    text = os.environ.get("DSAKIT_RECORD", "")
    if not text or _installed:
        return _installed[0] if _installed else None
    path, *options = text.split(",")
    numbers = {"skip": 0, "calls": 1, "rows": None, "max_mib": 1024}
    contract = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or (key in numbers and not value.isdigit()):
            raise RecorderError(f"DSAKIT_RECORD: found {option!r}, want {'a number' if equals else 'KEY=VALUE'}")
        if key in numbers:
            numbers[key] = int(value)
        else:
            contract[key] = value
    path = path.replace("{rank}", _rank()).replace("{pid}", str(os.getpid()))
    recorder = Recorder(path, contract=contract, rows=numbers["rows"], max_bytes=numbers["max_mib"] << 20)
    try:
        attach(recorder, skip=numbers["skip"], calls=numbers["calls"])
    except RecorderError:
        recorder.abort()
        raise
    _installed.append(recorder)
    atexit.register(_finish, recorder)
    return recorder


_installed = []


def _finish(recorder):
    try:
        recorder.close()
    except RecorderError as error:  # a process that ran none of these operations
        print(f"dsakit_recorder: {error}", file=sys.stderr)
    _installed.clear()


def _rank():
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return str(distributed.get_rank())
    return os.environ.get("RANK", "0")
