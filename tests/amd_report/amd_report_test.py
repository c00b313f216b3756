#!/usr/bin/env python3
"""tools/run amd and tools/amd_report, on the stand-in HIP runtime and on machines without a GPU.

usage: amd_report_test.py SOURCE_TREE BIN_FOLDER FAKE_HIP_FOLDER
"""
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import unittest

source, binaries, fake_hip = map(pathlib.Path, sys.argv[1:])
STEPS = ("doctor", "selftest", "parity", "replay", "bench")


def run(*command, **variables):
    # A shard of the parity tests: all of them run as tests of their own.
    environment = {**os.environ, "LD_LIBRARY_PATH": str(fake_hip), "FAKE_HIP_DEVICES": "1", "FAKE_HIP_MACH": "0x4c",
                   "GTEST_TOTAL_SHARDS": "30", "GTEST_SHARD_INDEX": "0", **variables}
    return subprocess.run([str(c) for c in command], env=environment, capture_output=True, text=True, timeout=600)


class AmdReport(unittest.TestCase):
    def report(self, folder, **variables):
        """The finished process, and the archive's files by name."""
        with tempfile.TemporaryDirectory() as output:
            done = run(source / "tools/amd_report", folder, output, "--benchmark_filter=index_cache_write/hip/",
                       **variables)
            archives = list(pathlib.Path(output).glob("*.tar.gz"))
            self.assertEqual(len(archives), 1, done.stdout + done.stderr)
            self.assertIn(str(archives[0]), done.stdout)
            self.archive = archives[0].name
            with tarfile.open(archives[0]) as archive:
                return done, {pathlib.Path(member.name).name: archive.extractfile(member).read().decode()
                              for member in archive if member.isfile()}

    def expect_summary(self, files, verdicts):
        lines = files["summary.txt"].splitlines()
        self.assertEqual([line.split()[0] for line in lines], list(verdicts))
        for line, (name, verdict) in zip(lines, verdicts.items()):
            self.assertRegex(line, f"^{name} +{verdict}\\b")
            self.assertIn(name + ".txt", files)

    def test_every_step_passes_and_is_in_the_archive(self):
        done, files = self.report(binaries)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("gfx942", self.archive)
        self.expect_summary(files, {name: "pass" for name in STEPS})
        self.assertIn("selftest: pass", files["selftest.txt"])
        self.assertNotIn(" 0 tests ran", files["parity.txt"])
        self.assertIn("verdict: pass", files["replay.txt"])
        bench = json.loads(files["bench.json"])
        self.assertIn("index_cache_write/hip", bench["benchmarks"][0]["name"])
        self.assertNotIn("host_name", bench["context"])

    def test_failing_launches_are_reported_and_packed(self):
        done, files = self.report(binaries, FAKE_HIP_LAUNCH_ERROR="1")
        self.assertEqual(done.returncode, 3, done.stdout)
        self.expect_summary(files, {name: "pass" if name == "doctor" else "FAIL" for name in STEPS})

    def test_a_device_without_code_objects_ends_after_doctor(self):
        done, files = self.report(binaries, FAKE_HIP_MACH="0x3f")
        self.assertEqual(done.returncode, 77)
        self.assertIn("hipErrorNoBinaryForGpu", done.stdout)
        self.assertNotIn("selftest.txt", files)

    def test_wrong_numbers_are_1_and_a_crash_weighs_more(self):
        for crash in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                for name in ("dsakit", "parity_tests", "dsakit_bench"):
                    path = pathlib.Path(folder, name)
                    dies = crash and name == "parity_tests"
                    path.write_text('#!/bin/sh\ncase "$*" in "doctor --device hip") exit 0; esac\n'
                                    + ("kill -ABRT $$\n" if dies else "exit 1\n"))
                    path.chmod(0o755)
                done, files = self.report(folder)
            self.assertEqual(done.returncode, 3 if crash else 1, done.stdout)
            self.assertRegex(files["summary.txt"], "selftest +FAIL ")

    def test_without_a_device_one_line_and_77(self):
        # In the preset asan the stand-in brings AddressSanitizer into a Python that was built without.
        done = run(source / "tools/run", "amd", FAKE_HIP_DEVICES="0",
                   ASAN_OPTIONS="verify_asan_link_order=0:detect_leaks=0")
        self.assertEqual(done.returncode, 77)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr, "no AMD GPU: the HIP runtime says hipErrorNoDevice\n")


unittest.main(argv=sys.argv[:1], verbosity=2)
