#!/usr/bin/env python3
"""dsakit bench, bench-diff, replay --determinism and tools/ci/check from outside.

usage: bench_test.py DSAKIT MAKE_RECORDINGS SCHEMA [unittest argument...]
"""
import csv
import hashlib
import io
import json
import os
import pathlib
import random
import re
import shlex
import subprocess
import sys
import unittest
from xml.etree import ElementTree

import jsonschema

from cli_test import (BAD_INPUT, DSAKIT, INCONCLUSIVE, KERNEL_FAILED, MISMATCH, NOTHING_RAN, PASS, SCHEMA, CliTest,
                      dsakit)

SOURCE = pathlib.Path(SCHEMA).parent.parent
TINY = ("--op", "topk", "--shape", "rows=2,keys=64,k=8", "--samples", 9)


def schema(name):
    return json.loads((SOURCE / "docs" / name).read_text())


def validate(document, name):
    jsonschema.validate(document, schema(name), jsonschema.Draft202012Validator)


class BenchCase(CliTest):
    def bench(self, code, *arguments):
        report = json.loads(self.expect(code, "bench", *arguments, "--format", "json").stdout)
        validate(report, "bench.schema.json")
        self.assertEqual(report["exit_code"], code)
        return report


class Bench(BenchCase):
    def test_a_problem_by_shape(self):
        report = self.bench(PASS, *TINY)
        row, = report["rows"]
        self.assertEqual((row["operation"], row["kernel"], row["verdict"], row["gate"]),
                         ("topk", "radix64", "pass", "2 of 2 rows"))
        self.assertEqual(row["problem"], {"rows": "2", "keys": "64", "k": "8", "input": "normal"})
        for times in (row["hot"], row["cold"]):
            self.assertEqual(len(times["samples"]), 9)
            self.assertEqual(times["min_us"], min(times["samples"]))
            self.assertLessEqual(times["q1_us"], times["median_us"])
            self.assertLessEqual(times["median_us"], times["q3_us"])
        self.assertIsNone(row["limit"])
        self.assertTrue(any("no kernel times" in note for note in report["notes"]))

    def test_formats_say_the_same(self):
        text = self.expect(PASS, "bench", *TINY, "--explain").stdout
        for part in ("no kernel times", "radix64", "bytes: ", "logits inside their rows 128 x 4", "cold: 16 copies"):
            self.assertIn(part, text)
        rows = list(csv.DictReader(io.StringIO(self.expect(PASS, "bench", *TINY, "--format", "csv").stdout)))
        self.assertEqual((rows[0]["operation"], rows[0]["verdict"]), ("topk", "pass"))
        self.assertGreater(float(rows[0]["hot_median_us"]), 0)
        self.assertIn("| topk | input=normal k=8 keys=64 rows=2 | radix64 lanes=512 |",
                      self.expect(PASS, "bench", *TINY, "--format", "md").stdout)
        output = self.folder / "bench.json"
        self.expect(PASS, "bench", *TINY, "--format", "json", "-o", output)
        validate(json.loads(output.read_text()), "bench.schema.json")

    def test_a_recording_has_its_reference_timed_and_its_rows_tiled(self):
        report = self.bench(PASS, self.file("sound"), "--tile", "rows=12", "--samples", 2)
        self.assertEqual([row["operation"] for row in report["rows"]],
                         ["index_cache_write", "index_cache_gather", "index_logits_decode"])
        for row in report["rows"]:
            self.assertEqual(row["problem"], {"recording": "sound.h5", "tile": "12"})
            self.assertGreater(row["reference"]["median_us"], 0)
        self.assertEqual(report["rows"][2]["rows"], 12)
        text = self.expect(PASS, "bench", self.file("sound"), "--op", "index_logits_decode", "--samples", 2).stdout
        self.assertRegex(text, r"rows/s: reference \S+.* kernel \S+.* ratio ")

    def test_every_operation_has_a_problem_that_passes(self):
        report = self.bench(PASS, "--axes", SOURCE / "bench/axes/host.json", "--samples", 1)
        table = (SOURCE / "reference/include/dsakit/core/operations.hpp").read_text()
        known = set(re.findall(r'^    {"(\w+)",', table, re.MULTILINE))
        self.assertGreater(len(known), 20)
        self.assertEqual({row["operation"] for row in report["rows"]}, known)

    def test_the_standard_axes_can_be_read(self):
        for file in sorted((SOURCE / "bench/axes").glob("*.json")):
            self.expect_bad("bench", "--axes", file, "--op", "nothing", says=["matches none of its operations"])

    def test_a_contract_is_part_of_what_a_row_is(self):
        row, = self.bench(PASS, "--op", "index_logits_decode", "--shape", "requests=1,context=64", "--samples", 1,
                          "--contract", "index_fp8_encoding=e4m3fnuz")["rows"]
        self.assertEqual(row["problem"]["contract.index_fp8_encoding"], "e4m3fnuz")

    def test_what_no_kernel_serves_is_3(self):
        row, = self.bench(KERNEL_FAILED, "--op", "index_logits_decode", "--shape", "requests=1,context=64,heads=65",
                          "--samples", 1)["rows"]
        self.assertEqual((row["verdict"], row["hot"]), ("unsupported", None))
        self.assertIn("65", row["reason"])

    def test_no_device_is_77(self):
        if dsakit("replay", self.file("sound"), "--device", "hip").returncode != NOTHING_RAN:
            self.skipTest("there is a hip device")
        done = self.expect(NOTHING_RAN, "bench", *TINY, "--device", "hip")
        self.assertIn("hip:", done.stderr)

    def test_refusals_name_what_was_found(self):
        for arguments, says in (
                ((), ["want FILE.h5, --op REGEX or --axes FILE.json"]),
                (("--op", "top"), ["'top' matches no operation"]),
                (("--op", "topk", "--shape", "row=2"), ["'row'", "want rows, keys, k, input"]),
                (("--op", "topk", "--shape", "rows=-1"), ["'-1'", "from 1 to 2^30"]),
                (("--op", "topk", "--tile", "rows=2"), ["--tile", "found no recording"]),
                ((self.file("sound"), "--tile", "2"), ["found '2', want rows=N"]),
                ((self.file("sound"), "--op", "topkk"), ["'topkk' matches no operation", "index_cache_write"]),
                ((self.file("sound"), "--shape", "rows=2"), ["--shape", "sound.h5"]),
                ((self.file("none"),), ["none.h5"]),
                ((*TINY, "--configuration", "tile=64"), ["found tile, want one of lanes for topk"]),
                ((*TINY, "--configuration", "tile"), ["found 'tile', want KEY=VALUE"]),
                ((*TINY, "--contract", "page_sise=2"), ["page_sise"])):
            self.expect_bad("bench", *arguments, says=says)
        self.expect_bad("bench", *TINY, says=["tuned.json: found the key choices twice"],
                        env={"DSAKIT_TUNED": self.put("tuned.json", '{"choices": [], "choices": []}')})
        done = self.expect(KERNEL_FAILED, "bench", *TINY, "--kernel-lib", self.file("sound"))
        self.assertIn("cannot load it", done.stderr)

    def put(self, name, text):
        (self.folder / name).write_text(text)
        return str(self.folder / name)

    def test_an_operation_that_the_file_has_not_is_77_in_every_verb(self):
        sound = self.file("sound")
        for arguments in (("replay", sound, "--operation", "topk"), ("bench", sound, "--op", "topk"),
                          ("shrink", sound, "--operation", "topk", "-o", self.folder / "small.h5")):
            done = self.expect(NOTHING_RAN, *arguments)
            self.assertEqual(done.stdout, "")
        self.assertIn("holds no operation topk", done.stderr)
        self.expect_bad("shrink", sound, "--operation", "topkk", "-o", self.folder / "small.h5", says=["'topkk'"])

    def test_what_does_not_fit_into_memory_is_a_row(self):
        row, = self.bench(KERNEL_FAILED, "--op", "topk", "--shape", "rows=1000000000,keys=1000000000")["rows"]
        self.assertEqual((row["verdict"], row["hot"]), ("unsupported", None))
        self.assertIn("GB, want at most", row["reason"])

    def test_every_format_names_the_configuration_that_ran(self):
        asked = (*TINY, "--configuration", "lanes=256")
        self.assertIn("topk (radix64 lanes=256)", self.expect(PASS, "bench", *asked).stdout)
        self.assertIn("| radix64 lanes=256 |", self.expect(PASS, "bench", *asked, "--format", "md").stdout)
        row, = csv.DictReader(io.StringIO(self.expect(PASS, "bench", *asked, "--format", "csv").stdout))
        self.assertEqual(row["ran"], "lanes=256")
        tuned = {"schema": "dsakit.tuned/1", "choices": [
            {"device": "host lanes (gfx942 model)", "operation": "topk", "kernel": "radix64",
             "problem_class": "rows=2 columns=64 k=8", "configuration": {"lanes": 1024}}]}
        env = {"DSAKIT_TUNED": self.put("tuned.json", json.dumps(tuned))}
        self.assertIn("topk (radix64 lanes=1024)", self.expect(PASS, "bench", *TINY, env=env).stdout)

    def test_bad_axes_say_where(self):
        axes = self.folder / "axes.json"
        for text, says in (
                ("{", ["axes.json"]),
                ('{"schema": "dsakit.axes/2"}', ['want "dsakit.axes/1"']),
                ('{"schema": "dsakit.axes/1"}', ["problems: found none"]),
                ('{"schema": "dsakit.axes/1", "problems": [{"operation": "topk", "shapes": {}}]}', ["problems[0]", "'shapes'"]),
                ('{"schema": "dsakit.axes/1", "problems": [{"operation": "topk", "shape": {"rows": []}}]}', ["rows: found []"]),
                ('{"schema": "dsakit.axes/1", "problems": [{"operation": "topk", "shape": {"rows": [1.5]}}]}', ["found 1.5"]),
                ('{"schema": "dsakit.axes/1", "problems": [{"operation": "topk", "shape": {"rows": [1, 2, 1]}}]}',
                 ["problems[0]: found topk input=normal k=2048 keys=32768 rows=1 twice, want it once"]),
                ('{"schema": "dsakit.axes/1", "problems": [{"operation": "topk"}, {"operation": "topk", "shape": {"rows": 64}}]}',
                 ["problems[1]: found topk", "twice"]),
                ('{"schema": "dsakit.axes/1", "problems": [{"operation": "topk", "shape": {"size": 1}}]}', ["'size'"])):
            axes.write_text(text)
            self.expect_bad("bench", "--axes", axes, says=says)

    def test_the_schema_can_refuse(self):
        jsonschema.Draft202012Validator.check_schema(schema("bench.schema.json"))
        good = self.bench(PASS, *TINY)
        for spoil in (lambda r: r["rows"][0].pop("code_hash"), lambda r: r["rows"][0].update(hot=None),
                      lambda r: r["rows"][0].update(verdict="fail"), lambda r: r.update(schema="dsakit.bench/2"),
                      lambda r: r["rows"][0]["hot"]["samples"].append(-1), lambda r: r.update(extra=1)):
            bad = json.loads(json.dumps(good))
            spoil(bad)
            with self.assertRaises(jsonschema.ValidationError):
                validate(bad, "bench.schema.json")


