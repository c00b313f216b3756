"""Takes operations as vLLM's module of that name does: one by name, one from torch."""
import torch
from vllm.utils.deep_gemm import fp8_paged_mqa_logits


def score(*arguments):
    return fp8_paged_mqa_logits(*arguments)


def select(*arguments):
    torch.ops._C.top_k_per_row_decode(*arguments)
