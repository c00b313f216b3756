#!/usr/bin/env python3
"""The dsakit binary from outside.

usage: cli_test.py DSAKIT MAKE_RECORDINGS SCHEMA [unittest argument...]
"""
import json
import os
import pathlib
import pty
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import jsonschema

DSAKIT, MAKE_RECORDINGS, SCHEMA = map(os.path.abspath, sys.argv[1:4])
PASS, MISMATCH, BAD_INPUT, KERNEL_FAILED, NOTHING_RAN, INTERRUPTED = 0, 1, 2, 3, 77, 130


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
        self.expect_bad("replay", sound, "--operation", "layer", says=["layer", "index_cache_write"])
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

    def test_an_interrupt_is_130_and_leaves_nothing(self):
        output = self.folder / "report.json"
        many = self.folder / "many"
        many.mkdir()
        for i in range(3000):
            os.link(self.file("sound"), many / f"{i}.h5")
        process = subprocess.Popen([DSAKIT, "replay", many, "-o", output, "--format", "json"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(0.5)
        self.assertIsNone(process.poll(), "ended before it could be interrupted")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=60), INTERRUPTED)
        process.communicate()
        self.assertEqual([p.name for p in self.folder.iterdir() if "report" in p.name], [])

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
                                 (MISMATCH, "-k", self.file("sound"), self.file("wrong"), self.file("wgmma"))):
            text = self.expect(code, "replay", *arguments).stdout
            numbers = set()
            collect(self.report(code, "replay", *arguments), numbers)
            for line in text.splitlines():
                line = re.sub(r"[\d.]+ (us|ms|s)\b", "", line)  # times differ from run to run
                for token in number_tokens(line):
                    self.assertIn(token, numbers, line)

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
        self.config = self.folder / "config.json"
        self.config.write_text(json.dumps(self.CONFIG))

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

    def test_a_terminal_sees_progress(self):
        leader, follower = pty.openpty()
        process = subprocess.Popen([DSAKIT, *map(str, self.arguments("x"))], stderr=follower,
                                   stdout=subprocess.DEVNULL)
        os.close(follower)
        seen = ""
        try:
            while block := os.read(leader, 1 << 16):
                seen += block.decode()
        except OSError:  # how a pty says that the other side is closed
            pass
        os.close(leader)
        self.assertEqual(process.wait(timeout=60), PASS)
        self.assertIn("attn_latent", seen)

    def test_a_killed_or_interrupted_run_leaves_nothing_under_the_final_name(self):
        for name, number, code in (("killed", signal.SIGKILL, -signal.SIGKILL),
                                   ("stopped", signal.SIGINT, INTERRUPTED)):
            process = subprocess.Popen([DSAKIT, *map(str, self.arguments(name, "decode:8x16384"))],
                                       stderr=subprocess.PIPE)
            begun = lambda: any(name in path.name for path in self.folder.iterdir())
            while process.poll() is None and not begun():
                time.sleep(0.01)
            process.send_signal(number)
            self.assertEqual(process.wait(timeout=60), code, process.communicate())
            self.assertFalse(self.file(name).exists())
            if number == signal.SIGINT:
                self.assertFalse(begun())

    def test_refusals_are_one_line(self):
        self.expect_bad(*self.arguments("x", "verify:3"), says=["--requests: found 'verify:3', want prefill:"])
        self.expect_bad(*self.arguments("x"), "--distribution", "uniform", says=["found 'uniform', want normal"])
        self.expect_bad(*self.arguments("x", "prefill:65537"), says=["a request of 65537 tokens, want at most the model's 65536"])
        self.expect_bad(*self.arguments("x"), "--weights", self.folder / "none", says=["no .safetensors file"])
        self.expect_bad(*self.arguments("x"), "--layer", 3, says=["--weights"])
        self.config.write_text(json.dumps({**self.CONFIG, "rope_scaling": {"rope_type": "yarn"}}))
        self.expect_bad(*self.arguments("x"), says=["rope_scaling: factor: found none"])
        self.config = "kimi-k3"
        self.expect_bad(*self.arguments("x"), says=["dsa_config: found none"])
        self.config = "deepseek-v3.2"
        done = self.expect(KERNEL_FAILED, *self.arguments("x"))
        self.assertIn("no rotary embedding", done.stderr)
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
        self.expect_bad("compare", self.file("sound"), self.file("other_input"),
                        says=["index_weights_folded", "[1, 1]"])


class Doctor(CliTest):
    def test_it_lists_devices_and_code_objects(self):
        text = self.expect(PASS, "doctor").stdout
        for word in ("gfx942", "gfx950", "hip", "cuda", "code objects"):
            self.assertIn(word, text)
        self.expect(PASS, "doctor", "--device", "host")


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
