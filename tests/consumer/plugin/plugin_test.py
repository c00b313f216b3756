#!/usr/bin/env python3
"""--kernel-lib from outside: plug-ins that are right, wrong, and broken in every way.

usage: plugin_test.py DSAKIT GOLDEN_DATA PLUGINS_FOLDER [CODE_OBJECT_GFX942] [unittest argument...]
"""
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

DSAKIT, GOLDEN, PLUGINS, CODE_OBJECT = map(os.path.abspath, sys.argv[1:5])
GATE = f"{GOLDEN}/kernel_norms.h5"
SLOTS = f"{GOLDEN}/kernel_index_convert.h5"
ONE_STEP = f"{GOLDEN}/torch_decode.h5"  # of topk_slots
PASS, MISMATCH, BAD_INPUT, KERNEL_FAILED = 0, 1, 2, 3


def dsakit(*arguments, **variables):
    return subprocess.run([DSAKIT, *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **variables})


class PluginTest(unittest.TestCase):
    def expect(self, code, *arguments, **variables):
        done = dsakit(*arguments, **variables)
        self.assertEqual(done.returncode, code, f"{arguments} {variables}\n{done.stdout}{done.stderr}")
        return done

    def lines(self, code, *arguments, **variables):
        """The kernel's lines of the JSON report."""
        done = self.expect(code, *arguments, "--format", "json", **variables)
        lines = [line for line in json.loads(done.stdout)["operations"] if line["subject"] == "kernel"]
        self.assertTrue(lines)
        return lines

    def broken(self, fault, *arguments, file=SLOTS, **variables):
        """What replay says of topk_slots, all of whose lines it must blame."""
        lines = self.lines(KERNEL_FAILED, "replay", file, "--kernel-lib", f"{PLUGINS}/libbroken.so",
                           *arguments, FAULT=fault, **variables)
        slots = [line for line in lines if line["operation"] == "topk_slots"]
        self.assertEqual({line["verdict"] for line in slots} - {"error", "unsupported"}, set())
        self.assertIn("--kernel-lib", slots[0]["reproduce"])
        return slots[0]["reason"]


class Right(PluginTest):
    def test_its_kernel_runs_for_its_operation_and_built_in_ones_for_the_others(self):
        lines = self.lines(PASS, "replay", GATE, "--kernel-lib", f"{PLUGINS}/liboutput_gate.so")
        for line in lines:
            own = line["operation"] == "output_gate"
            self.assertEqual(line["kernel"] == "liboutput_gate.so:plain_c", own, line["operation"])
            self.assertEqual(line["verdict"], "pass")
        self.assertGreater(len({line["operation"] for line in lines}), 1)
        self.assertGreater(sum(line["elements"] for line in lines if line["operation"] == "output_gate"), 0)

    def test_a_library_beside_us_needs_no_slash(self):
        done = subprocess.run([DSAKIT, "replay", GATE, "--kernel-lib", "liboutput_gate.so"], cwd=PLUGINS,
                              capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, PASS, done.stderr)

    def test_chained_replay_hands_its_output_on(self):
        lines = self.lines(PASS, "replay", f"{GOLDEN}/generated_dense.h5", "--mode", "chained", "--kernel-lib",
                           f"{PLUGINS}/liboutput_gate.so")
        self.assertIn("liboutput_gate.so:plain_c", {line["kernel"] for line in lines})

    @unittest.skipUnless(os.path.isfile(CODE_OBJECT), "no code object of gfx942 was built")
    def test_a_code_object_runs_by_its_symbol(self):
        library = f"{PLUGINS}/libcode_object.so"
        lines = self.lines(PASS, "replay", SLOTS, "--device", "hip", "--kernel-lib", library,
                           CODE_OBJECT=CODE_OBJECT)
        self.assertEqual({line["kernel"] for line in lines}, {"libcode_object.so:code_object"})
        self.assertEqual({line["tensor"] for line in lines} & {"compact_slots", "counts"}, {"compact_slots", "counts"})
        lines = self.lines(KERNEL_FAILED, "replay", SLOTS, "--device", "hip", "--kernel-lib", library,
                           CODE_OBJECT="/nowhere")
        self.assertIn("launch failed: cannot read CODE_OBJECT: /nowhere", lines[0]["reason"])
        lines = self.lines(KERNEL_FAILED, "replay", SLOTS, "--kernel-lib", library)
        self.assertEqual(lines[0]["verdict"], "unsupported")
        self.assertIn("device: want hip, found host", lines[0]["reason"])


