"""The table of vLLM's operations, on stand-ins of their names and signatures that give what real kernels gave.

Each recording that the hooks make replays: arguments went to the right tensors, and the contract is the right one.
"""
import importlib
import warnings

from support import (HERE, Golden, Payload, Recorder, RecorderTest, Recording, np, of, os, subprocess, sys, tensor,
                     torch, unittest)
from vllm import _custom_ops, player

import dsakit_recorder.vllm as table
from dsakit_recorder import Call, RecorderError

_ROCM = importlib.import_module("vllm.v1.attention.ops.rocm_aiter_mla_sparse")
_FLASHMLA = importlib.import_module("vllm.v1.attention.ops.flashmla")
_SPARSE_UTILS = importlib.import_module("vllm.v1.attention.backends.mla.sparse_utils")
_FP8_UTILS = importlib.import_module("vllm.model_executor.layers.quantization.utils.fp8_utils")
_DEEP_GEMM = importlib.import_module("vllm.utils.deep_gemm")
_INDEXER = importlib.import_module("vllm.model_executor.layers.sparse_attn_indexer")

FN = {"index_fp8_encoding": "e4m3fn", "mla_fp8_encoding": "e4m3fn"}


def in_a_pool(cache, page_of, pool):
    """The pages of `cache` spread over a pool of `pool`; `page_of` says where each lies."""
    bits = np.full((pool,) + cache.shape[1:], 0xA5, np.uint8)
    bits[page_of] = cache._bits
    return torch.Tensor(bits, cache.dtype, cache.device)