@unittest.skipUnless(os.environ.get("FAKE_HIP_DEVICES"), "not on the stand-in for the HIP runtime")
class OnFakeHip(BenchCase):
    """The path of a GPU: a child process, graphs, the resources of the code objects that ran."""

    def setUp(self):
        super().setUp()
        if dsakit("replay", self.file("sound"), "--device", "hip").returncode == NOTHING_RAN:
            self.skipTest("this build has no gfx942 code objects")

    def test_short_launches_are_timed_as_graphs(self):
        row, = self.bench(PASS, "--op", "index_weights_fold", "--shape", "rows=1,heads=1", "--samples", 2,
                          "--copies", 3, "--device", "hip")["rows"]
        self.assertEqual((row["verdict"], row["graph"]), ("pass", True))
        self.assertGreater(row["hot"]["launches"], 1)
        self.assertEqual(row["cold"]["launches"] % row["cold"]["copies"], 0)
        self.assertEqual(row["resources"]["spills"], 0)
        self.assertRegex(row["code_hash"], "^[0-9a-f]{64}$")

    def test_a_kernel_that_hangs_is_a_row_and_not_the_end(self):
        report = self.bench(KERNEL_FAILED, "--op", "index_weights_fold", "--shape", "rows=4000,heads=64", "--samples",
                            100000, "--copies", 1, "--device", "hip", "--time-limit", 2)
        self.assertEqual(report["rows"][0]["verdict"], "error")
        self.assertIn("--time-limit", report["rows"][0]["reason"])