class Wrong(PluginTest):
    def test_a_fault_is_found_with_its_hint(self):
        fault = f"{PLUGINS}/libgate_fault.so"
        lines = self.lines(MISMATCH, "replay", GATE, "--keep-going", "--kernel-lib", fault)
        bad = [line for line in lines if line["verdict"] != "pass"]
        self.assertEqual({line["operation"] for line in bad}, {"output_gate"})
        self.assertIn("the contract field is gate_rounding", bad[0]["hint"])
        self.assertIn("--kernel-lib " + fault, bad[0]["reproduce"])

    def test_bisect_and_shrink_take_it_along(self):
        fault = f"{PLUGINS}/libgate_fault.so"
        done = self.expect(MISMATCH, "bisect", GATE, "--kernel-lib", fault, "--format", "json")
        self.assertEqual(json.loads(done.stdout)["first"]["operation"], "output_gate")
        with tempfile.TemporaryDirectory() as folder:
            small = pathlib.Path(folder, "small.h5")
            self.expect(PASS, "shrink", GATE, "--operation", "output_gate", "-o", small, "--kernel-lib", fault)
            self.expect(MISMATCH, "replay", small, "--kernel-lib", fault)
            self.expect(PASS, "replay", small, "--kernel-lib", f"{PLUGINS}/liboutput_gate.so")


class Broken(PluginTest):
    def refused(self, library, says, code=KERNEL_FAILED, file=SLOTS, **variables):
        done = self.expect(code, "replay", file, "--kernel-lib", library, **variables)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn(says, done.stderr)

    def test_a_library_that_cannot_be_used(self):
        broken = f"{PLUGINS}/libbroken.so"
        self.refused("/nowhere/lib.so", "/nowhere/lib.so", BAD_INPUT)
        self.refused(SLOTS, "cannot load it")
        self.refused(f"{PLUGINS}/libno_entry_point.so", "found no symbol dsakit_kernel")
        self.refused(broken, "found plug-in ABI 2, want 1", FAULT="abi")
        self.refused(broken, "ended by signal 6", FAULT="crash_on_load")
        self.refused(broken, "found kernels for no operation", FAULT="empty")
        self.refused(broken, "found a kernel for topk_slots without name or launch", FAULT="nameless")
        self.refused(broken, "none of the operations to replay, only for topk_slots", file=GATE)

    def test_a_kernel_that_goes_wrong_is_a_line_of_the_report(self):
        for fault, says in (("crash", "ended by signal 11"),
                            ("exit", "ended with exit code 0"),
                            ("fail", "launch failed: out of luck"),
                            ("refuse", "page_size: found 16, want 64"),
                            ("silent", "it did not say why"),
                            ("long_answer", "xxxx"),
                            ("changes_input", "found its input block_table changed"),
                            ("beside_workspace", "beside its workspace of 100 bytes"),
                            ("accumulation", "found 'fp64'")):
            with self.subTest(fault):
                # AddressSanitizer would take the signal.
                reason = self.broken(fault, ASAN_OPTIONS="handle_segv=0")
                self.assertIn(says, reason)
                self.assertIn("libbroken.so", reason)

    def test_a_hang_ends_with_the_time_limit(self):
        self.assertIn("found no end after 1 s", self.broken("hang", "--time-limit", 1, "--operation", "topk_slots",
                                                            file=ONE_STEP))

    def test_bytes_beside_an_output_are_told(self):
        lines = self.lines(MISMATCH, "replay", SLOTS, "--kernel-lib", f"{PLUGINS}/libbroken.so",
                           FAULT="beside_output")
        self.assertTrue(any("wrote beside the tensor" in line.get("hint", "") for line in lines))

    def test_what_it_prints_is_not_in_the_report(self):
        done = self.expect(MISMATCH, "replay", SLOTS, "--format", "json", "--kernel-lib", f"{PLUGINS}/libbroken.so",
                           FAULT="print")
        json.loads(done.stdout)
        self.assertIn("noise", done.stderr)


