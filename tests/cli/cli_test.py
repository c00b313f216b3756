#!/usr/bin/env python3
"""The dsakit binary from outside.

usage: cli_test.py DSAKIT MAKE_RECORDINGS SCHEMA [unittest argument...]
"""
import ast
import fcntl
import json
import os
import pathlib
import pty
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from xml.etree import ElementTree

import jsonschema

DSAKIT, MAKE_RECORDINGS, SCHEMA = map(os.path.abspath, sys.argv[1:4])
PASS, MISMATCH, BAD_INPUT, KERNEL_FAILED, INCONCLUSIVE, NOTHING_RAN, INTERRUPTED = 0, 1, 2, 3, 4, 77, 130


def dsakit(*arguments, env=None, **options):
    return subprocess.run([DSAKIT, *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **(env or {})}, **options)


class CliTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.made = tempfile.TemporaryDirectory()
        subprocess.run([MAKE_RECORDINGS, cls.made.name], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.made.cleanup()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for file in pathlib.Path(self.made.name).iterdir():
            shutil.copy(file, self.folder)

    def file(self, name):
        return self.folder / f"{name}.h5"

    def expect(self, code, *arguments, **options):
        done = dsakit(*arguments, **options)
        self.assertEqual(done.returncode, code, f"{arguments}\n{done.stdout}{done.stderr}")
        return done

    def expect_bad(self, *arguments, says=(), **options):
        """Exit 2, nothing on stdout, one line on stderr that holds every text of `says`."""
        done = self.expect(BAD_INPUT, *arguments, **options)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for text in says:
            self.assertIn(text, done.stderr)
        return done

    def on_a_terminal(self, code, *arguments):
        """What a terminal gets on standard error."""
        leader, follower = pty.openpty()
        process = subprocess.Popen([DSAKIT, *map(str, arguments)], stderr=follower, stdout=subprocess.DEVNULL)
        os.close(follower)
        seen = ""
        try:
            while block := os.read(leader, 1 << 16):
                seen += block.decode()
        except OSError:  # how a pty says that the other side is closed
            pass
        os.close(leader)
        self.assertEqual(process.wait(timeout=60), code, seen)
        return seen

    def report(self, code, *arguments, **options):
        report = json.loads(self.expect(code, *arguments, "--format", "json", **options).stdout)
        jsonschema.validate(report, json.loads(pathlib.Path(SCHEMA).read_text()),
                            jsonschema.Draft202012Validator)
        return report


class ExitCodes(CliTest):
    def test_a_sound_recording_passes(self):
        self.expect(PASS, "replay", self.file("sound"))

    def test_s61_s65_a_mismatch_is_1_and_names_operation_and_coordinate(self):
        done = self.expect(MISMATCH, "replay", self.file("wrong"))
        self.assertRegex(done.stdout, r"FAIL index_cache_gather step 0 k_scale")
        self.assertIn("first [3]", done.stdout)
        self.assertRegex(done.stdout, r"FAIL too: index_logits_decode step 0")

    def test_usage_is_2(self):
        for arguments in ([], ["replay"], ["no_such_verb"], ["replay", "--no-such-option", "x"],
                          ["replay", self.file("sound"), "--format", "xml"],
                          ["replay", self.file("sound"), "--device", "tpu"],
                          ["replay", self.file("sound"), "--lds-pattern", "256"],
                          ["replay", self.file("sound"), "--host-schedule", "-1"],
                          ["replay", self.file("sound"), "--host-arch", "gfx90a"],
                          ["compare", self.file("sound")]):
            self.expect_bad(*arguments, says=["--help"])
        self.expect_bad("no_such_verb", says=["no_such_verb"])

    def test_bad_arguments_are_one_line(self):
        sound = self.file("sound")
        self.expect_bad("replay", sound, "--operation", "layers", says=["layers", "index_cache_write"])
        self.expect_bad("replay", sound, "--contract", "page_sise=2", says=["page_sise", "page_size"])
        self.expect_bad("replay", sound, "--contract", "qmax=3", says=["qmax", "448"])
        self.expect_bad("replay", sound, "--rules", self.folder / "none.json", says=["none.json"])
        self.expect_bad("replay", sound, env={"DSAKIT_FORCE_KERNEL": "fastest"}, says=["fastest"])

    def test_bad_files_are_one_line(self):
        (self.folder / "text.h5").write_text("not a recording\n")
        (self.folder / "empty").mkdir()
        self.expect_bad("replay", self.folder / "missing.h5", says=["missing.h5"])
        self.expect_bad("replay", self.folder / "text.h5", says=["text.h5"])
        self.expect_bad("replay", self.folder / "empty", says=["empty"])
        self.expect_bad("replay", self.file("bad_slot"), says=["slot_mapping", "[1]", "8"])

    def test_a_raw_flip_names_the_dataset(self):
        path = self.file("sound")
        data = bytearray(path.read_bytes())
        # The gathered scales: five powers of two that occur as one run only in their own dataset.
        report = self.report(MISMATCH, "replay", self.file("wrong"))
        line = next(l for l in report["operations"] if l["tensor"] == "k_scale" and l["verdict"] == "fail")
        want = bytes.fromhex(line["got_hex"][2:])[::-1]  # reference, little endian
        hits = [m.start() for m in re.finditer(re.escape(want), data)]
        for hit in hits:
            flipped = bytearray(data)
            flipped[hit] ^= 1
            path.write_bytes(flipped)
            self.expect_bad("replay", path, says=["sound.h5", "/steps/0/"])
        self.assertTrue(hits)

    def test_nobody_may_read_it(self):
        if os.geteuid() != 0:
            self.skipTest("NOT CHECKED: needs root, to become nobody")
        shared = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, shared)
        shared.chmod(0o755)
        shutil.copy(self.file("sound"), shared / "secret.h5")
        shutil.copy(DSAKIT, shared / "dsakit")
        (shared / "secret.h5").chmod(0o600)
        done = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                               shared / "dsakit", "replay", shared / "secret.h5"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, BAD_INPUT, done.stderr)
        self.assertIn("secret.h5", done.stderr)

    def test_a_device_that_is_not_there_is_77_after_the_files_were_checked(self):
        for device in ("hip", "cuda"):
            if dsakit("doctor", "--device", device).returncode == PASS:
                continue
            done = self.expect(NOTHING_RAN, "replay", self.file("sound"), "--device", device)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.expect_bad("replay", self.file("bad_slot"), "--device", device)
            self.expect_bad("replay", self.folder / "missing.h5", "--device", device)

    def test_nothing_to_replay_is_77(self):
        arguments = ("replay", self.file("gather_only"), "--operation", "index_cache_write")
        self.assertEqual(self.expect(NOTHING_RAN, *arguments).stdout, "")
        report = self.report(NOTHING_RAN, *arguments)  # a program still asks why
        self.assertEqual(report["files"][0]["reason"], "holds no operation index_cache_write")
        self.assertEqual(self.report(NOTHING_RAN, "compare", self.file("gather_only"), self.file("other_operation"),
                                     "--allow-missing")["operations"][0]["verdict"], "skipped")

    def test_an_unknown_operation_names_each_known_one_once(self):
        names = self.expect_bad("replay", self.file("sound"), "--operation", "layers").stderr.split("one of ")[1]
        names = names.strip().split(", ")
        self.assertEqual(len(names), len(set(names)), names)

    def test_a_sample_of_rows_feeds_no_chain(self):
        self.expect_bad("replay", self.file("sound"), "--mode", "chained", "--rows", 2, says=["--rows", "--mode fed"])
        self.expect(PASS, "replay", self.file("sound"), "--mode", "chained", "--rows", 0)

    def test_info_shows_the_whole_command(self):
        command = "dsakit record --config kimi-k3.1 " + " ".join(f"--contract key{i}=value" for i in range(12))
        shown = " ".join(self.expect(PASS, "info", self.file("long_command")).stdout.split())
        self.assertIn("command=" + command, shown)

    def test_a_problem_that_no_kernel_takes_is_3(self):
        done = self.expect(KERNEL_FAILED, "replay", self.file("unsupported"))
        self.assertIn("fp16", done.stdout)

    def test_precedence(self):
        bad, wrong, unsupported = self.folder / "missing.h5", self.file("wrong"), self.file("unsupported")
        self.expect(BAD_INPUT, "replay", "-k", wrong, unsupported, bad)
        self.expect(KERNEL_FAILED, "replay", "-k", wrong, unsupported)
        self.expect(MISMATCH, "replay", "-k", self.file("sound"), wrong)

    def test_the_first_bad_file_ends_the_run_unless_asked_to_go_on(self):
        (self.folder / "text.h5").write_text("not a recording\n")
        self.expect_bad("replay", self.file("sound"), self.folder / "text.h5")
        done = self.expect(BAD_INPUT, "replay", "-k", self.folder / "text.h5", self.file("sound"))
        self.assertRegex(done.stdout, r"sound.h5 .*pass")

    def test_an_output_onto_an_input_is_refused_and_nothing_is_lost(self):
        sound = self.file("sound")
        before = sound.read_bytes()
        self.expect_bad("replay", sound, "-o", sound)
        self.expect_bad("compare", sound, sound, "-o", sound)
        self.assertEqual(sound.read_bytes(), before)

    def many(self):
        """A folder of links to one recording; replaying or comparing it takes many seconds."""
        many = self.folder / "many"
        many.mkdir()
        for i in range(3000):
            os.link(self.file("sound"), many / f"{i:04}.h5")
        return many

    def interrupted(self, *arguments, after=0.5):
        """What an interrupted run prints; it must not have ended before."""
        process = subprocess.Popen([DSAKIT, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True)
        time.sleep(after)
        self.assertIsNone(process.poll(), "ended before it could be interrupted")
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
        self.assertEqual(process.returncode, INTERRUPTED, stderr)
        self.assertIn("interrupted", stderr)
        return stdout

    def test_an_interrupt_is_130_and_leaves_a_partial_report(self):
        many, output = self.many(), self.folder / "report.json"
        for arguments in (("replay", many), ("compare", many, many)):
            after = 1
            while not output.exists() and after < 60: # nothing was compared before: no report
                self.assertEqual(self.interrupted(*arguments, "--format", "json", "-o", output, after=after), "")
                after *= 2
            report = json.loads(output.read_text())
            jsonschema.validate(report, json.loads(pathlib.Path(SCHEMA).read_text()), jsonschema.Draft202012Validator)
            self.assertTrue(report["partial"])
            self.assertGreater(report["files_left_out"], 0)
            self.assertEqual(len(report["files"]) + report["files_left_out"], 3000)
            self.assertEqual([p.name for p in self.folder.iterdir() if "report" in p.name], ["report.json"])
            output.unlink()
        self.assertIn("PARTIAL: interrupted", self.interrupted("compare", many, many))
        self.assertIs(self.report(PASS, "compare", self.file("sound"), self.file("sound"))["partial"], False)

    def test_a_second_interrupt_ends_the_run_at_once(self):
        # The report does not fit the pipe, which nobody reads: only a second signal ends the process.
        process = subprocess.Popen([DSAKIT, "compare", many := self.many(), many, "--format", "json"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        while "again: at once" not in process.stderr.readline():
            pass
        time.sleep(1)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=60), INTERRUPTED)
        process.communicate()

    def test_an_interrupted_export_is_130_and_leaves_nothing(self):
        output = self.folder / "out.csv"
        # Ten million rows of text.
        config = Record.write_config(self.folder)
        self.expect(PASS, "record", "--config", config, "--requests", "decode:16384", "--seed", 1, "-o",
                    self.file("large"))
        process = subprocess.Popen([DSAKIT, "export", self.file("large"), "--operation", "mla_cache_write", "--tensor",
                                    "inputs/mla_cache", "-o", output], stderr=subprocess.PIPE)
        while process.poll() is None and not any("out.csv" in path.name for path in self.folder.iterdir()):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=60), INTERRUPTED, process.communicate())
        self.assertEqual([p.name for p in self.folder.iterdir() if "out" in p.name], [])

    def test_each_verb_has_2_for_what_is_no_file(self):
        none = self.folder / "none"
        for arguments in (("info", none), ("import", none, "-o", self.file("x")), ("export", none, "-o", self.file("x")),
                          ("replay", none), ("compare", none, none), ("golden", "--folder", none, "verify")):
            self.expect_bad(*arguments, says=["none", "cannot be opened: No such file or directory"])
            self.assertFalse(self.file("x").exists())
        self.expect_bad("record", "--config", none, "--requests", "prefill:4", "--seed", 1, "-o", self.file("x"),
                        says=["none: cannot be opened: No such file or directory", "kimi-k3.1"])

    def test_each_verb_has_2_for_what_is_no_ordinary_file(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        for arguments in (("info", pipe), ("import", pipe, "-o", self.file("x")), ("export", pipe, "-o", self.file("x")),
                          ("replay", pipe), ("compare", pipe, pipe), ("replay", self.file("sound"), "--rules", pipe),
                          ("record", "--config", pipe, "--requests", "prefill:4", "--seed", 1, "-o", self.file("x")),
                          ("bisect", pipe), ("shrink", pipe, "-o", self.file("x"), "--operation", "topk")):
            self.expect_bad(*arguments, says=["pipe: found a special file, want an ordinary one"])

    def test_no_control_character_of_a_name_or_a_file_reaches_a_terminal(self):
        bad = self.folder / "a\x1b[31m\nb\x7f.h5"
        shutil.copy(self.file("wrong"), bad)
        missing = self.folder / "none\x1b[2J\n.h5"
        waivers = self.folder / "waivers.json"
        waivers.write_text(json.dumps({"waivers": [{"operation": "index_logits_decode", "match": ".*",
                                                    "reason": "a\x1b[31m\n", "expires": "9999-12-31"}]}))
        small = self.folder / "small\x1b.h5"
        for code, *arguments in ((MISMATCH, "replay", bad), (MISMATCH, "replay", "-k", bad, self.file("sound")),
                                 (MISMATCH, "compare", bad, self.file("sound")),
                                 (MISMATCH, "replay", bad, "--waivers", waivers),
                                 (MISMATCH, "bisect", bad), (MISMATCH, "bisect", bad, "--against", self.file("sound")),
                                 (PASS, "info", bad), (BAD_INPUT, "info", missing), (BAD_INPUT, "replay", missing),
                                 (BAD_INPUT, "compare", missing, bad), (BAD_INPUT, "bisect", missing),
                                 (BAD_INPUT, "export", missing, "-o", small), (BAD_INPUT, "import", missing, "-o", small),
                                 (PASS, "export", bad, "-o", small.with_suffix(".safetensors")),
                                 (BAD_INPUT, "replay", self.file("sound"), "--rules", missing),
                                 (BAD_INPUT, "replay", self.file("sound"), "--\x1b"),
                                 (PASS, "shrink", bad, "-o", small, "--operation", "index_logits_decode")):
            formats = ["text"]
            if arguments[0] in ("replay", "compare", "bisect") and code == MISMATCH:
                formats += ["md", "junit"]
            for form in formats:
                done = self.expect(code, *arguments, *(() if form == "text" else ("--format", form)))
                for stream in (done.stdout, done.stderr):
                    self.assertEqual([c for c in stream if c != "\n" and not c.isprintable()], [], (arguments, form))
                    self.assertFalse(any(line.startswith("b\\x7f") for line in stream.splitlines()), stream)
                if form == "text" and arguments[0] == "replay" and code == MISMATCH and len(arguments) == 2:
                    command = re.search(r"^ *reproduce: (.*)$", done.stdout, re.M).group(1)
                    again = subprocess.run(["bash", "-c", command.replace("dsakit", DSAKIT, 1)], capture_output=True)
                    self.assertEqual(again.returncode, MISMATCH, command)

    def test_a_file_that_fails_when_it_is_read_is_named(self):
        for option in ("--rules", "--waivers"):
            self.expect_bad("replay", self.file("sound"), option, "/proc/self/mem",
                            says=["/proc/self/mem: cannot be read"])
        broken = self.folder / "broken.json"
        broken.write_text('{\n  "waivers": [,]\n}')
        for option in ("--rules", "--waivers"):
            self.expect_bad("replay", self.file("sound"), option, broken,
                            says=["broken.json: line 2, column 15 (byte 17): found no valid JSON"])

    def test_a_device_that_doctor_does_not_find_is_77(self):
        for device in ("hip", "cuda"):
            if dsakit("doctor", "--device", device).returncode != PASS:
                self.expect(NOTHING_RAN, "doctor", "--device", device)
                return
        self.skipTest("NOT CHECKED: this machine has both devices")

    def test_an_interrupted_import_is_130_and_leaves_nothing(self):
        tokens = 1 << 22  # 1 GiB of keys, all a hole
        tensors = {"k": ("BF16", [tokens, 128], 256 * tokens), "slots": ("I64", [0], 0),
                   "cache": ("U8", [1, 64, 132], 64 * 132)}
        header, end = {}, 0
        for name, (dtype, shape, size) in tensors.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
            end += size
        text = json.dumps(header).encode()
        dump = self.folder / "dump.safetensors"
        with open(dump, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + end)
        manifest = self.folder / "manifest.json"
        manifest.write_text(json.dumps({
            "contract": {"index_fp8_encoding": "e4m3fn", "index_page_layout": "block_flat", "page_size": 64,
                         "scale_kind": "ue8m0", "qmax": 448, "index_k_floor": 1e-4, "activation_dtype": "bf16"},
            "operations": [{"operation": "index_cache_write", "outputs": {"index_cache": "cache"},
                            "inputs": {"index_k": "k", "slot_mapping": "slots", "index_cache": "cache"}}]}))
        process = subprocess.Popen([DSAKIT, "import", dump, "--manifest", manifest, "-o",
                                    self.folder / "import.h5"], stderr=subprocess.PIPE)
        written = lambda: [p for p in self.folder.iterdir() if "import" in p.name and p.stat().st_size > 1 << 20]
        while process.poll() is None and not written():
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=60), INTERRUPTED, process.communicate())
        self.assertEqual([p.name for p in self.folder.iterdir() if "import" in p.name], [])