class BenchDiff(BenchCase):
    def setUp(self):
        super().setUp()
        self.random = random.Random(5)
        self.report = None

    def write(self, name, hot_us, resources=None, keys=64):
        """A benchmark of one row whose hot times have 1 % of noise."""
        if self.report is None:
            self.report = self.bench(PASS, *TINY)
        report = json.loads(json.dumps(self.report))
        row = report["rows"][0]
        row["problem"]["keys"] = str(keys)
        row["hot"]["samples"] = [self.random.gauss(hot_us, 0.01 * hot_us) for _ in range(30)]
        row["cold"]["samples"] = [self.random.gauss(100, 1) for _ in range(30)]
        row["resources"] = resources or {"spills": 0}
        path = self.folder / name
        path.write_text(json.dumps(report))
        return path

    def diff(self, code, *arguments):
        report = json.loads(self.expect(code, "bench-diff", *arguments, "--format", "json").stdout)
        validate(report, "bench-diff.schema.json")
        self.assertEqual(report["exit_code"], code)
        return {row["times"]: row["verdict"] for row in report["rows"]}

    def test_noise_is_same_and_ten_percent_is_slower(self):
        base = self.write("base.json", 50)
        self.assertEqual(self.diff(PASS, base, self.write("same.json", 50)), {"hot": "SAME", "cold": "SAME"})
        slow = self.write("slow.json", 55, {"spills": 24})
        self.assertEqual(self.diff(MISMATCH, base, slow), {"hot": "SLOWER", "cold": "SAME"})
        self.assertEqual(self.diff(PASS, slow, base), {"hot": "FASTER", "cold": "SAME"})
        for form in ("text", "md"):
            text = self.expect(MISMATCH, "bench-diff", base, slow, "--format", form).stdout
            for part in ("SLOWER", "spills 0 -> 24", "geometric mean"):
                self.assertIn(part, text)
        self.assertEqual(self.diff(PASS, base, slow, "--min-effect", "0.2"), {"hot": "SAME", "cold": "SAME"})

    def test_slower_must_repeat(self):
        base, slow, fine = self.write("base.json", 50), self.write("slow.json", 55), self.write("fine.json", 50)
        cat = lambda path: f"cat {shlex.quote(str(path))}"
        self.diff(MISMATCH, base, slow, "--rerun", cat(slow))
        self.assertEqual(self.diff(INCONCLUSIVE, base, slow, "--rerun", cat(fine))["hot"], "AMBIGUOUS")
        log = self.folder / "log"
        tell = lambda who, path: f"echo {who} >> {shlex.quote(str(log))}; {cat(path)}"
        self.diff(MISMATCH, base, slow, "--rerun", tell("new", slow), "--rerun-base", tell("base", base))
        self.assertEqual(log.read_text().split(), ["base", "new", "base", "new"])
        self.expect_bad("bench-diff", base, slow, "--rerun", "false", says=["--rerun", "exit code 1"])
        self.expect_bad("bench-diff", base, slow, "--rerun", "echo 1", says=["--rerun", "schema"])

    def test_rows_of_one_side_are_said(self):
        base, other = self.write("base.json", 50), self.write("other.json", 50, keys=128)
        done = self.expect(NOTHING_RAN, "bench-diff", base, other)
        self.assertIn("in BASE alone: topk input=normal k=8 keys=64 rows=2 on host", done.stdout)
        self.assertIn("in NEW alone: topk input=normal k=8 keys=128 rows=2 on host", done.stdout)
        self.assertIn("nothing was compared", done.stdout)
        self.assertNotIn("geometric mean", done.stdout)
        done = self.expect(NOTHING_RAN, "bench-diff", base, other, "--format", "json")
        report = json.loads(done.stdout)
        validate(report, "bench-diff.schema.json")
        self.assertIsNone(report["geometric_mean"])

    def test_refusals(self):
        base = self.write("base.json", 50)
        for effect in ("0", "100%", "3 %", "x", "-1%"):
            self.expect_bad("bench-diff", base, base, f"--min-effect={effect}", says=[effect, "3%"])
        self.expect_bad("bench-diff", base, self.folder / "none.json", says=["none.json"])
        self.expect_bad("bench-diff", base, self.file("sound"), says=["sound.h5"])
        self.expect_bad("bench-diff", base, base, "--rerun-base", "true", says=["--rerun"])
        report = json.loads(base.read_text())
        partial, empty = self.folder / "partial.json", self.folder / "empty.json"
        partial.write_text(json.dumps({**report, "partial": True, "exit_code": 130}))
        self.expect_bad("bench-diff", base, partial, says=["partial.json: partial: ", "interrupted"])
        report["rows"][0]["hot"] = None
        empty.write_text(json.dumps(report))
        self.expect_bad("bench-diff", base, empty, says=["empty.json: rows[0]: hot: found none in a row that passed"])
        self.expect_bad("bench-diff", base, base, "-o", base, says=["base.json"])


