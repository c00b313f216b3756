#!/usr/bin/env python3
"""The compiler that schedules our kernels counts a matrix instruction's cycles as AMD's calculator does.

usage: matrix_cycles.py LLVM_MCA

llvm-mca's reciprocal throughput of each instruction of matrix_cycles.json on gfx942, in passes of four
cycles, against that file.
"""
import json
import pathlib
import re
import subprocess
import sys

table = json.loads((pathlib.Path(__file__).parent / "matrix_cycles.json").read_text())
wrong = 0
for mnemonic in sorted(table.keys() - {"source"}):
    assembly = f"{mnemonic} a[0:3], v[0:1], v[2:3], a[0:3]\n"
    report = subprocess.run([sys.argv[1], "-mtriple=amdgcn", "-mcpu=gfx942"], input=assembly, text=True,
                            capture_output=True, check=True).stdout
    # columns: micro-ops, latency, reciprocal throughput, flags, instruction
    passes = float(re.search(rf"^ *\d+ +\d+ +([\d.]+) .*{mnemonic} ", report, re.M)[1])
    want = table[mnemonic]["cycles"]
    print(f"{mnemonic}: found {4 * passes:g} cycles, want {want}")
    wrong += 4 * passes != want
sys.exit(1 if wrong else 0)
