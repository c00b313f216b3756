"""The file that a Recorder leaves: what dsakit, h5py and h5dump read in it, and what happens when something fails."""
import json
import os
import re
import shutil
import signal
import unittest.mock
import warnings

from support import (GOLDEN, HERE, TOPK, Golden, Payload, Recorder, RecorderTest, Recording, dsakit, np, of, subprocess,
                     sys, tensor, torch, unittest)
from dsakit_recorder import RecorderError, contract
from dsakit_recorder.tensors import DTYPES, take, to_torch

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None


class Format(RecorderTest):
    def test_what_was_recorded_replays(self):
        inputs, outputs = self.topk()
        with Recorder(self.path, contract=TOPK, provenance={"producer": "a test"}) as recorder:
            self.assertEqual(recorder.record("topk", inputs, outputs), 0)
            self.assertFalse(self.path.exists())
        self.assertIn("verdict: pass (3 comparisons", self.replays())
        outputs["topk_indices"][2, 3] = outputs["topk_indices"][2, 2]
        with Recorder(self.path, contract=TOPK) as recorder:
            recorder.record("topk", inputs, outputs)
        self.assertIn("verdict: FAIL", self.replays(code=1))

    def test_every_dtype_comes_back_bit_by_bit(self):
        payloads = {}
        for name, size in DTYPES.items():
            codes = np.arange(256 * 3, dtype=np.uint64) * 40503
            payloads[name] = Payload(name, codes.astype(f"<u{size}").reshape(3, 256))
        with Recorder(self.path) as recorder:
            recorder.record("fp8_cast", {name: tensor(payload) for name, payload in payloads.items()}, {})
        self.assertEqual(dsakit("info", self.path).returncode, 0)
        with Recording(self.path) as recording:
            for name, payload in payloads.items():
                self.assertEqual(recording.attributes(0, "fp8_cast", "inputs", name)["dtype"], name)
                back = recording._payload(f"/steps/0/fp8_cast/inputs/{name}")
                np.testing.assert_array_equal(back.bits, payload.bits)
                np.testing.assert_array_equal(to_torch(back)._bits, payload.bits)
                self.assertEqual(recording.torch(0, "fp8_cast", "inputs", name).dtype.name, name)

    @unittest.skipUnless(ml_dtypes, "needs ml_dtypes")
    def test_arrays_are_of_ml_dtypes(self):
        values = np.array([[1.5, -2.0, 0.015625, 448.0]])
        with Recorder(self.path) as recorder:
            recorder.record("fp8_cast", {name: values.astype(getattr(ml_dtypes, name)) for name in
                                         ("bfloat16", "float8_e4m3fn")}, {})
        with Recording(self.path) as recording:
            for name in ("bfloat16", "float8_e4m3fn"):
                back = recording.numpy(0, "fp8_cast", "inputs", name)
                self.assertEqual(back.dtype, getattr(ml_dtypes, name))
                np.testing.assert_array_equal(back.astype(np.float64), values)

    def test_plain_h5py_and_h5dump_show_numbers(self):
        bits = np.array([[0x3FC0, 0xC000, 0x7F80]], np.uint16)  # 1.5, -2, inf
        with Recorder(self.path, config={"softmax_scale": 0.125}) as recorder:
            recorder.record("fp8_cast", {"x": tensor(Payload("bfloat16", bits))}, {})
        import h5py
        with h5py.File(self.path) as file:
            np.testing.assert_array_equal(file["/steps/0/fp8_cast/inputs/x"][:], [[1.5, -2.0, np.inf]])
            self.assertEqual(file["config"].attrs["softmax_scale"], b"0.125")
        if shutil.which("h5dump"):
            shown = subprocess.run(["h5dump", "-d", "/steps/0/fp8_cast/inputs/x", self.path], capture_output=True,
                                   text=True, check=True).stdout
            self.assertIn("(0,0): 1.5, -2, inf", shown)

    def test_the_same_calls_give_the_same_bytes(self):
        files = []
        for name in ("a.h5", "b.h5"):
            inputs, outputs = self.topk()
            with Recorder(self.folder / name, contract=TOPK) as recorder:
                recorder.record("topk", inputs, outputs)
            files.append((self.folder / name).read_bytes())
        self.assertEqual(files[0], files[1])

    def test_any_changed_byte_is_refused(self):
        inputs, outputs = self.topk(rows=40)  # more links and attributes than HDF5 keeps in a header on its own
        with Recorder(self.path, contract=TOPK, provenance={f"key{i}": i for i in range(20)}) as recorder:
            for _ in range(12):
                recorder.record("topk", inputs, outputs)
        whole = self.path.read_bytes()
        rng = np.random.default_rng(0)
        for at in [*rng.choice(len(whole), 40, replace=False), len(whole) - 1]:
            broken = bytearray(whole)
            broken[at] ^= 0x10
            self.path.write_bytes(broken)
            done = dsakit("replay", self.path)
            self.assertEqual(done.returncode, 2, f"byte {at} of {len(whole)}: {done.stdout}{done.stderr}")

    def test_the_golden_recording_is_what_the_generator_writes(self):
        """With any version of HDF5."""
        subprocess.run([sys.executable, "-B", GOLDEN.parent / "generators/with_recorder", GOLDEN, self.folder], check=True)
        self.assertEqual((self.folder / "recorder_rows.h5").read_bytes(), (GOLDEN / "recorder_rows.h5").read_bytes())

    def test_a_tensor_that_recurs_is_stored_once(self):
        inputs, outputs = self.topk(rows=64, keys=2000)
        sizes = []
        for calls in (1, 5):
            with Recorder(self.path, contract=TOPK) as recorder:
                for _ in range(calls):
                    recorder.record("topk", inputs, outputs)
            sizes.append(self.path.stat().st_size)
        self.assertLess(sizes[1], 1.1 * sizes[0])
        self.replays()

    def test_contracts_that_differ_are_steps(self):
        inputs, outputs = self.topk()
        with Recorder(self.path) as recorder:
            self.assertEqual(recorder.record("topk", inputs, outputs, contract=TOPK), 0)
            gate = Golden("kernel_norms", "output_gate")
            for step in (0, 1, 2):
                try:
                    other = Golden("kernel_norms", "output_gate", step)
                except KeyError:
                    continue
                gate = other
            names = gate.recording.names(*gate.place, "outputs")
            call = ({name: gate.input(name) for name in ("attn_value", "gate")},
                    {names[0]: gate.output(names[0])})
            self.assertEqual(recorder.record("output_gate", *call, contract=gate.contract), 0)
            other = {**gate.contract, "gate_rounding": "one" if gate.contract["gate_rounding"] == "two" else "two"}
            self.assertEqual(recorder.record("fp8_cast", inputs, {}, contract=other), 1)
        with Recording(self.path) as recording:
            self.assertNotEqual(recording.contract(0)["gate_rounding"], recording.contract(1)["gate_rounding"])