class Determinism(CliTest):
    def test_levels_are_lines_of_the_report(self):
        report = self.report(PASS, "replay", self.file("sound"), "--determinism", "run,batch,split", 2)
        against = {(line["operation"], line["against"]): line["verdict"] for line in report["operations"]}
        self.assertEqual(against[("index_logits_decode", "run")], "pass")
        self.assertEqual(against[("index_logits_decode", "batch")], "pass")
        self.assertEqual(against[("index_cache_write", "batch")], "skipped")
        self.assertEqual(against[("index_logits_decode", "split")], "skipped")

    def test_refusals(self):
        sound = self.file("sound")
        self.expect_bad("replay", sound, "--determinism", "rows", 3, says=["'rows'", "run, batch and split"])
        self.expect_bad("replay", sound, "--determinism", "run", 1, says=["'1'", "2 to 10000"])
        self.expect_bad("replay", sound, "--determinism", "run", 2, "--mode", "chained", says=["chained", "fed"])


class Recipe(BenchCase):
    """tools/ci/check, with a small golden folder and small problems."""

    def setUp(self):
        super().setUp()
        self.golden = self.folder / "golden"
        (self.golden / "data").mkdir(parents=True)
        self.axes = self.folder / "axes.json"
        self.axes.write_text(json.dumps({"schema": "dsakit.axes/1", "problems": [
            {"operation": "topk", "shape": {"rows": 2, "keys": 64, "k": 8}}]}))
        self.put("sound")

    def put(self, name):
        data = (self.folder / f"{name}.h5").read_bytes()
        (self.golden / "data" / "tiny.h5").write_bytes(data)
        (self.golden / "manifest.json").write_text(json.dumps({"schema": "dsakit-golden/1", "entries": [
            {"id": "tiny", "file": "data/tiny.h5", "sha256": hashlib.sha256(data).hexdigest()}]}))

    def check(self, code, *arguments):
        out = self.folder / "out"
        done = subprocess.run([SOURCE / "tools/ci/check", DSAKIT, out, "--golden", self.golden, "--axes", self.axes,
                               *arguments], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return out

    def test_without_a_baseline_it_leaves_one(self):
        out = self.check(PASS)
        self.assertEqual(ElementTree.parse(out / "golden.junit.xml").getroot().get("failures"), "0")
        validate(json.loads((out / "bench.json").read_text()), "bench.schema.json")
        self.assertIn("no baseline", (out / "summary.md").read_text())

    def test_with_a_baseline_it_compares(self):
        baseline = self.folder / "baseline.json"
        report = json.loads((self.check(PASS) / "bench.json").read_text())
        for times in ("hot", "cold"):  # far slower than whatever this machine does
            report["rows"][0][times]["samples"] = [1e7 + i for i in range(30)]
        baseline.write_text(json.dumps(report))
        out = self.check(PASS, "--baseline", baseline)
        self.assertIn("FASTER", (out / "summary.md").read_text())
        for times in ("hot", "cold"):  # and far faster
            report["rows"][0][times]["samples"] = [1e-3 + 1e-6 * i for i in range(30)]
        baseline.write_text(json.dumps(report))
        out = self.check(MISMATCH, "--baseline", baseline)
        self.assertIn("SLOWER", (out / "summary.md").read_text())

    def test_a_wrong_recording_is_1_and_the_rest_still_runs(self):
        self.put("wrong")
        out = self.check(MISMATCH)
        self.assertNotEqual(ElementTree.parse(out / "golden.junit.xml").getroot().get("failures"), "0")
        self.assertTrue((out / "bench.json").exists())

    def test_a_device_that_is_not_there_is_77(self):
        if dsakit("doctor", "--device", "hip").returncode == NOTHING_RAN:
            out = self.check(NOTHING_RAN, "--device", "hip")
            self.assertIn("benchmarks: exit 77", (out / "summary.md").read_text())

    def test_a_step_that_leaves_nothing_or_dies_is_3(self):
        """A dsakit that lies: it says that all is well, and writes no file; or it crashes."""
        for body, says in (("exit 0", "golden replay: exit 0, which left no golden.junit.xml"),
                           ("kill -SEGV $$", "which is none of dsakit's")):
            program = self.folder / "liar"
            program.write_text(f'#!/bin/sh\n[ "$1" != --version ] || {{ echo dsakit 0; exit; }}\n{body}\n')
            program.chmod(0o755)
            done = subprocess.run([SOURCE / "tools/ci/check", program, self.folder / "out"], capture_output=True, text=True)
            self.assertEqual(done.returncode, KERNEL_FAILED, done.stdout + done.stderr)
            self.assertIn(says, done.stdout)

    def test_refusals(self):
        for arguments, says in (((), "want DSAKIT OUT"), (("no-such-program", self.folder / "o"), "no-such-program"),
                                (("/bin/true", self.folder / "o"), "found a program /bin/true whose --version says 'true (GNU"),
                                ((DSAKIT, self.folder / "o", "--speed", "1"), "found --speed"),
                                ((DSAKIT, self.folder / "o", "--baseline", "no.json"), "no.json")):
            done = subprocess.run([SOURCE / "tools/ci/check", *arguments], capture_output=True, text=True)
            self.assertEqual(done.returncode, BAD_INPUT, done.stderr)
            self.assertIn(says, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
