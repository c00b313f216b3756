#!/usr/bin/env python3
"""Plants each fault of tests/mutation/*.patch and expects `dsakit replay` to see it and to say what it is.

usage: run.py SOURCE_TREE WORK_FOLDER COUNT|NAME,... [cmake argument...]
COUNT of them, drawn anew each time, 0 for all; or those of these names.
usage: run.py --table|--check-table SOURCE_TREE
Prints docs/mutations.md: all faults, and where each case of tests/mutation/cases.txt is tested; or says whether the
file is that.

A patch starts with header lines:
    Operation: index_logits_decode      the operation that must be named in a failing line
    Host-arch: gfx942                   optional: only there does the fault show
    Hint: optional: what a hint of such a line must contain; none: no pattern fits, and no hint may be there
    Case: S01                           optional: the case that it expresses
    Why: what the fault is
With the fault, replay of golden/data must end with exit code 1, that operation failing and the hint; without any,
with 0. One copy of the tree, built in place, serves all patches. Faults inside the kernel folders of different
operations cannot meet: they are planted together.
"""
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys


class Fault:
    def __init__(self, path):
        text = path.read_text()
        head = dict(re.findall(r"^([A-Z][a-z-]+): (.+)$", text.split("\n--- ")[0], re.M))
        self.path, self.name = path.resolve(), path.stem
        self.operation, self.why, self.hint = head["Operation"], head["Why"], head.get("Hint", "")
        self.arch, self.case = head.get("Host-arch", "gfx942"), head.get("Case", "")
        files = re.findall(r"^\+\+\+ b/(.+)$", text, re.M)
        folders = {re.match(r"optimized/kernels/\w+/|.*", file).group() for file in files}
        # The one kernel folder that holds all of it, if there is one.
        self.kernel = folders.pop() if len(folders) == 1 and files[0].startswith("optimized/kernels/") else None


def faults_of(source):
    return [Fault(path) for path in sorted((source / "tests/mutation").glob("*.patch"))]


def together(faults):
    """Groups that are planted at once: different kernel folders and operations, one arch."""
    groups = []
    for fault in faults:
        for group in groups:
            if fault.kernel and all(
                    other.kernel and other.kernel != fault.kernel and other.operation != fault.operation and
                    other.arch == fault.arch for other in group):
                group.append(fault)
                break
        else:
            groups.append([fault])
    return groups