class Levels(RecorderTest):
    @unittest.skipUnless(ml_dtypes, "needs ml_dtypes")
    def test_statistics_and_shapes_alone(self):
        bits = np.array([[0x3FC0, 0xC000, 0x7F80, 0x7FC0]], np.uint16)  # 1.5, -2, inf, NaN
        for level in ("stats", "meta"):
            with Recorder(self.path, level=level) as recorder:
                recorder.record("fp8_cast", {"x": tensor(Payload("bfloat16", bits))}, {})
            with Recording(self.path) as recording:
                said = recording.attributes(0, "fp8_cast", "inputs", "x")
                self.assertEqual(said["dtype"], "bfloat16")
                self.assertEqual({key: said.get(key) for key in ("minimum", "maximum", "mean", "nan", "inf")},
                                 {"minimum": "-2", "maximum": "1.5", "mean": "-0.25", "nan": "1", "inf": "1"}
                                 if level == "stats" else dict.fromkeys(("minimum", "maximum", "mean", "nan", "inf")))
                with self.assertRaisesRegex(ValueError, f"found level {level}, want full"):
                    recording.numpy(0, "fp8_cast", "inputs", "x")
            shown = dsakit("info", self.path)
            self.assertEqual(shown.returncode, 0, shown.stderr)
            self.assertRegex(shown.stdout, rf"level +{level}, without values")
            self.assertEqual("minimum=-2 mean=-0.25 maximum=1.5 nan=1 inf=1" in shown.stdout, level == "stats")

    def test_without_values_an_operation_is_skipped_with_why(self):
        inputs, outputs = self.topk()
        for level in ("stats", "meta"):
            with Recorder(self.path, contract=TOPK, level=level) as recorder:
                recorder.record("topk", inputs, outputs)
            shown = dsakit("info", self.path).stdout
            self.assertRegex(shown, rf"level +{level}, without values")
            self.assertEqual("maximum=" in shown, level == "stats")
            done = dsakit("replay", self.path, "--format", "json")
            self.assertEqual(done.returncode, 77, done.stderr)
            line, = json.loads(done.stdout)["operations"]
            self.assertEqual((line["operation"], line["verdict"], line["reason"]),
                             ("topk", "skipped", f"recorded at level {level}, without values"))
            done = dsakit("bisect", self.path)
            self.assertEqual(done.returncode, 77)
            self.assertIn(f"recorded at level {level}, without values", done.stderr)
            for verb in (("bench", self.path), ("export", self.path, "-o", self.folder / "x"),
                         ("shrink", self.path, "--operation", "topk", "-o", self.folder / "x.h5")):
                done = dsakit(*verb)
                self.assertEqual(done.returncode, 2, f"{verb}: {done.stdout}{done.stderr}")
                self.assertIn(f"found level '{level}', want full", done.stderr)

    def test_selected_operations(self):
        inputs, outputs = self.topk()
        with Recorder(self.path, contract=TOPK, select="topk|layer") as recorder:
            self.assertIsNone(recorder.record("fp8_cast", inputs, {}))
            recorder.record("topk", inputs, outputs)
        with Recording(self.path) as recording:
            self.assertEqual(recording.operations, [(0, "topk")])

    def test_a_sample_of_rows(self):
        inputs, outputs = self.topk(rows=100)
        kept = []
        for seed in (1, 1, 2):
            with Recorder(self.path, contract=TOPK, rows=7, seed=seed) as recorder:
                recorder.record("topk", inputs, outputs)
            self.replays()
            with Recording(self.path) as recording:
                kept.append(recording.numpy(0, "topk", "inputs", "row_lens"))
                self.assertEqual(recording.provenance["rows"], f"at most 7 of each operation, seed {seed}")
        self.assertEqual(kept[0].shape, (7,))
        np.testing.assert_array_equal(kept[0], kept[1])
        self.assertTrue((kept[0] != kept[2]).any())

    def test_what_does_not_fit_is_left_out_and_said(self):
        inputs, outputs = self.topk(rows=10, keys=100)
        more = self.topk(rows=10, keys=100, seed=1)
        with Recorder(self.path, contract=TOPK, max_bytes=6000) as recorder:
            self.assertEqual(recorder.record("topk", inputs, outputs), 0)
            self.assertEqual(recorder.record("topk", inputs, outputs), 1)  # takes no more room
            with self.assertWarnsRegex(UserWarning, "max_bytes 6000"):
                self.assertIsNone(recorder.record("topk", *more))
        self.replays()
        with Recording(self.path) as recording:
            self.assertIn("topk: 4360 more bytes", recording.provenance["left_out"])


