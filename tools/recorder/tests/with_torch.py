#!/usr/bin/env python3
"""Records a decode step of sparse attention that PyTorch itself computes, on a GPU or the CPU, and replays it.

usage: with_torch.py RUN.h5 [--device cuda|cpu] [--replay DSAKIT [ARGUMENT...]]

Ten operations, from the indexer's key norm to the output gate, with formulas written down here and not shared with
anything that dsakit has. The selection comes from torch.topk, the norm from torch.nn.LayerNorm through a module hook.
Exit code: dsakit's, where it is asked to replay.
"""
import argparse
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import torch  # noqa: E402

from dsakit_recorder import Call, Recorder, RecorderError  # noqa: E402

HEADS, INDEX_HEADS, DIM, LATENT, ROPE = 4, 32, 128, 512, 64
PAGE, TOPK = 16, 8
CONTEXTS = [5, 33, 60, 17]  # with the new token; the first is shorter than TOPK
CONTRACT = {
    "activation_dtype": "bf16", "gate_rounding": "two", "index_fp8_encoding": "e4m3fn", "index_k_floor": "1e-4",
    "index_k_norm": "layernorm", "index_page_layout": "block_flat", "index_q_floor": "1e-10", "lse_base": "e",
    "mla_fp8_encoding": "e4m3fn", "mla_record": "fp8_ds_mla", "page_size": PAGE, "qmax": 448,
    "rmsnorm_rounding": "two", "scale_kind": "ue8m0", "tie_rule": "unspecified", "topk_order": "unspecified",
    "weight_fold": "bf16_intermediate",
}
FP8 = torch.float8_e4m3fn


def power_of_two_scale(amax):
    """2^ceil(log2(amax / 448)), exactly: 448 is 1.75 * 2^8."""
    mantissa, exponent = torch.frexp(amax)  # mantissa in [0.5, 1)
    return torch.ldexp(torch.ones_like(amax), torch.where(mantissa * 2 <= 1.75, exponent - 9, exponent - 8))


def quantise(x, floor):
    """fp8 codes and a power of two for each row of 128."""
    amax = x.float().abs().amax(-1, keepdim=True).clamp_min(floor)
    scale = power_of_two_scale(amax)
    return (x.float() / scale).to(FP8), scale.squeeze(-1)


def write_index_cache(cache, keys, slots):
    codes, scales = quantise(keys, 1e-4)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            page, place = divmod(slot, PAGE)
            cache[page, place * DIM:(place + 1) * DIM] = codes[token].view(torch.uint8)
            at = PAGE * DIM + 4 * place
            cache[page, at:at + 4] = scales[token:token + 1].view(torch.uint8)


