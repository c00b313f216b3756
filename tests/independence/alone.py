#!/usr/bin/env python3
"""Builds optimized/ in a copy of the tree that has no reference/, its core headers aside.

usage: alone.py SOURCE_TREE WORK_FOLDER LIBRARY [cmake argument...]

LIBRARY is dsakit_reference's archive: also fails where one side includes or links the other, or where
anything of optimized/ but the host's projections, which need no kernel of ours, knows Eigen.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

source, work, reference_library, *arguments = sys.argv[1:]
source = pathlib.Path(source)
tree = pathlib.Path(work).resolve() / "tree"
build = tree / "build" / "alone"

shutil.rmtree(tree / "optimized", ignore_errors=True)  # build/ stays: nothing changed, nothing built
for part in ("CMakeLists.txt", "cmake", "optimized", "reference/include/dsakit/core"):
    copy = tree / part
    copy.parent.mkdir(parents=True, exist_ok=True)
    if (source / part).is_dir():
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(source / part, copy)
    else:
        shutil.copy2(source / part, copy)

# With this, ccache knows the copies for the sources that it has already compiled.
environment = os.environ | {"CCACHE_BASEDIR": str(tree)}
for command in (["cmake", "-S", tree, "-B", build, "-G", "Ninja", *arguments],
                ["cmake", "--build", build, "--target", "dsakit_optimized"]):
    if subprocess.run(command, env=environment).returncode != 0:
        sys.exit("optimized/ does not build without reference/")

PROJECTIONS = "host_projection.cpp"
wrong = []
for folder, other in (("optimized", r"(dsakit/)?reference/|Eigen"), ("reference", r"(dsakit/)?optimized/|(device|kernels|runtime)/")):
    for path in sorted((source / folder).rglob("*")):
        if path.suffix in (".hpp", ".cpp", ".hip", ".h"):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if re.match(rf'\s*#\s*include\s*[<"]({other})', line) and not (path.name == PROJECTIONS and "<Eigen/" in line):
                    wrong.append(f"{path}:{number}: {line.strip()}")
optimized_library = next(build.rglob("libdsakit_optimized.a"))
for library, other in ((optimized_library, r"Eigen::|dsakit::reference"), (reference_library, "dsakit::optimized")):
    symbols = subprocess.run(["nm", "-AC", library], check=True, capture_output=True, text=True).stdout
    wrong += [line for line in symbols.splitlines() if re.search(other, line) and f":{PROJECTIONS}.o:" not in line]
print(*wrong, sep="\n")
sys.exit(1 if wrong else 0)