class Contracts(RecorderTest):
    """The table of contract.py says what the reader does."""

    RIGHT = {key: "64" if values == contract.COUNT else "1e-4" if values == contract.NUMBER else values[0]
             for key, values in contract.KEYS.items()} | {"dcp_interleave": "1", "dcp_world": "1"}

    def call(self, operation, kind):
        """Names of tensors that make it of that format, and its contract."""
        says = {key: self.RIGHT[key] for key in contract.NEEDS[operation][kind].split()}
        if kind == "bf16_576":
            says["mla_record"] = kind
        if kind == "mxfp4" and "index_page_layout" in says:
            says["index_page_layout"] = "flat"
        tensors = {"index_q_packed": np.zeros((1, 1, 64), np.uint8)} if kind == "mxfp4" else {}
        return tensors, says

    def refusals(self, operation, inputs, says, outputs=None, attributes=None, config=None):
        """What the recorder says of it, and what the reader says of the file that it would have become."""
        arguments = {"contract": says, "attributes": attributes or {},
                     "config": {"rms_norm_eps": 1e-5, "softmax_scale": 0.1} if config is None else config}
        ours = ""
        try:
            with Recorder(self.path, compact_pages=False) as recorder:
                recorder.record(operation, inputs, outputs or {}, **arguments)
        except RecorderError as error:
            ours = str(error)
        with unittest.mock.patch("dsakit_recorder.recorder.call_fault", lambda *_: ""), \
                unittest.mock.patch("dsakit_recorder.recorder.value_fault", lambda *_: ""):
            with Recorder(self.path, compact_pages=False) as recorder:
                recorder.record(operation, inputs, outputs or {}, **arguments)
        theirs = dsakit("info", self.path).stderr
        return ours, theirs

    def test_a_value_that_the_reader_refuses_is_refused(self):
        for operation, kinds in contract.NEEDS.items():
            for kind, needs in kinds.items():
                inputs, right = self.call(operation, kind)
                ours, theirs = self.refusals(operation, inputs, right)
                self.assertEqual(ours, "", f"{operation} {kind}")
                self.assertNotRegex(theirs, "/contract|/config|contract key", f"{operation} {kind}")
                for key in needs.split():
                    if key == "mla_record":
                        continue  # chooses the format
                    wrong = "0" if isinstance(contract.KEYS[key], str) else "fast"
                    for says in ({**right, key: wrong}, {name: value for name, value in right.items() if name != key}):
                        ours, theirs = self.refusals(operation, inputs, says)
                        self.assertRegex(theirs, rf"/contract.*\b{key}\b", f"{operation} {kind} {says}")
                        self.assertRegex(ours, rf"\b{key}\b", f"{operation} {kind} {says}")

    def test_every_value_of_a_key_is_one_of_the_readers(self):
        used = {}
        for operation, kinds in contract.NEEDS.items():
            for kind, needs in kinds.items():
                for key in needs.split():
                    used.setdefault(key, (operation, kind))
        self.assertEqual(set(contract.KEYS) - set(used), {"dcp_interleave", "dcp_world", "empty_row"})
        for key, (operation, kind) in used.items():
            inputs, right = self.call(operation, kind)
            values = contract.KEYS[key]
            tried = {contract.COUNT: ("1", "1048576", "0", "1048577", "-1", "1.5", "64 ", "", "1e3", "one"),
                     contract.NUMBER: ("1e-4", ".5", "3.", "2E3", "1e30", "0", "-1", "nan", "inf", "1e31", "1_0", "+1",
                                       " 1", "0x1", "1e-40", "e", "")}.get(values, (*(values), "fast", ""))
            for value in tried:
                if key == "index_page_layout" and value in ("flat", "preshuffle64"):
                    continue  # of the other format
                ours, theirs = self.refusals(operation, inputs, {**right, key: value})
                self.assertEqual(bool(ours), bool(re.search("/contract|contract key", theirs)),
                                 f"{key}={value!r}: {ours!r}, {theirs!r}")

    def test_no_operation_or_key_of_the_reader_is_left_out(self):
        operations = (HERE.parents[2] / "reference/include/dsakit/core/operations.hpp").read_text()
        self.assertEqual(set(contract.NEEDS), set(re.findall(r'^    {"(\w+)",', operations, re.MULTILINE)))
        keys = (HERE.parents[2] / "harness/src/import/contract_keys.cpp").read_text().partition("kKeys")[2].partition("};")[0]
        self.assertEqual({*contract.KEYS, *contract.OUTPUT_KEYS}, set(re.findall(r'{"(\w+)", "', keys)))

    def test_what_does_not_go_together_is_refused(self):
        for operation, changes in (("index_cache_write", {"index_fp8_encoding": "e4m3fnuz", "qmax": "448"}),
                                   ("mla_cache_write", {"mla_fp8_encoding": "e4m3fnuz", "qmax": "448"}),
                                   ("topk", {"dcp_world": "2"}), ("topk_slots", {"dcp_interleave": "2"})):
            inputs, right = self.call(operation, next(iter(contract.NEEDS[operation])))
            ours, theirs = self.refusals(operation, inputs, {**right, **changes})
            self.assertTrue(ours and "/contract" in theirs, f"{operation}: {ours!r}, {theirs!r}")
        inputs, right = self.call("index_logits_decode", "mxfp4")
        ours, theirs = self.refusals("index_logits_decode", inputs, {**right, "index_page_layout": "block_flat"})
        self.assertTrue("index_page_layout" in ours and "index_page_layout" in theirs, f"{ours!r}, {theirs!r}")

    def test_outputs_and_config_say_what_they_must(self):
        inputs, right = self.call("sparse_attention", "fp8_ds_mla")
        outputs = {"latent.mine": np.zeros((1, 1, 512), np.float32)}
        good = {"accumulation": "fp32", "mla_scale_read": "fp32"}
        for attributes, key in ((good, ""), ({**good, "accumulation": "fp64"}, "accumulation"),
                                ({"accumulation": "fp32"}, "mla_scale_read"), ({}, "accumulation")):
            ours, theirs = self.refusals("sparse_attention", inputs, right, outputs, {"latent.mine": attributes})
            self.assertEqual(ours == "", key == "", ours)
            self.assertIn(key, ours)
            self.assertEqual(bool(re.search("accumulation|mla_scale_read", theirs)), key != "", theirs)
        for config, wrong in (({}, True), ({"softmax_scale": "0"}, True), ({"softmax_scale": "x"}, True),
                              ({"softmax_scale": 0.1}, False)):
            ours, theirs = self.refusals("sparse_attention", inputs, right, config=config)
            self.assertEqual(("softmax_scale" in ours, "softmax_scale" in theirs), (wrong, wrong), f"{ours!r} {theirs!r}")

    def test_an_unknown_key_is_refused_at_once(self):
        with self.assertRaisesRegex(RecorderError, "contract key 'page_sise' is unknown, want one of activation_dtype"):
            Recorder(self.path, contract={"page_sise": 64})
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_call_that_is_refused_leaves_the_others_whole(self):
        inputs, outputs = self.topk()
        with Recorder(self.path, contract=TOPK) as recorder:
            recorder.record("topk", inputs, outputs)
            with self.assertRaisesRegex(RecorderError, "topk: contract key tie_rule: found 'any', want smaller_index"):
                recorder.record("topk", inputs, outputs, contract={"tie_rule": "any"})
        self.replays()


