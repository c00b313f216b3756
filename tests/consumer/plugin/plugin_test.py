#!/usr/bin/env python3
"""--kernel-lib from outside: plug-ins that are right, wrong, and broken in every way.

usage: plugin_test.py DSAKIT GOLDEN_DATA PLUGINS_FOLDER [CODE_OBJECT_GFX942] [unittest argument...]
"""
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


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[5:])