def run(*command):
    """Shows what the command said where it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{' '.join(map(str, command))}: exit {done.returncode}")


class Tree:
    """A copy of the sources that is built in place."""

    def __init__(self, source, work, arguments):
        """Keeps build/, and time stamps, so that nothing is built twice."""
        self.tree = work.resolve() / "tree"
        self.build = self.tree / "build" / "mutation"
        self.planted = self.tree / "build" / "planted"
        # With this, ccache knows the copies for the sources that it has already compiled.
        os.environ["CCACHE_BASEDIR"] = str(self.tree)
        self.tree.mkdir(parents=True, exist_ok=True)
        if self.planted.exists():  # a run was stopped: objects of the faulty source are newer than the sound one
            shutil.rmtree(self.build, ignore_errors=True)
            self.planted.unlink()
        for part in ("CMakeLists.txt", "cmake", "reference", "optimized", "harness", "tools", "golden", "tests", "bench"):
            target = self.tree / part
            if (source / part).is_dir():
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(source / part, target)
            else:
                shutil.copy2(source / part, target)
        run("cmake", "-S", self.tree, "-B", self.build, "-G", "Ninja", "-DDSAKIT_TESTS=OFF", "-DDSAKIT_BENCH=OFF",
            "-DDSAKIT_GFX942_COMPILER=OFF", "-DDSAKIT_GFX950_COMPILER=OFF", *arguments)

    def replay(self, arch):
        """Builds and replays: (exit code, hints of the failing lines of each operation that fails)."""
        run("cmake", "--build", self.build, "--target", "dsakit")
        done = subprocess.run([self.build / "bin/dsakit", "replay", "--device", "host", "--host-arch", arch,
                               "--keep-going", "--format", "json", self.tree / "golden/data"],
                              stdout=subprocess.PIPE, text=True, timeout=600)
        hints = {}
        for line in json.loads(done.stdout)["operations"] if done.returncode in (0, 1, 3) else []:
            if line["verdict"] == "fail":
                hints.setdefault(line["operation"], []).append(line.get("hint", ""))
        return done.returncode, hints

    def replay_with(self, faults):
        self.planted.touch()
        for fault in faults:
            run("patch", "-p1", "-d", self.tree, "-i", fault.path)
        result = self.replay(faults[0].arch)
        for fault in reversed(faults):
            run("patch", "-p1", "-R", "-d", self.tree, "-i", fault.path)
        self.planted.unlink()
        return result


def judge(fault, code, hints):
    """Empty where the fault was seen and named."""
    if code != 1 or fault.operation not in hints:
        return f"NOT SEEN: exit {code}, fails {sorted(hints)}, want 1 and {fault.operation}"
    said = [hint for hint in hints[fault.operation] if hint]
    if fault.hint == "none":
        return f"WRONG HINT: found {said}, want none" if said else ""
    if fault.hint and not any(fault.hint in hint for hint in said):
        return f"NOT NAMED: found {sorted(set(said))}, want {fault.hint!r}"
    return ""


def plant(source, work, which, arguments):
    faults = faults_of(source)
    if not faults:
        sys.exit("found no patch in tests/mutation")
    if not which.isdigit():
        by_name = {fault.name: fault for fault in faults}
        for name in which.split(","):
            if name not in by_name:
                sys.exit(f"tests/mutation/{name}.patch: no such fault")
        faults = [by_name[name] for name in which.split(",")]
    elif 0 < int(which) < len(faults):
        faults = random.sample(faults, int(which))
    tree = Tree(source, work, arguments)
    failures = 0
    for group in together(faults):
        code, hints = tree.replay_with(group)
        for fault in group:
            wrong = judge(fault, code, hints)
            failures += bool(wrong)
            print(f"{fault.name} ({fault.operation}, {fault.arch}): {wrong or 'seen: ' + fault.hint}", flush=True)
    for arch in ("gfx942", "gfx950"):
        code, hints = tree.replay(arch)
        failures += code != 0
        print(f"no fault ({arch}): exit {code}, fails {sorted(hints)}, want 0", flush=True)
    print(f"{len(faults)} faults, {failures} failures")
    return 1 if failures else 0


def tests_of_cases(source):
    """The files of tests/ that name a case: in the name of a test (S01_...) or beside it."""
    tests = {}
    for path in sorted((source / "tests").rglob("*")):
        if (path.suffix in (".cpp", ".hpp", ".py") or path.name == "CMakeLists.txt") and "mutation" not in path.parts:
            for case in re.findall(r"(?<![A-Za-z0-9])S\d\d(?![A-Za-z0-9])", path.read_text()):
                tests.setdefault(case, set()).add(path.relative_to(source / "tests").as_posix())
    return tests


def table(source):
    faults, tests = faults_of(source), tests_of_cases(source)
    lines = ["# Planted faults", "",
             "Written by `tests/mutation/run.py --table .`; a test compares. `tools/run mutants` plants each of these "
             "faults into a copy of the", "sources and replays `golden/data` on host lanes: replay must fail in that "
             "operation, and pass again without the fault. Where a hint", "stands here replay must give it; `none`: "
             "no pattern fits, and replay must give no hint; empty: not looked at.", "",
             "| fault | operation | hint | case |", "|---|---|---|---|"]
    lines += [f"| {f.name}: {f.why} | `{f.operation}` | {f.hint} | {f.case} |" for f in faults]
    lines += ["", (source / "tests/mutation/full_run.txt").read_text().strip()]
    named = sum(f.hint not in ("", "none") for f in faults)
    lines += ["", f"{len(faults)} faults, {named} with a hint. Each hint has planted faults in recordings, too, in "
              "`tests/unit/harness/*hints*_test.cpp`:", "recordings with sound checksums and wrong outputs.", "",
              "## Kinds of fault", "Faults of sparse-attention kernels that were reported in public, and what tests "
              "each kind here.", "", "| case | kind | planted | tests |", "|---|---|---|---|"]
    for line in (source / "tests/mutation/cases.txt").read_text().splitlines():
        case, kind, note = (part.strip() for part in line.split("|"))
        planted = ", ".join(f.name for f in faults if f.case == case)
        where = ", ".join(f"`{test}`" for test in sorted(tests.get(case, [])))
        lines.append(f"| {case} | {kind} | {planted} | {'; '.join(filter(None, (where, note)))} |")
        if not (planted or where or note):
            sys.exit(f"{case}: neither a fault, nor a test, nor a note")
    return "\n".join(lines) + "\n"


if sys.argv[1] == "--table":
    sys.stdout.write(table(pathlib.Path(sys.argv[2])))
elif sys.argv[1] == "--check-table":
    document = pathlib.Path(sys.argv[2]) / "docs/mutations.md"
    if document.read_text() != table(pathlib.Path(sys.argv[2])):
        sys.exit(f"{document}: is not what tests/mutation/run.py --table prints")
else:
    sys.exit(plant(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4:]))
