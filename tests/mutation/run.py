#!/usr/bin/env python3
"""Plants each fault of tests/mutation/*.patch and expects `dsakit replay` to see it.

usage: run.py SOURCE_TREE WORK_FOLDER COUNT|NAME,... [cmake argument...]
COUNT of them, drawn anew each time, 0 for all; or those of these names.

A patch starts with header lines:
    Operation: index_logits_decode      the operation that must be named in a failing line
    Host-arch: gfx942                   optional: only there does the fault show
    Why: what the fault is
With the fault, replay of golden/data must end with exit code 1 and that operation failing; without any,
with 0. One copy of the tree, built in place, serves all patches.
"""
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys

source, work, which, *arguments = sys.argv[1:]
source = pathlib.Path(source)
tree = pathlib.Path(work).resolve() / "tree"
build = tree / "build" / "mutation"
planted = tree / "build" / "planted"
# With this, ccache knows the copies for the sources that it has already compiled.
os.environ["CCACHE_BASEDIR"] = str(tree)


def run(*command):
    """Shows what the command said where it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{' '.join(map(str, command))}: exit {done.returncode}")


def replay(arch):
    """Builds and replays: (exit code, operations with a failing line)."""
    run("cmake", "--build", build, "--target", "dsakit")
    done = subprocess.run([build / "bin/dsakit", "replay", "--device", "host", "--host-arch", arch, "--keep-going",
                           "--format", "json", tree / "golden/data"], stdout=subprocess.PIPE, text=True, timeout=600)
    lines = json.loads(done.stdout)["operations"] if done.returncode in (0, 1, 3) else []
    return done.returncode, sorted({line["operation"] for line in lines if line["verdict"] == "fail"})


def copy_tree():
    """Keeps build/, and time stamps, so that nothing is built twice."""
    tree.mkdir(parents=True, exist_ok=True)
    if planted.exists():  # a run was stopped: objects of the faulty source are newer than the sound one
        shutil.rmtree(build, ignore_errors=True)
        planted.unlink()
    for part in ("CMakeLists.txt", "cmake", "reference", "optimized", "harness", "tools", "golden", "tests", "bench"):
        target = tree / part
        if (source / part).is_dir():
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source / part, target)
        else:
            shutil.copy2(source / part, target)
    run("cmake", "-S", tree, "-B", build, "-G", "Ninja", "-DDSAKIT_TESTS=OFF", "-DDSAKIT_BENCH=OFF",
        "-DDSAKIT_GFX942_COMPILER=OFF", "-DDSAKIT_GFX950_COMPILER=OFF", *arguments)


def main():
    patches = sorted((source / "tests/mutation").glob("*.patch"))
    if not patches:
        sys.exit("found no patch in tests/mutation")
    if not which.isdigit():
        patches = [source / f"tests/mutation/{name}.patch" for name in which.split(",")]
        for patch in patches:
            if not patch.exists():
                sys.exit(f"{patch}: no such fault")
    elif 0 < int(which) < len(patches):
        patches = sorted(random.sample(patches, int(which)))
    copy_tree()
    failures = []
    for patch in patches:
        head = dict(re.findall(r"^([A-Z][a-z-]+): (.+)$", patch.read_text().split("\n--- ")[0], re.M))
        operation, arch = head["Operation"], head.get("Host-arch", "gfx942")
        planted.touch()
        run("patch", "-p1", "-d", tree, "-i", patch.resolve())
        code, failing = replay(arch)
        run("patch", "-p1", "-R", "-d", tree, "-i", patch.resolve())
        planted.unlink()
        seen = code == 1 and operation in failing
        verdict = "seen" if seen else f"NOT SEEN: exit {code}, fails {failing}, want 1 and {operation}"
        print(f"{patch.name}: {head['Why']} ({operation}, {arch}): {verdict}", flush=True)
        if not seen:
            failures.append(patch.name)
    for arch in ("gfx942", "gfx950"):
        code, failing = replay(arch)
        print(f"no fault ({arch}): exit {code}, fails {failing}, want 0", flush=True)
        if code != 0:
            failures.append(arch)
    sys.exit(1 if failures else 0)


main()