class Benched(PluginTest):
    """bench and sweep treat a plug-in as a built-in kernel."""

    SMALL = ("--op", "output_gate", "--shape", "rows=3,dim=64", "--samples", 3, "--copies", 2)
    BROKEN = ("--op", "topk_slots", "--shape", "rows=2,context=64,k=8", "--samples", 2, "--kernel-lib",
              f"{PLUGINS}/libbroken.so")

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.results = self.folder / "results.jsonl"

    def rows(self, code, *arguments, **variables):
        report = json.loads(self.expect(code, "bench", *arguments, "--format", "json", **variables).stdout)
        self.assertEqual(report["exit_code"], code)
        return report["rows"]

    def test_it_is_gated_timed_and_marked(self):
        library = f"{PLUGINS}/liboutput_gate.so"
        row, = self.rows(PASS, *self.SMALL, "--kernel-lib", library)
        self.assertEqual((row["kernel"], row["library"], row["verdict"], row["gate"]),
                         ("liboutput_gate.so:plain_c", "liboutput_gate.so", "pass", "3 of 3 rows"))
        self.assertEqual([len(row[times]["samples"]) for times in ("hot", "cold")], [3, 3])
        self.assertEqual(row["cold"]["copies"], 2)
        self.assertEqual(row["code_hash"], hashlib.sha256(pathlib.Path(library).read_bytes()).hexdigest())
        self.assertIn("--kernel-lib", row["reproduce"])
        text = self.expect(PASS, "bench", *self.SMALL, "--kernel-lib", library).stdout
        self.assertIn("LIB.so:NAME is a foreign kernel", text)
        self.assertNotIn("model of AMD lanes", text)
        ours, = self.rows(PASS, *self.SMALL)
        self.assertEqual(ours["library"], "")
        self.assertNotEqual(ours["code_hash"], row["code_hash"])

    def test_on_a_recording_the_other_operations_are_ours(self):
        rows = self.rows(PASS, GATE, "--samples", 1, "--copies", 1, "--kernel-lib", f"{PLUGINS}/liboutput_gate.so")
        for row in rows:
            self.assertEqual(row["library"] != "", row["operation"] == "output_gate")
            self.assertGreater(row["reference"]["median_us"], 0)
        self.assertEqual({row["library"] for row in rows}, {"", "liboutput_gate.so"})

    def test_a_wrong_one_is_not_timed(self):
        one = ("--contract", "gate_rounding=one")
        row, = self.rows(MISMATCH, *self.SMALL, *one, "--kernel-lib", f"{PLUGINS}/libgate_fault.so")
        self.assertEqual((row["verdict"], row["hot"]), ("fail", None))
        self.rows(PASS, *self.SMALL, *one, "--kernel-lib", f"{PLUGINS}/liboutput_gate.so")

    def test_a_broken_one_is_a_row(self):
        for fault, code, verdict, says in (("crash", KERNEL_FAILED, "error", "ended by signal 11"),
                                           ("exit", KERNEL_FAILED, "error", "ended with exit code 0"),
                                           ("fail", KERNEL_FAILED, "error", "out of luck"),
                                           ("refuse", KERNEL_FAILED, "unsupported", "page_size: found 16, want 64"),
                                           ("configuration", KERNEL_FAILED, "unsupported", "tile is open"),
                                           ("beside_output", MISMATCH, "fail", "beside its output"),
                                           ("print", MISMATCH, "fail", "slots: ")):
            with self.subTest(fault):
                row, = self.rows(code, *self.BROKEN, FAULT=fault, ASAN_OPTIONS="handle_segv=0")
                self.assertEqual((row["verdict"], row["hot"]), (verdict, None))
                self.assertIn(says, row["reason"])
        row, = self.rows(KERNEL_FAILED, *self.BROKEN, "--time-limit", 1, FAULT="hang")
        self.assertIn("found no end after 1 s", row["reason"])
        row, = self.rows(KERNEL_FAILED, *self.BROKEN, "--configuration", "tile=2", FAULT="configuration")
        self.assertIn("tile is 2", row["reason"])

    @unittest.skipUnless(os.path.isfile(CODE_OBJECT), "no code object of gfx942 was built")
    def test_a_code_object_is_timed_on_the_device(self):
        row, = self.rows(PASS, "--op", "topk_slots", "--shape", "rows=2,context=64,k=8", "--samples", 2, "--copies", 2,
                         "--device", "hip", "--kernel-lib", f"{PLUGINS}/libcode_object.so", CODE_OBJECT=CODE_OBJECT)
        self.assertEqual((row["kernel"], row["device"], row["graph"]), ("libcode_object.so:code_object", "hip", True))
        self.assertEqual(row["resources"], {})

    def test_a_library_that_is_not_asked_for_is_3(self):
        done = self.expect(KERNEL_FAILED, "bench", *self.SMALL, "--kernel-lib", f"{PLUGINS}/libbroken.so")
        self.assertIn("none of the operations to time, only for topk_slots", done.stderr)

    def space(self, *sweeps):
        path = self.folder / "space.json"
        path.write_text(json.dumps({"schema": "dsakit.sweep-space/1", "sweeps": sweeps}))
        return path

    def sweep(self, code, space, library, *arguments, **variables):
        done = self.expect(code, "sweep", space, "-o", self.results, "--samples", 2, "--kernel-lib",
                           f"{PLUGINS}/{library}", *arguments, **variables)
        return done, [json.loads(line) for line in self.results.read_text().splitlines()]

    def test_it_is_swept(self):
        gate = {"operation": "output_gate", "shape": {"rows": [1, 2], "dim": 64}}
        topk = {"operation": "topk", "shape": {"rows": 1, "keys": 64, "k": 8}}
        space = self.space({"problems": [gate]}, {"problems": [{**gate, "shape": {"rows": 3, "dim": 64}}],
                                                  "axes": {"tile": [4, 8]}},
                           {"problems": [topk], "axes": {"lanes": [256]}})
        done, lines = self.sweep(PASS, space, "liboutput_gate.so")
        self.assertIn("7 candidates: 7 timed", done.stdout)
        own = [line for line in lines if line["operation"] == "output_gate"]
        self.assertEqual([line["configuration"] for line in own], [{}, {}, {"tile": 0}, {"tile": 4}, {"tile": 8}])
        self.assertEqual([line["ran"] for line in own], [{}, {}, {}, {"tile": 4}, {"tile": 8}])
        digest = hashlib.sha256(pathlib.Path(f"{PLUGINS}/liboutput_gate.so").read_bytes()).hexdigest()
        self.assertEqual({(line["library"], line["code_hash"]) for line in own}, {("liboutput_gate.so", digest)})
        self.assertNotIn(digest, {line["code_hash"] for line in lines if line["operation"] == "topk"})
        done, again = self.sweep(PASS, space, "liboutput_gate.so", "--resume")
        self.assertEqual(again, lines)
        tuned = self.folder / "tuned.json"
        self.expect(PASS, "sweep", "apply", self.results, "-o", tuned)
        self.assertNotIn("output_gate", tuned.read_text())

    def test_a_broken_candidate_is_disqualified_and_the_sweep_survives(self):
        slots = {"operation": "topk_slots", "shape": {"rows": 1, "context": 64, "k": 8}}
        space = self.space({"problems": [slots], "axes": {"tile": [1]}})
        for fault, verdict, says in (("crash", "error", "signal 11"), ("hang", "hang", "found no end after 2 s"),
                                     ("configuration", "unsupported", "tile is ")):
            self.results.unlink(missing_ok=True)
            done, lines = self.sweep(KERNEL_FAILED, space, "libbroken.so", "--time-limit", 2, FAULT=fault,
                                     ASAN_OPTIONS="handle_segv=0")
            self.assertEqual([line["verdict"] for line in lines], [verdict] * 2, done.stdout)
            self.assertIn(says, lines[0]["reason"])
            self.assertIn("0 timed, 2 disqualified", done.stdout)
        space = self.space({"problems": [{"operation": "topk", "shape": {"rows": 1}}], "axes": {"lanes": [256]}})
        done = self.expect(KERNEL_FAILED, "sweep", space, "-o", self.folder / "other.jsonl", "--kernel-lib",
                           f"{PLUGINS}/liboutput_gate.so")
        self.assertIn("found kernels for no operation of", done.stderr)
        self.assertFalse((self.folder / "other.jsonl").exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[5:])