class Failures(RecorderTest):
    def names(self):
        return sorted(entry.name for entry in self.folder.iterdir())

    def test_an_exception_leaves_nothing_and_an_old_file_alone(self):
        self.path.write_text("old")
        with self.assertRaises(ZeroDivisionError), Recorder(self.path, contract=TOPK) as recorder:
            recorder.record("topk", *self.topk())
            1 // 0
        self.assertEqual(self.path.read_text(), "old")
        self.assertEqual(self.names(), ["run.h5"])

    def test_a_killed_process_leaves_nothing_under_the_name(self):
        script = ("import os, signal, sys; sys.path[:0] = sys.argv[2:]\n"
                  "from dsakit_recorder import Recorder; import numpy as np\n"
                  "recorder = Recorder(sys.argv[1])\n"
                  "recorder.record('fp8_cast', {'x': np.zeros((4, 4), np.float32)}, {})\n"
                  "os.kill(os.getpid(), signal.SIGKILL)\n")
        done = subprocess.run([sys.executable, "-c", script, self.path, HERE.parent, *sys.path])
        self.assertEqual(done.returncode, -signal.SIGKILL)
        self.assertFalse(self.path.exists())

    def test_what_is_no_file_stays(self):
        os.mkfifo(self.path)
        with self.assertRaisesRegex(RecorderError, "found a special file, want a file to write"):
            Recorder(self.path)
        self.assertTrue(self.path.is_fifo())

    def test_nothing_recorded_is_no_file(self):
        with self.assertRaisesRegex(RecorderError, "no operation that was recorded"), Recorder(self.path):
            pass
        self.assertEqual(self.names(), [])

    def test_a_call_that_cannot_be_recorded_leaves_the_others_whole(self):
        with Recorder(self.path, contract=TOPK) as recorder:
            inputs, outputs = self.topk()
            for message, arguments in {
                    r"operation: found 'topkk', want one of layer": ("topkk", inputs, outputs),
                    r"topk inputs logits: found dtype float64": ("topk", {**inputs, "logits": np.zeros((6, 50))}, outputs),
                    r"topk outputs topk_indices: found a scalar": ("topk", inputs, {"topk_indices": np.int32(1)}),
            }.items():
                with self.assertRaisesRegex(RecorderError, message):
                    recorder.record(*arguments)
            with self.assertRaisesRegex(RecorderError, "found dtype float32, want one of the size of uint8"):
                recorder.record("topk", inputs, outputs, dtypes={"logits": "uint8"})
            recorder.record("topk", inputs, outputs)
        self.replays()
        for option, message in (({"level": "all"}, "level: found 'all'"), ({"rows": 0}, "rows: found 0")):
            with self.assertRaisesRegex(RecorderError, message):
                Recorder(self.path, **option)

    def test_graph_capture_is_refused(self):
        inputs, outputs = self.topk()
        recorder = Recorder(self.path, contract=TOPK)
        torch.cuda.capturing = True
        self.addCleanup(setattr, torch.cuda, "capturing", False)
        with self.assertRaisesRegex(RecorderError, "inside graph capture"):
            recorder.record("topk", inputs, outputs)
        recorder.abort()
        self.assertEqual(self.names(), [])