class Table(RecorderTest):
    """Each test calls a stand-in as vLLM calls the operation."""

    def setUp(self):
        super().setUp()
        self.options = {"contract": FN}
        self.recorder = None

    def attach(self, **attach):
        self.recorder = table.attach(Recorder(self.path, **self.options), **attach)
        self.addCleanup(self.recorder.abort)
        return self.recorder

    def finish(self, operation, lines):
        """Closes the file, which must replay, and gives what it holds."""
        self.recorder.close()
        self.assertEqual(self.recorder.left_out, [])
        self.assertIn(f"verdict: pass ({lines} comparisons", self.replays())
        recording = Recording(self.path)
        self.assertEqual([name for _, name in recording.operations], [operation])
        return recording

    def cache_write(self, module, name, golden, **more):
        """Through a pool ten times as large, whose other pages must not be in the file."""
        before, after = golden.input("index_cache"), golden.output("index_cache")
        pages, page_size = before.shape[0], int(golden.contract["page_size"])
        places = np.arange(pages)[::-1] * 10 + 3
        three_axes = (pages, page_size, 132)
        cache = in_a_pool(before.reshape(three_axes), places, pages * 10)
        slots = golden.payload("inputs", "slot_mapping").bits.view(np.int64)
        moved = np.where(slots < 0, slots, places[np.maximum(slots, 0) // page_size] * page_size + slots % page_size)

        def answer(kv_cache):
            kv_cache._bits[places] = after.reshape(three_axes)._bits

        player.answers["indexer_k_quant_and_cache"] = answer
        self.attach()
        getattr(module, name)(golden.input("index_k"), cache, of(moved), 128, "ue8m0", **more)
        recording = self.finish("index_cache_write", 3)
        recorded = recording.numpy(0, "index_cache_write", "inputs", "index_cache")
        touched = np.unique(slots[slots >= 0] // page_size)
        np.testing.assert_array_equal(recorded[::-1], before._bits[touched])  # places are in reverse
        return recording

    def test_index_cache_write(self):
        recording = self.cache_write(_custom_ops, "indexer_k_quant_and_cache",
                                     Golden("kernel_cache_write", "index_cache_write"))
        self.assertEqual(recording.contract(0)["index_page_layout"], "block_flat")

    def test_index_cache_write_on_rocm(self):
        self.cache_write(_ROCM, "indexer_k_quant_and_cache_triton",
                         Golden("kernel_index_insert_normal", "index_cache_write"), cache_layout="NORMAL")

    def test_the_rocm_writer_tiles_pages_unless_told(self):
        golden = Golden("kernel_index_insert_normal", "index_cache_write")
        self.options["contract"] = {**FN}
        player.answers["indexer_k_quant_and_cache"] = lambda kv_cache: None
        self.attach()
        cache = golden.input("index_cache").reshape((8, 64, 132))
        _ROCM.indexer_k_quant_and_cache_triton(golden.input("index_k"), cache, golden.input("slot_mapping"), 128, "ue8m0")
        self.recorder.close()
        with Recording(self.path) as recording:
            self.assertEqual(recording.contract(0)["index_page_layout"], "mfma_preshuffle")

    def test_index_cache_gather(self):
        for name, module, function, more in (
                ("kernel_cache_write", _custom_ops, "cp_gather_indexer_k_quant_cache", ()),
                ("kernel_index_insert_normal", _ROCM, "cp_gather_indexer_k_quant_cache_triton",
                 ("row_request", 16, 16, "NORMAL"))):
            golden = Golden(name, "index_cache_gather")
            keys, scales = golden.input("k_fp8"), golden.input("k_scale").reshape((-1, 1)).view(torch.uint8)
            cache = golden.input("index_cache")

            def answer(dst_k, dst_scale):
                dst_k._bits[:] = golden.output("k_fp8")._bits
                dst_scale._bits[:] = golden.output("k_scale").reshape((-1, 1)).view(torch.uint8)._bits

            player.answers["cp_gather_indexer_k_quant_cache"] = answer
            self.attach()
            getattr(module, function)(cache.reshape((cache.shape[0], 64, 132)), keys, scales, golden.input("block_table"),
                     golden.input("cu_seq_lens"),
                                      *[golden.input(one) if one == "row_request" else one for one in more])
            self.finish("index_cache_gather", 6)

    def decode(self, requests, context, name="kernel_logits_paged_rocm_h32_n2"):
        golden = Golden(name, "index_logits_decode")
        q = golden.input("index_q_fp8")
        cache = golden.input("index_cache")
        logits = golden.output("logits.vllm")
        wide = np.full((logits.shape[0], 3000), 0x7FC00000, np.uint32)  # a workspace: stale beyond each row
        wide[:, :logits.shape[1]] = logits._bits
        player.answers["fp8_paged_mqa_logits"] = lambda: torch.Tensor(wide, torch.float32, "cuda:0")
        return (q.reshape((requests, -1) + q.shape[1:]), cache.reshape((cache.shape[0], 64, 1, 132)),
                golden.input("index_weights_folded"), golden.input(context), golden.input("block_table"), None, 3000)

    def test_index_logits_decode(self):
        arguments = self.decode(5, "context_lens")
        self.options["contract"] = {**FN, "index_page_layout": "block_flat"}  # the table would take it for tiled
        self.attach()
        result = _ROCM.rocm_fp8_paged_mqa_logits(*arguments)
        self.assertEqual(result.shape, (10, 3000))
        self.finish("index_logits_decode", 3)

    def test_a_sample_of_decode_rows_leaves_pages_out(self):
        arguments = self.decode(10, "row_lens")
        for rows in (None, 2):
            self.options["rows"] = rows
            self.attach()
            table_of_rows = arguments[4]._bits.repeat(2, axis=0)
            _DEEP_GEMM.fp8_paged_mqa_logits(*arguments[:4], torch.Tensor(table_of_rows, torch.int32, "cuda:0"),
                                            *arguments[5:])
            recording = self.finish("index_logits_decode", 3)
            pages = recording.numpy(0, "index_logits_decode", "inputs", "index_cache").shape[0]
        self.assertLess(pages, arguments[1].shape[0])
        self.assertEqual(recording.numpy(0, "index_logits_decode", "inputs", "row_request").shape, (2,))

    def test_index_logits_prefill(self):
        """Of three rows with integers, which any order of sums gets exactly."""
        rng = np.random.default_rng(3)
        one, two = 0x38, 0x40  # 1 and 2 as e4m3fn
        q = rng.choice([one, two, 0], (3, 4, 128)).astype(np.uint8)
        k = rng.choice([one, 0, 0x80 + one], (9, 128)).astype(np.uint8)
        value = {one: 1.0, two: 2.0, 0: 0.0, 0x80 + one: -1.0}
        dots = np.einsum("mhd,nd->mhn", np.vectorize(value.get)(q), np.vectorize(value.get)(k))
        weights = rng.integers(-2, 3, (3, 4)).astype(np.float32)
        logits = (np.maximum(dots, 0) * weights[:, :, None]).sum(1).astype(np.float32) * 0.5
        ks, ke = np.array([0, 2, 4], np.int32), np.array([3, 9, 4], np.int32)
        fp8 = lambda codes: tensor(Payload("float8_e4m3fn", codes))  # noqa: E731
        self.addCleanup(setattr, torch.version, "hip", None)
        for hip, module, function, more in (("7.0", _ROCM, "rocm_fp8_mqa_logits", ()),
                                            (None, _DEEP_GEMM, "fp8_mqa_logits", (True,))):
            torch.version.hip = hip
            player.answers["fp8_mqa_logits"] = lambda: of(logits)
            self.attach()
            getattr(module, function)(fp8(q), (fp8(k), of(np.full((9, 1), 0.5, np.float32))), of(weights), of(ks), of(ke),
                                      *more)
            recording = self.finish("index_logits_prefill", 3)
            said = recording.attributes(0, "index_logits_prefill", "outputs", "logits.vllm")
            self.assertEqual(said["accumulation"], "fp32" if hip else "sm90_wgmma_fp8")

    def test_topk(self):
        golden = Golden("kernel_topk", "topk")
        logits, lengths = golden.input("logits"), golden.payload("inputs", "row_lens").bits.view(np.int32)
        rows, keys = logits.shape
        chosen = golden.output("topk_indices.vllm")

        def answer(raw_topk_indices):
            raw_topk_indices._bits[:rows] = chosen._bits

        player.answers["top_k_per_row"] = answer
        buffer = lambda: torch.Tensor(np.zeros((rows + 2, 2048), np.uint32), torch.int32, "cuda:0")  # noqa: E731
        self.attach()
        _INDEXER.select(logits, 1, of(lengths), buffer(), rows, keys, 1, 2048)
        self.finish("topk", 3)

        # Prefill: the same rows, each in a window of its own further to the right.
        starts = np.arange(rows, dtype=np.int32) * 7
        shifted = np.full((rows, keys + 7 * rows), np.nan, np.float32)
        for row in range(rows):
            shifted[row, starts[row]:starts[row] + keys] = logits._bits[row].view(np.float32)
        self.attach()
        _custom_ops.top_k_per_row_prefill(of(shifted), of(starts), of(starts + lengths), buffer(), rows, shifted.shape[1],
                                          1, 2048)
        self.finish("topk", 3)

    def test_mla_cache_write(self):
        golden = Golden("kernel_cache_write", "mla_cache_write")
        cache = golden.input("mla_cache")

        def answer(kv_cache):
            kv_cache._bits[:] = golden.output("mla_cache")._bits

        player.answers["concat_and_cache_mla"] = answer
        k_pe = golden.input("k_pe")
        self.attach()
        arguments = (golden.input("kv_c"), k_pe.reshape((k_pe.shape[0], 1, 64)), cache, golden.input("slot_mapping"))
        _custom_ops.concat_and_cache_mla(*arguments, "fp8", None)  # not the kind that dsakit replays
        _custom_ops.concat_and_cache_mla(*arguments[:2], golden.input("mla_cache"), arguments[3], "fp8_ds_mla", None)
        self.finish("mla_cache_write", 3)

    def test_topk_slots(self):
        golden = Golden("kernel_index_convert", "topk_slots")
        answers = (golden.output("slots"), golden.output("counts"))
        player.answers["triton_convert_req_index_to_global_index"] = lambda: answers
        self.attach()
        arguments = golden.input("row_request"), golden.input("block_table"), golden.input("topk_indices")
        _SPARSE_UTILS.triton_convert_req_index_to_global_index(*arguments, BLOCK_SIZE=64, return_valid_counts=True)
        _SPARSE_UTILS.triton_convert_req_index_to_global_index(*arguments, HAS_PREFILL_WORKSPACE=True)
        self.finish("topk_slots", 7)

    def test_sparse_attention(self):
        golden = Golden("kernel_mla_decode_h64", "sparse_attention")
        q, cache, slots = (golden.input(name) for name in ("mla_query", "mla_cache", "slots"))
        latent, lse = golden.output("latent"), golden.output("lse")
        rows = q.shape[0]
        answers = (latent.reshape((rows, 1, 64, 512)), lse.reshape((rows, 64, 1)))
        player.answers["flash_mla_with_kvcache"] = lambda: answers
        self.attach()
        _FLASHMLA.flash_mla_with_kvcache(
            q.reshape((rows, 1, 64, 576)), cache.reshape((cache.shape[0], 64, 1, 656)), None, None, 512, None,
            is_fp8_kvcache=True, indices=slots.reshape((rows, 1, -1)))
        self.finish("sparse_attention", 6)

    def test_index_query_quant(self):
        golden = Golden("kernel_quant_q", "index_query_quant")
        answers = (golden.output("index_q_fp8"), golden.output("index_q_scale"))
        player.answers["per_token_group_quant_fp8"] = lambda: answers
        x = golden.input("index_q")
        self.attach()
        _FP8_UTILS.per_token_group_quant_fp8(x.reshape((1, -1)), 128)  # another layer's activations
        _FP8_UTILS.per_token_group_quant_fp8(x, 128, use_ue8m0=True)
        self.finish("index_query_quant", 6)


class Hooks(RecorderTest):
    def select(self, module=_INDEXER):
        golden = Golden("kernel_topk", "topk")
        rows, keys = golden.input("logits").shape

        def answer(raw_topk_indices):
            raw_topk_indices._bits[:rows] = golden.output("topk_indices.vllm")._bits

        player.answers["top_k_per_row"] = answer
        buffer = torch.Tensor(np.zeros((rows, 2048), np.uint32), torch.int32, "cuda:0")
        module.select(golden.input("logits"), 1, golden.input("row_lens"), buffer, rows, keys, 1, 2048)
        return buffer

    def test_names_that_were_imported_are_hooked_and_come_back(self):
        originals = _INDEXER.fp8_paged_mqa_logits, torch.ops._C.top_k_per_row_decode
        recorder = table.attach(Recorder(self.path))
        self.assertIsNot(_INDEXER.fp8_paged_mqa_logits, originals[0])
        self.assertIs(_INDEXER.fp8_paged_mqa_logits, _DEEP_GEMM.fp8_paged_mqa_logits)
        with self.assertRaisesRegex(RecorderError, "is hooked already"):
            table.attach(recorder)
        recorder.abort()
        self.assertEqual((_INDEXER.fp8_paged_mqa_logits, torch.ops._C.top_k_per_row_decode), originals)

    def test_skip_and_calls(self):
        recorder = table.attach(Recorder(self.path), skip=2, calls=3)
        for _ in range(8):
            self.select()
        recorder.close()
        self.assertEqual(recorder.recorded, {"topk": 3})
        self.replays()

    def test_graph_capture_passes_through_and_is_said_once(self):
        recorder = table.attach(Recorder(self.path))
        self.addCleanup(setattr, torch.cuda, "capturing", False)
        torch.cuda.capturing = True
        with self.assertWarnsRegex(UserWarning, "top_k_per_row_decode: inside graph capture"):
            self.assertTrue(self.select()._bits.any())
            self.select()
        self.assertEqual(len(recorder.left_out), 1)
        torch.cuda.capturing = False
        self.select()
        recorder.close()
        self.assertEqual(recorder.recorded, {"topk": 1})

    def test_what_fails_in_a_hook_does_not_fail_the_program(self):
        def fails(*_):
            raise KeyError("what")

        rules = [table.Rule("vllm.player", "play", fails),
                 table.Rule("vllm.player", "nothing", fails), table.Rule("vllm.no_such_module", "nothing", fails)]
        player.answers["x"] = lambda: 5
        recorder = table.attach(Recorder(self.path), rules)
        self.addCleanup(recorder.abort)
        with self.assertWarnsRegex(UserWarning, "play: KeyError: 'what'"):
            self.assertEqual(player.play("x"), 5)
        self.assertEqual(len(recorder.missing), 2)

    def test_no_function_at_all_is_an_error(self):
        recorder = Recorder(self.path)
        self.addCleanup(recorder.abort)
        with self.assertRaisesRegex(RecorderError, "found none of the functions"):
            table.attach(recorder, [table.Rule("vllm.no_such_module", "nothing", print)])

    def test_the_table_grows(self):
        golden = Golden("kernel_topk", "topk")
        mine = table.Rule("vllm.model_executor.layers.sparse_attn_indexer", "select", lambda arguments, result, kept: Call(
            "topk", {"logits": arguments["arguments"][0], "row_lens": golden.input("row_lens")},
            {"topk_indices.mine": golden.output("topk_indices.vllm")},
            contract={"tie_rule": "unspecified", "topk_order": "unspecified"}))
        recorder = table.attach(Recorder(self.path), [mine])
        self.select()
        recorder.close()
        with Recording(self.path) as recording:
            self.assertEqual(recording.names(0, "topk", "outputs"), ["topk_indices.mine"])
        self.replays()


class Environment(RecorderTest):
    def run_with(self, variable, **more):
        script = ("import sys; sys.path[:0] = sys.argv[1:]\n"
                  "from support import *\n"
                  "import dsakit_recorder.vllm; recorder = dsakit_recorder.vllm.install()\n"
                  "from test_vllm import Hooks\n"
                  "hooks = Hooks(); [hooks.select() for _ in range(4)]\n"
                  "print('attached' if recorder else 'not attached')\n")
        return subprocess.run([sys.executable, "-c", script, HERE], capture_output=True, text=True, timeout=120,
                              env={**os.environ, "DSAKIT_RECORD": variable, **more})

    def test_one_variable(self):
        done = self.run_with(f"{self.folder}/run-{{rank}}.h5,skip=1,calls=2,index_fp8_encoding=e4m3fnuz", RANK="3")
        self.assertEqual((done.returncode, done.stdout), (0, "attached\n"), done.stderr)
        self.replays(self.folder / "run-3.h5")
        with Recording(self.folder / "run-3.h5") as recording:
            self.assertEqual(recording.operations, [(0, "topk"), (1, "topk")])
            self.assertEqual(recording.contract(), {"index_fp8_encoding": "e4m3fnuz", "qmax": "224"})

    def test_without_it_nothing_happens(self):
        done = self.run_with("")
        self.assertEqual((done.returncode, done.stdout), (0, "not attached\n"), done.stderr)

    def test_a_wrong_one_is_told(self):
        for option, says in (("calls=many", "want a number"), ("calls", "want KEY=VALUE")):
            done = self.run_with(f"{self.path},{option}")
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"DSAKIT_RECORD: found '{option}', {says}", done.stderr)
        self.assertFalse(self.path.exists())


if __name__ == "__main__":
    warnings.simplefilter("default")
    unittest.main()
