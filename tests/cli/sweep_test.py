#!/usr/bin/env python3
"""dsakit sweep from outside: killed, interrupted, sharded, applied.

usage: sweep_test.py DSAKIT MAKE_RECORDINGS SCHEMA GOLDEN_DATA [unittest argument...]
"""
import collections
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

GOLDEN = pathlib.Path(sys.argv.pop(4)).absolute()
import cli_test  # noqa: E402  reads the other arguments
from cli_test import BAD_INPUT, INTERRUPTED, NOTHING_RAN, PASS, CliTest, DSAKIT, dsakit  # noqa: E402

TOPK = {"operation": "topk", "shape": {"rows": 1, "keys": 512, "k": 64}}
ATTENTION = {"operation": "sparse_attention", "shape": {"rows": 1, "context": 256, "heads": 16, "k": 64}}


class Sweep(CliTest):
    def setUp(self):
        super().setUp()
        self.results = self.folder / "results.jsonl"

    def space(self, *sweeps, name="space.json"):
        path = self.folder / name
        path.write_text(json.dumps({"schema": "dsakit.sweep-space/1", "sweeps": sweeps}))
        return path

    def small(self):
        """Eight candidates."""
        return self.space({"problems": [TOPK], "axes": {"lanes": [256, 512, 1024]}},
                          {"problems": [ATTENTION], "axes": {"splits": [1, 2, 4]}})

    def lines(self, path=None):
        return [json.loads(line) for line in (path or self.results).read_text().splitlines()]

    def expect_each_once(self, count):
        keys = collections.Counter(line["key"] for line in self.lines())
        self.assertEqual(set(keys.values()), {1})
        self.assertEqual(len(keys), count)

    def start(self, space, *arguments):
        return subprocess.Popen([DSAKIT, "sweep", space, "-o", self.results, "--samples", "2", *arguments],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait_for_lines(self, count, process):
        while process.poll() is None and (not self.results.exists() or self.results.read_text().count("\n") < count):
            time.sleep(0.005)

    def test_candidates_are_gated_timed_and_resumed(self):
        done = self.expect(PASS, "sweep", self.small(), "-o", self.results, "--samples", 2)
        self.assertIn("8 candidates: 8 timed, 0 disqualified, 0 done before, 0 left", done.stdout)
        self.assertEqual(done.stderr, "")
        self.expect_each_once(8)
        for line in self.lines():
            self.assertEqual(line["verdict"], "pass")
            self.assertEqual(line["device"], "host lanes (gfx942 model)")
            self.assertGreater(line["hot"]["median_us"], 0)
        self.assertEqual([line["ran"] for line in self.lines()][:4],
                         [{"lanes": 512}, {"lanes": 256}, {"lanes": 512}, {"lanes": 1024}])
        before = self.results.read_text()
        done = self.expect(PASS, "sweep", self.small(), "-o", self.results, "--samples", 2, "--resume")
        self.assertIn("0 timed, 0 disqualified, 8 done before", done.stdout)
        self.assertEqual(self.results.read_text(), before)
        self.expect(PASS, "sweep", self.small(), "-o", self.results, "--samples", 2, "--resume", "--host-arch", "gfx950")
        self.expect_each_once(16)

    def test_kill_9_loses_nothing_and_doubles_nothing(self):
        for after in (0, 1, 2, 4):
            process = self.start(self.small(), "--resume")
            self.wait_for_lines(after, process)
            process.kill()
            process.communicate()
        with self.results.open("a") as file:
            file.write('{"key": "torn')
        self.expect(PASS, "sweep", self.small(), "-o", self.results, "--samples", 2, "--resume")
        self.expect_each_once(8)

    def test_an_interrupt_is_130_and_leaves_a_file_to_resume(self):
        process = self.start(self.small())
        self.wait_for_lines(2, process)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
        self.assertEqual(process.returncode, INTERRUPTED, stderr)
        self.assertIn("--resume", stdout)
        self.assertLess(len(self.lines()), 8)
        self.expect(PASS, "sweep", self.small(), "-o", self.results, "--samples", 2, "--resume")
        self.expect_each_once(8)

    def test_two_shards_merged_are_one_run(self):
        self.expect(PASS, "sweep", self.small(), "-o", self.results, "--samples", 2)
        shards = [self.folder / f"shard{i}" for i in (1, 2)]
        for i, shard in enumerate(shards, 1):
            self.expect(PASS, "sweep", self.small(), "-o", shard, "--samples", 2, "--shard", f"{i}/2", "--jobs", 2,
                        "--order", "random")
            self.assertEqual(len(self.lines(shard)), 4)
        merged, one = self.folder / "merged", self.folder / "one"
        self.expect(PASS, "sweep", "merge", *shards, "-o", merged)
        self.expect(PASS, "sweep", "merge", self.results, "-o", one)
        without_times = lambda lines: [{k: v for k, v in line.items() if k not in ("hot", "cold")} for line in lines]
        self.assertEqual(without_times(self.lines(merged)), without_times(self.lines(one)))

    def test_a_tuned_choice_is_used(self):
        recording = GOLDEN / "kernel_topk.h5"
        ran = lambda env: {line.get("configuration", {}).get("lanes")
                           for line in self.report(PASS, "replay", recording, env=env)["operations"]
                           if line["subject"] == "kernel"}
        self.assertEqual(ran({}), {512})
        # The class that the replay has comes from a sweep of the recording.
        space = self.space({"problems": [{"operation": "topk", "recording": str(recording)}], "axes": {"lanes": [1024]}})
        self.expect(PASS, "sweep", space, "-o", self.results, "--samples", 2)
        tuned = self.folder / "tuned.json"
        lines = self.lines()
        for line in lines:  # as if it had won
            line["hot"] |= {"median_us": 1, "q1_us": 1, "q3_us": 1} if line["configuration"]["lanes"] else \
                {"median_us": 2, "q1_us": 2, "q3_us": 2}
        self.results.write_text("".join(json.dumps(line) + "\n" for line in lines))
        done = self.expect(PASS, "sweep", "apply", self.results, "-o", tuned)
        self.assertRegex(done.stdout, r"^kept +topk rows=")
        self.assertEqual(ran({"DSAKIT_TUNED": str(tuned)}), {1024})
        doctor = self.expect(PASS, "doctor", env={"DSAKIT_TUNED": str(tuned)}).stdout
        self.assertIn("host lanes (gfx942 model): 1", doctor)
        self.assertIn("host lanes (gfx950 model): none, every kernel takes its default", doctor)
        self.assertNotIn(str(self.folder), doctor.split("environment")[1])

    def test_a_bad_tuned_file_is_2(self):
        tuned = self.folder / "tuned.json"
        recording = GOLDEN / "kernel_topk.h5"
        for text, says in (('{"schema": "dsakit.tuned/1", "choices": [{"device": "d"}]}',
                            "choices[0]: operation: found no text, want one"),
                           ('{"schema": "dsakit.tuned/1", "choices": [], "choices": []}', "the key choices twice"),
                           ('{"schema": "dsakit.tuned/1", "choices": 1e999}', "found a number beyond 1.8e308")):
            tuned.write_text(text)
            env = {"DSAKIT_TUNED": str(tuned)}
            for arguments in (("replay", recording), ("bench", recording), ("bisect", recording),
                              ("bench", "--op", "topk", "--shape", "rows=1"),
                              ("golden", "--folder", GOLDEN.parent, "verify"),
                              ("shrink", recording, "--operation", "topk", "-o", self.folder / "small.h5"),
                              ("sweep", self.small(), "-o", self.results)):
                done = self.expect_bad(*arguments, says=[f"DSAKIT_TUNED: {tuned}: ", says], env=env)
                self.assertNotIn("kernel_topk", done.stderr)
            self.assertIn(says, self.expect(BAD_INPUT, "doctor", env=env).stderr)
            self.assertFalse(self.results.exists())

    def test_usage_is_2(self):
        space = self.small()
        for arguments in (["sweep"], ["sweep", space], ["sweep", "-o", "x"], ["sweep", "merge", "-o", "x"],
                          ["sweep", "apply", "a", "b", "-o", "x"], ["sweep", space, "-o", "x", "--jobs", "0"]):
            self.expect_bad(*arguments, says=["--help"])
        for option, value in (("--shard", "0/2"), ("--shard", "3/2"), ("--shard", "1"), ("--budget", "0"),
                              ("--budget", "1d")):
            self.expect_bad("sweep", space, "-o", self.results, option, value, says=[option, value])
        for effect in ("nan", "-1", "101"):
            self.expect_bad("sweep", "apply", self.results, "-o", self.folder / "t", f"--min-effect={effect}",
                            says=["--min-effect"])
        self.results.write_text("")
        self.expect_bad("sweep", space, "-o", self.results, says=["results.jsonl", "--resume"])
        self.results.write_text("{}\n")
        self.expect_bad("sweep", space, "-o", self.results, "--resume", says=["results.jsonl:1: key"])
        self.expect_bad("sweep", "apply", self.results, "-o", self.folder / "t", says=["results.jsonl:1: key"])
        self.expect_bad("sweep", "merge", self.results, "-o", self.folder / "t", says=["results.jsonl:1: key"])
        self.assertFalse((self.folder / "t").exists())

    def test_a_bad_space_is_2_before_anything_runs(self):
        for sweep, says in (({"problems": [TOPK], "axes": {"lanes": [100]}}, "lanes: found 100"),
                            ({"problems": [TOPK], "axes": {"lanes": [256]}, "constraints": ["lanes"]}, "constraints[0]"),
                            ({"axes": {"lanes": [256]}}, "problems")):
            self.expect_bad("sweep", self.space(sweep), "-o", self.results, says=["space.json: sweeps[0]: ", says])
            self.assertFalse(self.results.exists())
        second = {"operation": "topk", "shape": {"rowz": 1}}
        self.expect_bad("sweep", self.space({"problems": [TOPK, second], "axes": {"lanes": [256]}}), "-o", self.results,
                        says=["sweeps[0]: problems[1]: topk: found dimension 'rowz'"])
        self.assertFalse(self.results.exists())

    def test_a_problem_that_does_not_fit_into_memory_is_a_candidate_that_failed(self):
        large = {"operation": "topk", "shape": {"rows": 1000000000, "keys": 1000000000}}
        space = self.space({"problems": [large, TOPK], "axes": {"lanes": [256]}})
        done = self.expect(PASS, "sweep", space, "-o", self.results, "--samples", 2)
        self.assertIn("4 candidates: 2 timed, 2 disqualified", done.stdout)
        self.assertEqual([line["verdict"] for line in self.lines()], ["unsupported"] * 2 + ["pass"] * 2)
        self.assertIn("GB, want at most", self.lines()[0]["reason"])
        done = self.expect(PASS, "sweep", space, "-o", self.results, "--samples", 2, "--resume")
        self.assertIn("4 done before", done.stdout)

    def test_a_device_that_is_not_there_is_77(self):
        for device in ("hip", "cuda"):
            if dsakit("doctor", "--device", device).returncode != PASS:
                self.expect(NOTHING_RAN, "sweep", self.small(), "-o", self.results, "--device", device)
                self.assertFalse(self.results.exists())

    def test_progress_only_on_a_terminal(self):
        seen = self.on_a_terminal(PASS, "sweep", self.small(), "-o", self.results, "--samples", 2)
        for text in ("best ", "ETA", "100 %"):
            self.assertIn(text, seen)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]], verbosity=1)