class Tensors(RecorderTest):
    def test_a_tensor_that_is_not_contiguous(self):
        rows = of(np.arange(12, dtype=np.int32).reshape(3, 4))
        np.testing.assert_array_equal(take(rows.transpose(0, 1)).bits, np.arange(12).reshape(3, 4).T)
        np.testing.assert_array_equal(take(np.arange(12, dtype=np.int32).reshape(3, 4).T).bits,
                                      np.arange(12).reshape(3, 4).T)

    def test_the_copy_is_of_that_moment(self):
        array = np.zeros((2, 2), np.float32)
        payload = take(array)
        array[:] = 1
        self.assertFalse(payload.bits.any())

    def test_the_device_is_told(self):
        inputs, outputs = self.topk()
        with Recorder(self.path, contract=TOPK) as recorder:
            recorder.record("topk", {name: of(value) for name, value in inputs.items()}, outputs)
        with Recording(self.path) as recording:
            self.assertEqual(recording.provenance["device"], "a fake of cuda:0")

    def test_a_module_is_hooked(self):
        class Selection:
            hooks = []

            def forward(self, logits, row_lens):
                return outputs["topk_indices"]

            def register_forward_hook(self, hook, with_kwargs):
                self.hooks.append(hook)
                return type("Handle", (), {"remove": lambda _: self.hooks.clear()})()

            def __call__(self, *positional, **named):
                result = self.forward(*positional, **named)
                for hook in self.hooks:
                    hook(self, positional, named, result)
                return result

        from dsakit_recorder import Call
        inputs, outputs = self.topk()
        module = Selection()
        with Recorder(self.path, contract=TOPK) as recorder:
            recorder.hook_module(module, lambda arguments, result, _: Call("topk", arguments, {"topk_indices": result}))
            module(inputs["logits"], row_lens=inputs["row_lens"])
        self.assertEqual(module.hooks, [])
        self.replays()


if __name__ == "__main__":
    warnings.simplefilter("default")
    unittest.main()