class Reports(CliTest):
    def test_json_follows_its_schema(self):
        for code, *arguments in ((PASS, self.file("sound")), (MISMATCH, self.file("wrong")),
                                 (MISMATCH, self.file("not_finite")), (KERNEL_FAILED, self.file("unsupported")),
                                 (NOTHING_RAN, self.file("gather_only"), self.file("gather_only"),
                                  "--operation", "index_cache_write"),
                                 (BAD_INPUT, "-k", self.file("bad_slot"), self.file("sound")),
                                 (PASS, self.file("wrong"), *self.waived()),
                                 (MISMATCH, self.file("wrong"), *self.waived("2000-01-01")),
                                 (PASS, self.file("wrong"), *self.budgets()),
                                 (PASS, self.file("sound"), "--host-arch", "gfx950", "--host-schedule", 7)):
            report = self.report(code, "replay", *arguments)
            if code == NOTHING_RAN:
                self.assertEqual(report["files"][0]["reason"], "holds no operation index_cache_write")
        self.report(PASS, "compare", self.file("sound"), self.file("sound"))
        self.report(MISMATCH, "compare", self.file("wrong"), self.file("sound"))

    def test_the_schema_can_refuse(self):
        schema = json.loads(pathlib.Path(SCHEMA).read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        good = self.report(MISMATCH, "replay", self.file("wrong"))
        failing = next(i for i, line in enumerate(good["operations"]) if line["verdict"] == "fail")
        for spoil in (lambda r: r.pop("verdict"), lambda r: r.update(schema="dsakit-report/2"),
                      lambda r: r["operations"][0].pop("used"), lambda r: r["operations"][0].update(extra=1),
                      lambda r: r["operations"][0].update(verdict="ok"), lambda r: r["files"].clear(),
                      lambda r: r["operations"][failing].update(verdict="pass"),
                      lambda r: r["operations"][failing].update(first_at=[-1])):
            bad = json.loads(json.dumps(good))
            spoil(bad)
            with self.assertRaises(jsonschema.ValidationError):
                jsonschema.validate(bad, schema, jsonschema.Draft202012Validator)

    def test_numbers_that_json_lacks_are_null_with_their_text(self):
        report = self.report(MISMATCH, "replay", self.file("not_finite"))
        line = next(l for l in report["operations"] if l["subject"] == "reference" and l["verdict"] == "fail")
        self.assertEqual((line["want"], line["want_text"], line["want_hex"]), (None, "nan", "0x7fc00000"))
        self.assertEqual((line["worst_abs"], line["worst_abs_text"]), (None, "inf"))

    def test_every_number_of_the_text_is_in_the_json(self):
        for code, *arguments in ((PASS, self.file("sound")), (MISMATCH, self.file("wrong")),
                                 (MISMATCH, self.file("not_finite")), (PASS, self.file("wrong"), *self.waived()),
                                 (MISMATCH, self.file("wgmma"), "--contract", "accumulation:logits=fp32",
                                  "--attribute"),
                                 (MISMATCH, self.file("wrong"), "--gate", ".*=exact,budget=3:0.5,l2=1e-9"),
                                 (MISMATCH, "-k", self.file("sound"), self.file("wrong"), self.file("wgmma"))):
            numbers = set()
            collect(self.report(code, "replay", *arguments), numbers)
            for form in ((), ("-v",), ("--format", "md")):
                for line in self.expect(code, "replay", *arguments, *form).stdout.splitlines():
                    line = re.sub(r"[\d.]+ (us|ms|s)\b", "", line)  # times differ from run to run
                    for token in number_tokens(line):
                        self.assertIn(token, numbers, line)
        for code, *arguments in ((PASS, self.file("sound"), self.file("sound")),
                                 (MISMATCH, self.file("wrong"), self.file("sound")),
                                 (MISMATCH, self.file("not_finite"), self.file("sound")),
                                 (BAD_INPUT, self.file("other_input"), self.file("sound"))):
            numbers = set()
            collect(self.report(code, "compare", *arguments), numbers)
            for form in ((), ("-v",), ("--format", "md")):
                for line in self.expect(code, "compare", *arguments, *form).stdout.splitlines():
                    for token in number_tokens(line):
                        self.assertIn(token, numbers, line)

    def test_operation_place_and_hint_are_in_the_first_25_lines(self):
        text = self.expect(MISMATCH, "replay", self.file("wgmma"), "--contract", "accumulation:logits=fp32").stdout
        first = "\n".join(text.splitlines()[:25])
        self.assertRegex(first, r"FAIL index_logits_decode step 0 logits: reference against recorded")
        self.assertRegex(first, r"where: .*\d")
        self.assertRegex(first, r"hint: .*accumulation")

    def test_attribute_sets_two_errors_apart(self):
        arguments = ("replay", self.file("wgmma"), "--contract", "accumulation:logits=fp32", "--attribute")
        text = self.expect(MISMATCH, *arguments).stdout
        self.assertRegex(text, r"attribution: implementation error .* and format error .* of the gate;")
        self.assertRegex(text, r"reproduce: .* --attribute")
        report = self.report(MISMATCH, *arguments)
        line = next(l for l in report["operations"] if l["verdict"] == "fail")
        self.assertGreater(line["attribution"]["implementation"], line["attribution"]["format"])
        self.assertEqual(len(line["attribution"]["points"]), 4)
        report = self.report(MISMATCH, *arguments[:-1])
        self.assertTrue(all(l["attribution"] is None for l in report["operations"]))

    def test_what_is_not_finite_is_counted_by_kind_with_its_place(self):
        text = self.expect(MISMATCH, "replay", self.file("not_finite")).stdout
        self.assertIn("not finite: NaN got 0, want 1, first at [0, 0]", text)
        report = self.report(MISMATCH, "replay", self.file("not_finite"))
        line = next(l for l in report["operations"] if l["verdict"] == "fail")
        self.assertEqual([(a["kind"], a["got"], a["want"], a["apart"]) for a in line["anomalies"]], [("NaN", 0, 1, 1)])

    def test_scales_are_told_apart_from_codes(self):
        text = self.expect(MISMATCH, "replay", self.file("wrong")).stdout
        self.assertIn("parts: 1 of 5 (20 %) scales differ, 1 of them by one exponent", text)

    def test_junit_has_one_test_an_operation(self):
        for code, counts, *arguments in ((PASS, (3, 0, 0, 0), self.file("sound")), (MISMATCH, (3, 2, 0, 0), self.file("wrong")),
                                         (PASS, (3, 0, 0, 2), self.file("wrong"), *self.waived()),
                                         (KERNEL_FAILED, (6, 2, 1, 0), "-k", self.file("wrong"), self.file("unsupported"))):
            root = ElementTree.fromstring(self.expect(code, "replay", *arguments, "--format", "junit").stdout)
            self.assertEqual(tuple(int(root.get(k)) for k in ("tests", "failures", "errors", "skipped")), counts)
            self.assertEqual(len(root.findall(".//testcase")), counts[0])
            for suite in root:
                self.assertEqual(len(suite.findall("testcase")), int(suite.get("tests")))
        names = [case.get("name") for case in root[0]]
        self.assertEqual(names, ["step 0 " + name for name in ("index_cache_write", "index_cache_gather", "index_logits_decode")])
        self.assertIn("k_scale", root[0][1].find("failure").get("message"))
        self.assertIn("reproduce: dsakit replay", root[0][1].find("failure").text)
        root = ElementTree.fromstring(self.expect(MISMATCH, "compare", self.file("wrong"), self.file("sound"),
                                                  "--format", "junit").stdout)
        self.assertEqual(root.get("name"), "dsakit compare")

    def test_markdown_names_what_did_not_pass(self):
        text = self.expect(MISMATCH, "replay", self.file("wrong"), "--format", "md").stdout
        self.assertTrue(text.startswith("### dsakit replay: FAIL\n"), text)
        self.assertIn("| k\\_scale | reference/recorded | exact |", text)
        self.assertIn("index_cache_gather step 0 k_scale: reference against recorded", text)
        output = self.folder / "report.md"
        self.expect(MISMATCH, "compare", self.file("wrong"), self.file("sound"), "--format", "md", "-o", output)
        self.assertTrue(output.read_text().startswith("### dsakit compare: FAIL\n"))

    def waived(self, expires="9999-12-31"):
        """Options that waive what is wrong in wrong.h5."""
        path = self.folder / f"waivers-{expires}.json"
        path.write_text(json.dumps({"waivers": [
            {"operation": operation, "match": ".*", "reason": "known", "expires": expires}
            for operation in ("index_cache_gather", "index_logits_decode")]}))
        return "--waivers", path

    def budgets(self):
        """Options that let the one wrong scale of five and the one wrong logit of eight by."""
        return "--gate", "k_scale=exact,budget=1:0.2", "--gate", "logits=derived,budget=1:0.125"

    def test_a_waived_failure_is_0_with_a_notice_and_never_a_pass(self):
        done = self.expect(PASS, "replay", self.file("wrong"), *self.waived())
        self.assertIn("verdict: waived", done.stdout)
        self.assertRegex(done.stderr, r"^dsakit: 4 failures are waived, not passed\n$")
        report = self.report(PASS, "replay", self.file("wrong"), *self.waived())
        self.assertEqual((report["verdict"], report["summary"]["waived"]), ("waived", 4))
        self.assertTrue(all(l["reason"] == "until 9999-12-31: known" for l in report["operations"]
                            if l["verdict"] == "waived"))
        self.expect(PASS, "compare", self.file("wrong"), self.file("sound"), *self.waived())

    def test_an_expired_waiver_is_a_failure_that_says_so(self):
        done = self.expect(MISMATCH, "replay", self.file("wrong"), *self.waived("2000-01-01"))
        self.assertIn("reason: the waiver expired on 2000-01-01: known", done.stdout)
        self.assertNotIn("waived", done.stderr)

    def test_waivers_that_are_bad_are_2_and_those_that_meet_no_failure_warn(self):
        self.expect_bad("replay", self.file("sound"), "--waivers", self.folder / "none.json", says=["none.json"])
        bad = self.folder / "bad.json"
        bad.write_text('{"waivers": [{"operation": "topk", "match": ".", "reason": "r", "expires": "soon"}]}')
        self.expect_bad("replay", self.file("sound"), "--waivers", bad, says=["bad.json", "soon", "YYYY-MM-DD"])
        done = self.expect(PASS, "replay", self.file("sound"), *self.waived())
        self.assertIn("met no failure: it can go", " ".join(done.stdout.split()))

    def test_gates_of_the_command_line_come_first(self):
        wrong = self.file("wrong")
        done = self.expect(PASS, "replay", wrong, *self.budgets())
        self.assertIn("verdict: pass", done.stdout)
        report = self.report(MISMATCH, "replay", self.file("wgmma"), "--gate", "index_logits_decode/logits=exact")
        line = next(l for l in report["operations"] if l["verdict"] == "fail")
        self.assertEqual((line["gate"], line["why"]), ("exact", "given on the command line"))
        self.assertIn("--gate index_logits_decode/logits=exact", line["reproduce"])
        self.expect(MISMATCH, *shlex.split(line["reproduce"])[1:])
        done = self.expect(PASS, "replay", self.file("sound"), "--gate", "nothing=exact")
        self.assertIn('--gate: "nothing" matched no tensor', done.stdout)
        for gate in ("logits", "logits=loose", "logits=exact,budget=1"):
            self.expect_bad("replay", wrong, "--gate", gate, says=[f"--gate '{gate}'"])

    def test_text_fits_a_screen(self):
        for code, *arguments in ((MISMATCH, self.file("wrong")), (MISMATCH, "-k", self.file("wrong"), self.file("sound"))):
            lines = self.expect(code, "replay", *arguments).stdout.splitlines()
            self.assertLessEqual(len(lines), 40)
            for line in lines:
                if "reproduce:" not in line and str(self.folder) not in line:
                    self.assertLessEqual(len(line), 100, line)

    def test_colour_only_on_a_terminal(self):
        self.assertNotIn("\033", self.expect(MISMATCH, "replay", self.file("wrong")).stdout)
        primary, secondary = pty.openpty()
        subprocess.run([DSAKIT, "replay", self.file("wrong")], stdout=secondary, timeout=60)
        os.close(secondary)
        self.assertIn(b"\033[31mFAIL", os.read(primary, 65536))
        os.close(primary)

    def test_progress_only_on_a_terminal(self):
        sound = self.file("sound")
        for arguments in (("replay", sound), ("compare", sound, sound), ("bisect", sound),
                          ("bisect", sound, "--against", sound)):
            self.assertEqual(self.expect(PASS, *arguments).stderr, "")
            seen = self.on_a_terminal(PASS, *arguments)
            self.assertRegex(seen, r"\[#* *\] +\d+ % ETA ")
            self.assertIn("index_logits_decode", seen)
            self.assertTrue(seen.endswith("\r\033[K"), "the bar is wiped")
            for line in re.split(r"\r\033\[K|\r\n", seen):
                self.assertLess(len(line), 80)

    def test_the_report_goes_to_a_file_whole_or_not_at_all(self):
        output = self.folder / "out.json"
        done = self.expect(PASS, "replay", self.file("sound"), "--format", "json", "-o", output)
        self.assertEqual(done.stdout, "")
        self.assertEqual(json.loads(output.read_text())["verdict"], "pass")
        self.expect_bad("replay", self.file("sound"), "-o", self.folder / "no" / "such" / "out.json",
                        says=["out.json"])
        with open("/dev/full", "w") as full:
            done = subprocess.run([DSAKIT, "replay", self.file("sound")], stdout=full,
                                  stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(done.returncode, BAD_INPUT)
        self.assertIn("standard output", done.stderr)

    def test_the_reproduce_command_reproduces(self):
        report = self.report(MISMATCH, "replay", self.file("wgmma"), "--contract", "accumulation:logits=fp32",
                             "--host-arch", "gfx950", "--host-schedule", 3, "--lds-pattern", 17)
        line = next(l for l in report["operations"] if l["verdict"] == "fail")
        self.assertIn("accumulation", line["hint"])
        command = shlex.split(line["reproduce"])
        self.assertEqual(command[:2], ["dsakit", "replay"])
        again = self.report(MISMATCH, *command[1:])
        self.assertEqual(again["operations"][-1]["got_hex"], report["operations"][-1]["got_hex"])
        self.assertEqual({l["operation"] for l in again["operations"]}, {"index_logits_decode"})

    def test_an_override_is_printed_with_the_recorded_value(self):
        done = self.expect(MISMATCH, "replay", self.file("wgmma"), "--contract", "accumulation:logits=fp32")
        self.assertIn("accumulation:logits=fp32 (recorded: sm90_wgmma_fp8)", done.stdout)
        report = self.report(MISMATCH, "replay", self.file("wgmma"), "--contract", "accumulation:logits=fp32")
        self.assertEqual(report["contract"]["accumulation:logits"], "fp32")
        self.assertEqual(report["files"][0]["contract_recorded"], {"accumulation:logits": "sm90_wgmma_fp8"})

    def test_settings_are_recorded_and_the_host_name_is_not(self):
        text = self.expect(PASS, "replay", self.file("sound"), "--format", "json",
                           env={"DSAKIT_HOST_SCHEDULE": "5"}).stdout
        self.assertEqual(json.loads(text)["environment"]["variables"]["DSAKIT_HOST_SCHEDULE"], "5")
        self.assertNotIn(f'"{socket.gethostname()}"', text)

    def test_own_rules_take_the_place_of_the_built_in_ones(self):
        rules = self.folder / "rules.json"
        rules.write_text(json.dumps({"operation": "index_logits_decode", "rules": [
            {"match": "logits", "gate": "exact", "why": "stricter"},
            {"match": "nothing", "gate": "exact", "why": "unused"}]}))
        done = self.expect(MISMATCH, "replay", self.file("wgmma"), "--rules", rules)
        self.assertIn('warning:', done.stdout)
        rules.write_text(json.dumps({"operation": "index_logits_decode", "rules": [
            {"match": "nothing", "gate": "exact", "why": "unused"}]}))
        self.expect_bad("replay", self.file("wgmma"), "--rules", rules, says=["no rule matches", "logits"])

    def test_host_lanes_are_called_a_model(self):
        self.assertIn("no AMD hardware", self.expect(PASS, "replay", self.file("sound")).stdout)

    def test_help_states_defaults_units_and_exit_codes(self):
        text = self.expect(PASS, "replay", "--help").stdout
        for word in ("host", "gfx942", "microseconds", "130", "77"):
            self.assertIn(word, text)
        self.assertIn("77", self.expect(PASS, "--help").stdout)


class Record(CliTest):
    CONFIG = {
        "hidden_size": 96, "num_attention_heads": 3, "q_lora_rank": 64, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-5, "mla_use_nope": True,
        "mla_use_output_gate": True, "max_position_embeddings": 65536,
        "dsa_config": {"index_num_heads": 16, "index_head_dim": 128, "index_topk": 24,
                       "index_k_norm_type": "layernorm"}}

    def setUp(self):
        super().setUp()
        self.config = self.write_config(self.folder)

    @classmethod
    def write_config(cls, folder):
        config = folder / "config.json"
        config.write_text(json.dumps(cls.CONFIG))
        return config

    def arguments(self, name, requests="prefill:40,decode:2x70+2"):
        return ["record", "--config", self.config, "--requests", requests, "--seed", 7, "-o", self.file(name)]

    def test_the_same_seed_gives_the_same_bytes_which_replay(self):
        self.expect(PASS, *self.arguments("once"))
        done = self.expect(PASS, *self.arguments("again"))
        self.assertEqual(done.stderr, "")  # a progress bar only on a terminal
        self.assertEqual(self.file("once").read_bytes(), self.file("again").read_bytes())
        self.expect(PASS, "replay", self.file("once"))
        told = self.expect(PASS, "info", self.file("once")).stdout
        self.assertNotIn(str(self.folder), told.replace(str(self.file("once")), ""))

    def test_a_rank_of_context_parallelism_replays_fed_and_chained(self):
        self.expect(PASS, *self.arguments("rank"), "--dcp", 4, "--dcp-interleave", 16)
        for mode in ("fed", "chained"):
            done = self.expect(PASS, "replay", "--mode", mode, "--format", "json", self.file("rank"))
            operations = {line["operation"] for line in json.loads(done.stdout)["operations"]}
            self.assertLessEqual({"topk", "dcp_topk_merge", "topk_slots", "dcp_attention_merge"}, operations)
        told = self.expect(PASS, "info", self.file("rank")).stdout
        self.assertIn("dcp_interleave=16 dcp_world=4", told)
        self.assertIn(b"--dcp 4 --dcp-interleave 16", self.file("rank").read_bytes())

    def test_a_terminal_sees_progress(self):
        self.assertIn("attn_latent", self.on_a_terminal(PASS, *self.arguments("x")))

    def test_a_killed_or_interrupted_run_leaves_nothing_under_the_final_name(self):
        for name, number, code in (("killed", signal.SIGKILL, -signal.SIGKILL),
                                   ("stopped", signal.SIGINT, INTERRUPTED),
                                   ("ended", signal.SIGTERM, -signal.SIGTERM)):
            process = subprocess.Popen([DSAKIT, *map(str, self.arguments(name, "decode:8x16384"))],
                                       stderr=subprocess.PIPE)
            begun = lambda: any(name in path.name for path in self.folder.iterdir())
            while process.poll() is None and not begun():
                time.sleep(0.01)
            process.send_signal(number)
            self.assertEqual(process.wait(timeout=60), code, process.communicate())
            self.assertFalse(self.file(name).exists())
            if number != signal.SIGKILL:
                self.assertFalse(begun())

    def test_refusals_are_one_line(self):
        self.expect_bad(*self.arguments("x", "verify:3"), says=["--requests: found 'verify:3', want prefill:"])
        self.expect_bad(*self.arguments("x"), "--distribution", "uniform", says=["found 'uniform', want normal"])
        self.expect_bad(*self.arguments("x", "prefill:65537"), says=["a request of 65537 tokens, want at most the model's 65536"])
        self.expect_bad(*self.arguments("x"), "--weights", self.folder / "none", says=["no .safetensors file"])
        self.expect_bad(*self.arguments("x"), "--layer", 3, says=["--weights"])
        self.expect_bad(*self.arguments("x"), "--dcp-interleave", 2, says=["--dcp"])
        self.expect_bad(*self.arguments("x"), "--dcp", 0, says=["decode_context_parallel_size: found 0"])
        self.config.write_text(json.dumps({**self.CONFIG, "rope_scaling": {"rope_type": "yarn"}}))
        self.expect_bad(*self.arguments("x"), says=["rope_scaling: factor: found none"])
        for self.config, says in (("kimi-k3", "dsa_config: found none"), ("deepseek-v3.2", "no rotary embedding")):
            done = self.expect(KERNEL_FAILED, *self.arguments("x"))
            self.assertIn(says, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)
        for self.config, says in (("/dev/zero", "special file"), (self.folder, "directory")):
            self.expect_bad(*self.arguments("x"), says=[says, "or a preset: kimi-k3.1"])
        self.assertFalse(self.file("x").exists())


class Golden(CliTest):
    def test_propose_accept_verify(self):
        golden = self.folder / "golden"
        (golden / "data").mkdir(parents=True)
        (golden / "manifest.json").write_text('{"schema": "dsakit-golden/1", "entries": []}')
        folder = ("--folder", golden)
        taken = ("accept", "--reason", "a test", "--reviewer", "me", "--what", "x", "--made-by", "y")
        self.expect(PASS, "golden", *folder, "propose", "--id", "one", self.file("sound"))
        self.expect(PASS, "golden", *folder, *taken, "--id", "one")
        self.expect(PASS, "golden", *folder, "verify")
        done = self.expect(PASS, "golden", *folder, "propose", "--id", "one", self.file("wrong"))
        self.assertIn("elements change", done.stdout)
        before = (golden / "manifest.json").read_text()
        done = self.expect(MISMATCH, "golden", *folder, *taken, "--id", "one")
        self.assertIn("one.h5: fail, want pass", done.stderr)
        self.assertEqual((golden / "manifest.json").read_text(), before)
        self.expect(PASS, "golden", *folder, "verify")
        shutil.copy(self.file("wgmma"), golden / "data/one.h5")
        self.expect_bad("golden", *folder, "verify", says=["data/one.h5", "sha256"])
        self.expect_bad("golden", "--folder", self.folder, "verify", says=["manifest.json"])


class Compare(CliTest):
    def test_a_recording_equals_itself(self):
        done = self.expect(PASS, "compare", self.file("sound"), self.file("sound"))
        self.assertIn("verdict: pass (4 comparisons", done.stdout)

    def test_a_changed_output_is_1(self):
        done = self.expect(MISMATCH, "compare", self.file("sound"), self.file("wrong"))
        self.assertRegex(done.stdout, r"FAIL index_cache_gather step 0 k_scale")
        self.assertRegex(done.stdout, r"FAIL too: index_logits_decode")

    def test_the_bounds_of_both_producers_add(self):
        report = self.report(PASS, "compare", self.file("sound"), self.file("wgmma"))
        line = next(l for l in report["operations"] if l["tensor"] == "logits")
        self.assertEqual((line["gate"], line["subject"], line["against"]), ("derived", "recorded", "recorded"))

    def test_an_output_on_one_side_is_2_unless_allowed(self):
        one, other = self.file("gather_only"), self.file("sound")
        self.expect_bad("compare", one, other, says=["index_cache_write", "--allow-missing"])
        self.expect_bad("compare", other, one, says=["index_cache_write", "--allow-missing"])
        self.expect(PASS, "compare", one, other, "--allow-missing")

    def test_other_contracts_and_other_inputs_are_2(self):
        self.expect_bad("compare", self.file("sound"), self.file("other_contract"),
                        says=["sound.h5", "other_contract.h5", "index_k_floor", "1e-4", "2e-4"])

    def test_every_input_that_differs_is_told_in_every_format(self):
        arguments = ("compare", self.file("other_input"), self.file("sound"))
        done = self.expect(BAD_INPUT, *arguments)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for name, at in (("block_table", "[0, 1]"), ("index_weights_folded", "[1, 1]")):
            self.assertIn(f"/steps/0/index_logits_decode/inputs/{name} {at}: found 0x", done.stderr)
            self.assertIn(f"inputs/{name}", done.stdout)
        self.assertIn("reason: inputs differ: found 0x", done.stdout)
        self.assertIn("3 passed", done.stdout, "other operations are compared")
        report = self.report(BAD_INPUT, *arguments)
        self.assertEqual([line["tensor"] for line in report["operations"] if line["verdict"] == "error"],
                         ["inputs/block_table", "inputs/index_weights_folded"])
        self.assertNotIn("logits", [line["tensor"] for line in report["operations"]])
        markdown = self.expect(BAD_INPUT, *arguments, "--format", "md").stdout
        self.assertIn("| inputs/block\\_table | recorded/recorded |", markdown)
        self.assertIn("error: inputs differ: found 0x", markdown)
        junit = self.expect(BAD_INPUT, *arguments, "--format", "junit").stdout
        self.assertIn("inputs differ: found 0x", junit)

    def test_a_program_is_told_why_a_file_is_bad(self):
        for form, says in (("md", "- error: "), ("json", '"reason": "'), ("junit", '<error type="error"')):
            done = self.expect(BAD_INPUT, "replay", self.file("bad_slot"), "--format", form)
            self.assertIn(says, done.stdout)
            self.assertIn("slot_mapping", done.stdout.replace("\\", ""))


class CompareTensors(CliTest):
    """.safetensors files, mixed pairs and folders."""

    def write(self, name, tensors):
        """tensors: name -> (dtype, shape, bytes)"""
        header, payload = {}, b""
        for tensor, (dtype, shape, data) in tensors.items():
            header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [len(payload), len(payload) + len(data)]}
            payload += data
        text = json.dumps(header).encode()
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(len(text).to_bytes(8, "little") + text + payload)
        return path

    def floats(self, name, **tensors):
        return self.write(name, {key: ("F32", [len(values)], struct.pack(f"<{len(values)}f", *values))
                                 for key, values in tensors.items()})

    def test_tensor_files_are_0_1_or_77(self):
        a = self.floats("a.safetensors", x=[1, 2], y=[3])
        b = self.floats("b.safetensors", x=[1, 2.5], y=[3])
        c = self.floats("c.safetensors", z=[1])
        self.expect(PASS, "compare", a, a)
        done = self.expect(MISMATCH, "compare", b, a)
        self.assertIn("FAIL tensor x: recorded against recorded", done.stdout)
        self.assertIn("first [1]: got 2.5 (0x40200000), want 2 (0x40000000)", done.stdout)
        report = self.report(MISMATCH, "compare", b, a)
        line = next(line for line in report["operations"] if line["verdict"] == "fail")
        self.assertEqual((line["operation"], line["tensor"], line["first_at"]), ("tensors", "x", [1]))
        self.assertEqual(line["reproduce"], f"dsakit compare {b} {a}")
        self.expect(NOTHING_RAN, "compare", a, c, "--allow-missing")

    def test_what_cannot_be_compared_is_2(self):
        a = self.floats("a.safetensors", x=[1, 2], y=[3])
        b = self.floats("b.safetensors", x=[1, 2])
        c = self.floats("c.safetensors", x=[1])
        self.expect_bad("compare", a, b, says=["b.safetensors: has no tensor 'y'", "--allow-missing"])
        self.expect(PASS, "compare", a, b, "--allow-missing")
        self.expect_bad("compare", b, c, says=["tensor 'x': found float32 [2] and float32 [1]"])
        self.expect_bad("compare", a, a, "--map", "z=x", says=["--map: found 'z=x'", "matches no tensor name"])
        self.expect_bad("compare", a, a, "--map", "y=x", says=["found 'x' and 'y'"])
        self.expect_bad("compare", a, a, "--map", "y", says=["want REGEX=REPLACEMENT"])
        self.expect_bad("compare", a, a, "--map", "(=x", says=["want a regular expression"])
        other = self.write("d.safetensors", {"x": ("F4", [2], b"\0")})
        self.expect_bad("compare", other, other, says=["d.safetensors: 'x': found dtype", "F4", "want BF16"])

    def test_a_gate_gives_tensors_a_budget(self):
        a = self.floats("a.safetensors", x=[1, 2, 3, 4])
        b = self.floats("b.safetensors", x=[1, 2.5, 3, 4])
        self.expect(MISMATCH, "compare", b, a)
        self.expect(PASS, "compare", b, a, "--gate", "tensors/x=exact,budget=1:0.25")
        self.expect(MISMATCH, "compare", b, a, "--gate", "x=exact,budget=1:0.25,l2=0.01")
        self.expect_bad("compare", b, a, "--gate", "x=derived", says=["found gate 'derived', want exact"])

    def test_a_map_names_the_tensors_of_want(self):
        a = self.floats("a.safetensors", **{"x.0": [1], "y.0": [2]})
        b = self.floats("b.safetensors", **{"model.x": [1], "model.y": [2]})
        self.expect(PASS, "compare", a, b, "--map", r"^model\.(.)$=$1.0")
        self.expect(PASS, "compare", a, b, "--map", r"^model\.=", "--map", "$=.0")

    def test_a_recording_meets_its_export(self):
        dump = self.folder / "dump.safetensors"
        self.expect(PASS, "export", self.file("sound"), "-o", dump)
        self.expect(PASS, "compare", self.file("sound"), dump)
        done = self.expect(MISMATCH, "compare", dump, self.file("wrong"))
        self.assertIn("FAIL tensor steps.0.index_cache_gather.outputs.k_scale", done.stdout)

    def test_folders(self):
        for side in ("a", "b"):
            (self.folder / side).mkdir()
            shutil.copy(self.file("sound"), self.folder / side / "one.h5")
            self.floats(f"{side}/two.safetensors", x=[1])
        a, b = self.folder / "a", self.folder / "b"
        self.assertIn("2 files", self.expect(PASS, "compare", a, b).stdout)
        self.floats("b/two.safetensors", x=[2])
        self.assertIn("FAIL tensor x", self.expect(MISMATCH, "compare", a, b).stdout)
        self.floats("b/two.safetensors", y=[2])
        done = self.expect(BAD_INPUT, "compare", a, b)
        self.assertRegex(done.stdout, r"one.h5 .*pass")
        self.assertIn("has no tensor 'x'", done.stderr)
        (b / "two.safetensors").unlink()
        self.expect_bad("compare", a, b, says=["b: has no file two.safetensors", "--allow-missing"])
        self.report(PASS, "compare", a, b, "--allow-missing")
        self.expect_bad("compare", a, self.file("sound"), says=["found a folder and a file"])

    def test_many_tensors_fit_a_screen(self):
        same = {f"t{i:03}": [i] for i in range(300)}
        a = self.floats("a.safetensors", **same)
        b = self.floats("b.safetensors", **{name: [-1] for name in same} | {"t007": [7]})
        done = self.expect(PASS, "compare", a, a)
        self.assertLessEqual(len(done.stdout.splitlines()), 25)
        self.assertIn("300 passed", done.stdout)
        self.assertIn("t123", self.expect(PASS, "compare", a, a, "-v").stdout)
        done = self.expect(MISMATCH, "compare", a, b)
        self.assertLessEqual(len(done.stdout.splitlines()), 40)
        self.assertIn("FAIL tensor t000", done.stdout)

    def test_a_large_pair_takes_little_memory(self):
        paths = []
        for name in ("a", "b"):
            size = 1 << 29  # all a hole, but for its last element
            text = json.dumps({"x": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
            paths.append(self.folder / f"{name}.safetensors")
            with open(paths[-1], "wb") as file:
                file.write(len(text).to_bytes(8, "little") + text)
                file.truncate(8 + len(text) + size)
        with open(paths[0], "r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(struct.pack("<f", 1))
        process = subprocess.Popen([DSAKIT, "compare", *paths], stdout=subprocess.PIPE, text=True)
        text = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        self.assertEqual(process.returncode, MISMATCH, text)
        self.assertIn("first [134217727]: got 1 (0x3f800000), want 0", text)
        self.assertLess(used.ru_maxrss, 256 << 10, "KiB")


class Export(CliTest):
    def arguments(self, output, *more):
        return ("export", self.file("sound"), "--operation", "index_cache_gather", "--tensor", "k_scale", "-o",
                self.folder / output, *more)

    def test_one_tensor_in_each_format(self):
        done = self.expect(PASS, *self.arguments("x.npy"))
        self.assertRegex(done.stdout, r"wrote .*x\.npy: float32 \[\d+\]\n")
        data = (self.folder / "x.npy").read_bytes()
        self.assertEqual(data[:8], b"\x93NUMPY\1\0")
        end = 10 + int.from_bytes(data[8:10], "little")
        header = ast.literal_eval(data[10:end].decode())
        values = struct.unpack(f"<{header['shape'][0]}f", data[end:])
        self.assertEqual(end % 64, 0)
        self.assertEqual((header["descr"], header["fortran_order"]), ("<f4", False))
        self.expect(PASS, *self.arguments("x.csv", "--step", 0, "--slice", "1:-1"))
        rows = (self.folder / "x.csv").read_text().splitlines()
        self.assertRegex(rows[0], r"^\w+,value$")
        self.assertEqual([(int(i), float(v)) for i, v in (row.split(",") for row in rows[1:])],
                         list(enumerate(values))[1:-1])
        self.expect(PASS, *self.arguments("x.safetensors"))
        self.expect(PASS, "compare", self.folder / "x.safetensors", self.folder / "x.safetensors")

    def test_refusals_are_one_line_and_leave_nothing(self):
        self.expect_bad(*self.arguments("x.npy", "--slice", "99"), says=["axis 0", "of extent", "found '99'"])
        self.expect_bad(*self.arguments("x.txt"), says=["x.txt", ".npy, .safetensors or .csv"])
        self.expect_bad(*self.arguments("x.npy", "--step", 5), says=["in step 5", "index_cache_gather (step 0)"])
        self.expect_bad("export", self.file("sound"), "-o", self.folder / "x.npy", says=["--operation and --tensor"])
        self.expect_bad("export", self.file("sound"), "--operation", "topk", "-o", self.folder / "x.npy",
                        says=["--tensor"])
        self.expect_bad("export", self.file("sound"), "-o", self.file("sound"), says=["found the input"])
        self.assertEqual([p.name for p in self.folder.iterdir() if p.name.startswith(("x", ".x"))], [])


class Doctor(CliTest):
    def test_it_lists_devices_and_code_objects(self):
        text = self.expect(PASS, "doctor").stdout
        for word in ("gfx942", "gfx950", "hip", "cuda", "code objects"):
            self.assertIn(word, text)
        self.expect(PASS, "doctor", "--device", "host")


class Bisect(CliTest):
    def bisection(self, code, *arguments):
        found = json.loads(self.expect(code, "bisect", *arguments, "--format", "json").stdout)
        jsonschema.validate(found, json.loads(pathlib.Path(SCHEMA).with_name("bisect.schema.json").read_text()),
                            jsonschema.Draft202012Validator)
        return found

    def test_nothing_wrong_is_0(self):
        self.assertIn("verdict: pass (3 operations)", self.expect(PASS, "bisect", self.file("sound")).stdout)
        self.assertIsNone(self.bisection(PASS, self.file("sound"))["first"])

    def test_the_first_wrong_operation_is_1_within_25_lines(self):
        done = self.expect(MISMATCH, "bisect", self.file("wrong"))
        self.assertLessEqual(len(done.stdout.splitlines()), 25)
        for text in ("first wrong operation: index_cache_gather, step 0: k_scale", "rows 3 (1 of 5)", "first [3]:",
                     "wrong as well, of its recorded inputs: index_logits_decode", "next: dsakit shrink"):
            self.assertIn(text, done.stdout)
        found = self.bisection(MISMATCH, self.file("wrong"))
        self.assertEqual(found["first"]["operation"], "index_cache_gather")
        self.assertEqual(found["rows"], {"axis": "rows", "first": 3, "last": 3, "wrong": 1, "of": 5, "complete": True})

    def test_against_another_recording(self):
        self.expect(PASS, "bisect", self.file("sound"), "--against", self.file("sound"))
        done = self.expect(MISMATCH, "bisect", self.file("wrong"), "--against", self.file("sound"))
        self.assertIn("first tensor that parts: index_cache_gather, step 0: k_scale, by itself", done.stdout)
        self.assertRegex(done.stdout, r"wrong.h5 is WRONG, .*sound.h5 is right")
        found = self.bisection(MISMATCH, self.file("other_input"), "--against", self.file("sound"))
        self.assertEqual([(p["tensor"], p["cause"]) for p in found["partings"]],
                         [("block_table", "given"), ("index_weights_folded", "given")])
        done = self.expect(MISMATCH, "bisect", self.file("stale_input"), "--against", self.file("fresh_input"))
        self.assertRegex(done.stdout, r"first tensor that parts: index_logits_decode, step 0: index_cache, inputs differ: "
                                      r"not what index_cache_write made in .*stale_input.h5")
        found = self.bisection(MISMATCH, self.file("stale_input"), "--against", self.file("fresh_input"))
        self.assertEqual([(p["cause"], p["maker"]) for p in found["partings"]], [("stale", "index_cache_write")])
        self.expect_bad("bisect", self.file("sound"), "--against", self.file("other_contract"),
                        says=["other_contract.h5", "index_k_floor", "1e-4", "2e-4"])

    def test_every_number_of_the_text_is_in_the_json(self):
        for arguments in ([self.file("wrong")], [self.file("wrong"), "--against", self.file("sound")],
                          [self.file("other_input"), "--against", self.file("sound")],
                          [self.file("stale_input"), "--against", self.file("fresh_input")]):
            numbers = set()
            collect(self.bisection(MISMATCH, *arguments), numbers)
            for line in self.expect(MISMATCH, "bisect", *arguments).stdout.splitlines():
                for token in number_tokens(line):
                    self.assertIn(token, numbers, line)

    def test_junit_and_markdown(self):
        for arguments in ([self.file("wrong")], [self.file("wrong"), "--against", self.file("sound")]):
            root = ElementTree.fromstring(self.expect(MISMATCH, "bisect", *arguments, "--format", "junit").stdout)
            self.assertEqual([case.get("name") for case in root.iter("testcase")],
                             ["step 0 index_cache_write", "step 0 index_cache_gather", "step 0 index_logits_decode"])
            self.assertEqual(root.get("failures"), "2")
            markdown = self.expect(MISMATCH, "bisect", *arguments, "--format", "md").stdout
            self.assertIn("### dsakit bisect: FAIL", markdown)
            self.assertRegex(markdown, r"(?m)^reproduce: dsakit replay")
            numbers = set()
            collect(self.bisection(MISMATCH, *arguments), numbers)
            for line in markdown.splitlines():
                for token in number_tokens(line.replace("### ", "")):
                    self.assertIn(token, numbers, line)

    def test_reproduce_repeats_the_rules(self):
        gate = "k_scale=exact,budget=1:0.5"
        done = self.expect(MISMATCH, "bisect", self.file("wrong"), "--gate", gate)
        self.assertIn("first wrong operation: index_logits_decode", done.stdout)
        for command in ("reproduce", "next"):
            words = shlex.split(re.search(rf"^{command}: (.*)$", done.stdout, re.M).group(1))
            self.assertEqual(words[words.index("--gate") + 1], gate)
        words = shlex.split(re.search(r"^reproduce: (.*)$", done.stdout, re.M).group(1))
        self.expect(MISMATCH, *words[1:])
        words = shlex.split(re.search(r"^next: (.*)$", done.stdout, re.M).group(1))
        self.expect(PASS, *words[1:], cwd=self.folder)

    def test_a_waived_failure_is_0_and_said(self):
        waivers = self.folder / "waivers.json"
        waivers.write_text(json.dumps({"waivers": [
            {"operation": operation, "match": ".*", "reason": "known", "expires": "9999-12-31"}
            for operation in ("index_cache_gather", "index_logits_decode")]}))
        done = self.expect(PASS, "bisect", self.file("wrong"), "--waivers", waivers)
        self.assertIn("4 failures are waived, not passed", done.stderr)
        self.assertIn("verdict: waived", done.stdout)
        self.assertEqual(len(self.bisection(PASS, self.file("wrong"), "--waivers", waivers)["waived"]), 4)

    def test_an_interrupt_is_130_and_leaves_a_partial_report(self):
        # Right, and seconds of work for host lanes.
        attention = pathlib.Path(SCHEMA).parent.parent / "golden/data/kernel_mla_decode_h64.h5"
        output = self.folder / "bisection.json"
        process = subprocess.Popen([DSAKIT, "bisect", str(attention), "--format", "json", "-o", str(output),
                                    "--threads", "1"], stderr=subprocess.PIPE)
        time.sleep(0.5)
        self.assertIsNone(process.poll(), "ended before it could be interrupted")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=60), INTERRUPTED)
        process.communicate()
        found = json.loads(output.read_text())
        jsonschema.validate(found, json.loads(pathlib.Path(SCHEMA).with_name("bisect.schema.json").read_text()),
                            jsonschema.Draft202012Validator)
        self.assertTrue(found["partial"])

    def test_bad_input_is_2_no_device_is_77_a_refusing_kernel_is_3(self):
        self.expect_bad("bisect", self.folder / "none.h5", says=["none.h5"])
        self.expect_bad("bisect", self.file("sound"), "--contract", "page_sise=2", says=["page_sise"])
        self.expect_bad("bisect", self.file("sound"), "--against", "", says=["--against", "empty value"])
        self.expect(KERNEL_FAILED, "bisect", self.file("unsupported"))
        for device in ("hip", "cuda"):
            if dsakit("doctor", "--device", device).returncode != PASS:
                self.expect(NOTHING_RAN, "bisect", self.file("sound"), "--device", device)


class Shrink(CliTest):
    def small(self):
        return self.folder / "small.h5"

    def test_what_it_writes_fails_with_the_command_that_it_prints(self):
        done = self.expect(PASS, "shrink", self.file("wrong"), "-o", self.small(), "--operation", "index_logits_decode")
        self.assertIn("index_logits_decode step 0 logits: reference against recorded fails", done.stdout)
        self.assertIn("rows: 1 of 3", done.stdout)
        command = re.search(r"^reproduce: (.*)$", done.stdout, re.M).group(1)
        arguments = shlex.split(command)
        self.assertEqual(arguments[0], "dsakit")
        self.expect(MISMATCH, *arguments[1:])

    def test_options_are_kept(self):
        done = self.expect(PASS, "shrink", self.file("wgmma"), "-o", self.small(), "--operation", "index_logits_decode",
                           "--contract", "accumulation:logits=fp32")
        self.assertIn("--contract accumulation:logits=fp32", done.stdout)
        self.expect(MISMATCH, "replay", self.small(), "--contract", "accumulation:logits=fp32")
        self.expect(PASS, "replay", self.small())

    def test_scrambled_values(self):
        done = self.expect(PASS, "shrink", self.file("wrong"), "-o", self.small(), "--operation", "index_logits_decode",
                           "--synthesize", "--seed", "9")
        self.assertIn("values: scrambled with --seed 9", done.stdout)
        self.expect(MISMATCH, "replay", self.small())

    def test_scrambled_under_another_contract(self):
        logits = pathlib.Path(SCHEMA).parent.parent / "golden/data/kernel_logits_paged_rocm_h32_n2.h5"
        other = ["--contract", "accumulation:logits.vllm=fp32"]
        self.expect(PASS, "shrink", logits, "-o", self.small(), "--operation", "index_logits_decode", *other,
                    "--synthesize")
        self.expect(MISMATCH, "replay", self.small(), *other)
        self.expect(PASS, "replay", self.small())

    def test_nothing_fails_is_4_and_writes_nothing(self):
        done = self.expect(INCONCLUSIVE, "shrink", self.file("sound"), "-o", self.small(),
                           "--operation", "index_logits_decode")
        self.assertEqual(done.stdout, "")
        self.assertIn("nothing fails; nothing was written", done.stderr)
        self.assertFalse(self.small().exists())

    def test_bad_input_is_2(self):
        wrong = self.file("wrong")
        self.expect_bad("shrink", wrong, "-o", self.small(), says=["--operation"])
        done = self.expect(NOTHING_RAN, "shrink", wrong, "-o", self.small(), "--operation", "topk")
        self.assertIn("holds no operation topk (dsakit info lists them)", done.stderr)
        self.expect_bad("shrink", wrong, "-o", self.small(), "--operation", "nothing", says=["nothing"])
        self.expect_bad("shrink", wrong, "-o", wrong, "--operation", "index_logits_decode", says=["wrong.h5"])
        self.expect_bad("shrink", wrong, "-o", self.small(), "--operation", "index_logits_decode", "--seed", "1",
                        says=["--synthesize"])
        self.assertFalse(self.small().exists())

    def test_what_no_kernel_takes_is_3(self):
        # What was recorded is of bf16, and may differ here.
        done = self.expect(KERNEL_FAILED, "shrink", self.file("unsupported"), "-o", self.small(),
                           "--operation", "index_cache_write", "--gate", ".*=exact,budget=1000000:0.99")
        self.assertIn("fp16", done.stderr)
        self.assertFalse(self.small().exists())

    def test_no_device_is_77(self):
        for device in ("hip", "cuda"):
            if dsakit("doctor", "--device", device).returncode != PASS:
                self.expect(NOTHING_RAN, "shrink", self.file("wrong"), "-o", self.small(), "--operation",
                            "index_logits_decode", "--device", device)
        self.assertFalse(self.small().exists())

    def test_gates_and_waivers_are_obeyed_and_repeated(self):
        arguments = ("shrink", self.file("wrong"), "-o", self.small(), "--operation", "index_cache_gather")
        done = self.expect(INCONCLUSIVE, *arguments, "--gate", "k_scale=exact,budget=1:0.5")
        self.assertIn("nothing fails; nothing was written", done.stderr)
        waivers = self.folder / "waivers.json"
        waivers.write_text(json.dumps({"waivers": [{"operation": "index_cache_gather", "match": ".*",
                                                    "reason": "known", "expires": "9999-12-31"}]}))
        done = self.expect(INCONCLUSIVE, *arguments, "--waivers", waivers)
        self.assertIn("nothing fails that is not waived", done.stderr)
        done = self.expect(PASS, *arguments, "--gate", "k_scale=exact,budget=1:0.1")
        self.assertIn("--gate k_scale=exact,budget=1:0.1", done.stdout)
        words = shlex.split(re.search(r"^reproduce: (.*)$", done.stdout, re.M).group(1))
        self.expect(MISMATCH, *words[1:])

    def test_an_interrupt_is_130_and_leaves_nothing(self):
        # Right, and seconds of work for host lanes.
        attention = pathlib.Path(SCHEMA).parent.parent / "golden/data/kernel_mla_decode_h64.h5"
        arguments = ["shrink", attention, "-o", self.small(), "--operation", "sparse_attention", "--threads", "1"]
        process = subprocess.Popen([DSAKIT, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(0.5)
        self.assertIsNone(process.poll(), "ended before it could be interrupted")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=60), INTERRUPTED)
        process.communicate()
        self.assertEqual([p.name for p in self.folder.iterdir() if "small" in p.name], [])

    def test_a_folder_that_is_not_there_is_2_and_leaves_nothing(self):
        self.expect_bad("shrink", self.file("wrong"), "-o", self.folder / "none" / "small.h5",
                        "--operation", "index_logits_decode", says=["small.h5"])


def number_tokens(text):
    return [token.rstrip(".") for token in re.findall(r"(?<![\w./-])-?\d[\d.]*(?:e[+-]?\d+)?", text)]


def collect(value, numbers):
    """Every number of a report as the text may print it, those inside its strings included."""
    if isinstance(value, dict):
        for item in value.items():
            collect(list(item), numbers)
    elif isinstance(value, list):
        numbers.add(str(len(value)))
        for item in value:
            collect(item, numbers)
    elif isinstance(value, str):
        numbers.update(number_tokens(value))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        numbers.update((str(value), f"{value:.2g}", f"{value:.9g}", f"{value:.1e}"))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