def write_mla_cache(cache, kv_c, k_pe, slots):
    tiles = kv_c.float().reshape(-1, 4, 128)
    amax = tiles.abs().amax(-1)
    # By a tensor: PyTorch divides by a number as it multiplies by its reciprocal on a GPU, one ulp beside the kernels.
    scales = (amax / torch.full_like(amax, 448)).clamp_min(torch.finfo(torch.float32).tiny)
    codes = (tiles / scales[..., None]).to(FP8)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            record = cache[slot // PAGE, slot % PAGE]
            record[:512] = codes[token].reshape(-1).view(torch.uint8)
            record[512:528] = scales[token].view(torch.uint8)
            record[528:] = k_pe[token].contiguous().view(torch.uint8)


def index_keys(cache, table, length):
    """Keys of one request in fp32, [length, 128]."""
    pages = cache[table[:-(-length // PAGE)].long()]
    codes = pages[:, :PAGE * DIM].reshape(-1, DIM)[:length].contiguous().view(FP8).float()
    scales = pages[:, PAGE * DIM:].contiguous().view(torch.float32).reshape(-1)[:length]
    return codes, scales


def logits_of(q, weights, cache, tables, lengths):
    logits = torch.full((len(lengths), max(lengths)), -torch.inf, device=q.device)
    for row, length in enumerate(lengths):
        codes, scales = index_keys(cache, tables[row], length)
        dots = q[row].float() @ codes.T
        logits[row, :length] = (dots.relu() * weights[row][:, None]).sum(0) * scales
    return logits


def attention(query, cache, slots, scale):
    records = cache.reshape(-1, 656)
    latents, lses = [], []
    for row in range(len(query)):
        chosen = records[slots[row][slots[row] >= 0].long()]
        codes = chosen[:, :512].contiguous().view(FP8).float().reshape(-1, 4, 128)
        tile_scales = chosen[:, 512:528].contiguous().view(torch.float32)
        values = (codes * tile_scales[..., None]).reshape(-1, 512).to(torch.bfloat16)
        keys = torch.cat([values, chosen[:, 528:].contiguous().view(torch.bfloat16)], 1)
        scores = query[row].float() @ keys.float().T * scale
        latents.append((scores.softmax(-1) @ values.float()).to(torch.bfloat16))
        lses.append(scores.logsumexp(-1))
    return torch.stack(latents), torch.stack(lses)


@torch.no_grad()
def record(path, device):
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = len(CONTEXTS)
    randn = lambda *shape: torch.randn(*shape, device=device).to(torch.bfloat16)  # noqa: E731
    columns = -(-max(CONTEXTS) // PAGE)
    pages = rows * columns + 3  # three of them belong to nobody
    order = torch.randperm(pages)[:rows * columns].reshape(rows, columns)
    used = torch.arange(columns) < torch.tensor([[-(-length // PAGE)] for length in CONTEXTS])
    tables = torch.where(used, order, -1).to(torch.int32).to(device)
    positions = torch.tensor(CONTEXTS, device=device) - 1
    slots_of = lambda row, position: tables[row, position // PAGE].long() * PAGE + position % PAGE  # noqa: E731
    new_slots = torch.stack([slots_of(row, positions[row]) for row in range(rows)])
    row_lens = torch.tensor(CONTEXTS, dtype=torch.int32, device=device)
    row_request = torch.arange(rows, dtype=torch.int32, device=device)
    index_cache = torch.full((pages, PAGE * 132), 0xA5, dtype=torch.uint8, device=device)
    mla_cache = torch.full((pages, PAGE, 656), 0xA5, dtype=torch.uint8, device=device)
    for row, length in enumerate(CONTEXTS):  # earlier tokens
        earlier = torch.tensor([int(slots_of(row, position)) for position in range(length - 1)])
        write_index_cache(index_cache, randn(length - 1, DIM), earlier)
        write_mla_cache(mla_cache, randn(length - 1, LATENT), randn(length - 1, ROPE), earlier)

    provenance = {"producer": f"torch {torch.__version__} on {device}", "seed": 1}
    with Recorder(path, contract=CONTRACT, config={"rms_norm_eps": 1e-5, "index_topk": TOPK}, provenance=provenance,
                  compact_pages=False) as recorder:
        norm = torch.nn.LayerNorm(DIM, eps=1e-5, device=device, dtype=torch.bfloat16)
        with torch.no_grad():
            norm.weight.copy_(1 + 0.1 * torch.randn(DIM, device=device))
            norm.bias.copy_(0.1 * torch.randn(DIM, device=device))
        recorder.hook_module(norm, lambda arguments, result, _: Call(
            "index_key_norm", {"index_k_raw": arguments["input"], "norm_weight": norm.weight, "norm_bias": norm.bias},
            {"index_k.torch": result}))
        index_k = norm(randn(rows, DIM))

        index_q = randn(rows, INDEX_HEADS, DIM)
        q_fp8, q_scale = quantise(index_q, 1e-10)
        recorder.record("index_query_quant", {"index_q": index_q},
                        {"index_q_fp8.torch": q_fp8, "index_q_scale.torch": q_scale})

        index_weights = randn(rows, INDEX_HEADS)
        folded = (index_weights.float() * torch.tensor(INDEX_HEADS ** -0.5, device=device)).to(torch.bfloat16).float() * q_scale * \
            torch.tensor(DIM ** -0.5, device=device)
        recorder.record("index_weights_fold", {"index_weights": index_weights, "index_q_scale": q_scale},
                        {"index_weights_folded.torch": folded})

        before = index_cache.clone()
        write_index_cache(index_cache, index_k, new_slots)
        recorder.record("index_cache_write", {"index_k": index_k, "slot_mapping": new_slots, "index_cache": before},
                        {"index_cache.torch": index_cache})

        logits = logits_of(q_fp8, folded, index_cache, tables, CONTEXTS)
        recorder.record("index_logits_decode",
                        {"index_q_fp8": q_fp8, "index_cache": index_cache, "index_weights_folded": folded,
                         "block_table": tables, "row_lens": row_lens, "row_request": row_request},
                        {"logits.torch": logits}, attributes={"logits.torch": {"accumulation": "fp32"}})

        selected = logits.topk(TOPK, sorted=True).indices.to(torch.int32)
        for row, length in enumerate(CONTEXTS):
            if length <= TOPK:  # taken whole, in order
                places = torch.arange(TOPK, device=device)
                selected[row] = torch.where(places < length, places, -1)
        recorder.record("topk", {"logits": logits, "row_lens": row_lens}, {"topk_indices.torch": selected})

        kv_c, k_pe = randn(rows, LATENT), randn(rows, ROPE)
        before = mla_cache.clone()
        write_mla_cache(mla_cache, kv_c, k_pe, new_slots)
        recorder.record("mla_cache_write", {"kv_c": kv_c, "k_pe": k_pe, "slot_mapping": new_slots, "mla_cache": before},
                        {"mla_cache.torch": mla_cache})

        column = (selected.clamp_min(0) // PAGE).long()
        slots = torch.where(selected < 0, -1, tables.gather(1, column) * PAGE + selected % PAGE).to(torch.int32)
        recorder.record("topk_slots", {"topk_indices": selected, "block_table": tables, "row_request": row_request},
                        {"slots.torch": slots})

        scale = (128 + 64) ** -0.5
        query = randn(rows, HEADS, LATENT + ROPE)
        latent, lse = attention(query, mla_cache, slots, scale)
        said = {"accumulation": "fp32", "mla_scale_read": "fp32"}
        recorder.record("sparse_attention", {"mla_query": query, "mla_cache": mla_cache, "slots": slots},
                        {"latent.torch": latent, "lse.torch": lse}, config={"softmax_scale": scale},
                        attributes={"latent.torch": said, "lse.torch": said})

        value, gate = randn(rows, HEADS * 128), randn(rows, HEADS * 128)
        recorder.record("output_gate", {"attn_value": value, "gate": gate},
                        {"attn_gated.torch": value * torch.sigmoid(gate)})

    if device == "cuda":
        refuses_in_a_graph(path + ".never", value, gate)


def refuses_in_a_graph(path, value, gate):
    """A recorder that took part in a capture would record what was never computed."""
    recorder = Recorder(path)
    graph = torch.cuda.CUDAGraph()
    refused = ""
    with torch.cuda.graph(graph):
        gated = value * torch.sigmoid(gate)
        try:
            recorder.record("output_gate", {"attn_value": value, "gate": gate}, {"attn_gated.torch": gated})
        except RecorderError as error:
            refused = str(error)
    recorder.abort()
    if "inside graph capture" not in refused:
        sys.exit(f"graph capture: found {refused or 'a recording'!r}, want a refusal")
    print(f"refused as it must be: {refused}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--replay", nargs=argparse.REMAINDER, help="a dsakit, and arguments of replay")
    options = parser.parse_args()
    record(options.path, options.device)
    print(f"{options.path}: recorded on {options.device}")
    if options.replay:
        program, *more = options.replay
        sys.exit(subprocess.run([program, "replay", options.path, *more]).returncode)


if __name__ == "__main__":
    main()
