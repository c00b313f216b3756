#!/usr/bin/env python3
"""Audits the AMD code objects of one arch: what the compiler made of each kernel.

usage: audit.py ARCH SOURCES_FOLDER OBJECTS_FOLDER LLVM_READELF LLVM_OBJDUMP

Every <operation>.hip under SOURCES_FOLDER has OBJECTS_FOLDER/<operation>.ARCH.hsaco. Each of its kernels
must use no scratch, spill nothing, fit the LDS, and contain the instructions that audit.json beside the
source lists for it: {"kernel": {"mnemonics": ["v_mfma_f32_16x16x32_fp8_fp8"]}}, or by arch
{"kernel": {"mnemonics": {"gfx942": [...], "gfx950": [...]}}}. The kernels of a folder's sources and
its entries must match.

On gfx942 every matrix instruction must be one of matrix_cycles.json; the last column is the cycles of all
that the kernel's text has.
"""
import json
import pathlib
import re
import subprocess
import sys

LDS_LIMIT = {"gfx942": 64 << 10, "gfx950": 160 << 10}
# Spill counts alone do not do: a kernel can have none and still use scratch.
MUST_BE_ZERO = ("private_segment_fixed_size", "vgpr_spill_count", "sgpr_spill_count")
SHOWN = ("vgpr_count", "agpr_count", "sgpr_count", "group_segment_fixed_size",
         "kernarg_segment_size", "max_flat_workgroup_size")
MATRIX_CYCLES = json.loads((pathlib.Path(__file__).parent / "matrix_cycles.json").read_text())


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def resources(readelf, path):
    """{kernel: {field: value}} from the metadata note, which llvm-readelf prints as YAML."""
    kernels = {}
    in_list = False
    for line in output(readelf, "--notes", path).splitlines():
        if not line.startswith(" "):
            in_list = line.startswith("amdhsa.kernels:")
        elif in_list:
            if line.startswith("  - "):
                fields = {}
            match = re.match(r"  (?:- |  )\.(\w+): +(\S+)$", line)
            if match:
                fields[match[1]] = match[2]
                if match[1] == "name":
                    kernels[match[2]] = fields
    return kernels


def instructions(objdump, path):
    """{symbol: [mnemonic]}, encodings' suffixes and the padding after the end taken off."""
    code = {}
    for line in output(objdump, "--disassemble", path).splitlines():
        label = re.match(r"[0-9a-f]+ <(\S+)>:$", line)
        if label:
            code[label[1]] = mnemonics = []
        elif line.startswith("\t"):
            mnemonics.append(re.sub(r"_(e32|e64|dpp|sdwa)$", "", line.split()[0]))
    for mnemonics in code.values():
        while mnemonics and mnemonics[-1] in ("s_nop", "s_code_end"):
            mnemonics.pop()
    return code


def audit_folder(arch, folder, objects, readelf, objdump):
    """Prints a line a kernel; returns what is wrong."""
    if not (folder / "audit.json").exists():
        return [f"{folder}: found no audit.json"]
    expected = json.loads((folder / "audit.json").read_text())
    wrong = []
    found = set()
    for hip in sorted(folder.glob("*.hip")):
        wrong += audit(arch, objects / f"{hip.stem}.{arch}.hsaco", folder.name, expected, found, readelf, objdump)
    return wrong + [f"{arch}: found no kernel {k}, want it from {folder.name}/audit.json" for k in expected.keys() - found]


def audit(arch, path, operation, expected, found, readelf, objdump):
    """The same for one code object; adds its kernels to `found`."""
    kernels = resources(readelf, path)
    code = instructions(objdump, path)
    found.update(kernels)
    wrong = [f"{path.name}: kernel {k} has no entry in {operation}/audit.json" for k in kernels.keys() - expected]
    for name in sorted(kernels.keys() & expected):
        fields = kernels[name]
        matrix = [m for m in code[name] if arch == "gfx942" and m.startswith(("v_mfma", "v_smfma"))]
        wrong += [f"{path.name}: {name}: {m} has no entry in matrix_cycles.json" for m in set(matrix) - MATRIX_CYCLES.keys()]
        cycles = sum(MATRIX_CYCLES[m]["cycles"] for m in matrix if m in MATRIX_CYCLES)
        print(f"{name:44}", *(f"{fields[field]:>6}" for field in SHOWN), f"{len(code[name]):>6}",
              f"{cycles:>6}" if arch == "gfx942" else "")
        for field in MUST_BE_ZERO:
            if fields[field] != "0":
                wrong.append(f"{path.name}: {name}: {field} is {fields[field]}, want 0")
        if int(fields["group_segment_fixed_size"]) > LDS_LIMIT[arch]:
            wrong.append(f"{path.name}: {name}: LDS is {fields['group_segment_fixed_size']} bytes, want at most {LDS_LIMIT[arch]}")
        mnemonics = expected[name]["mnemonics"]
        if isinstance(mnemonics, dict):
            mnemonics = mnemonics[arch]
        for mnemonic in mnemonics:
            if mnemonic not in code[name]:
                wrong.append(f"{path.name}: {name}: found no {mnemonic}")
    return wrong


def main():
    arch, kernels, objects, readelf, objdump = sys.argv[1:]
    folders = sorted({source.parent for source in pathlib.Path(kernels).rglob("*.hip")})
    print(f"{arch + ' kernel':44}", *(f"{h:>6}" for h in ("vgpr", "agpr", "sgpr", "LDS", "args", "lanes", "instr", "matrix")[:7 + (arch == "gfx942")]))
    wrong = [] if folders else [f"{kernels}: found no kernel"]
    for folder in folders:
        wrong += audit_folder(arch, folder, pathlib.Path(objects), readelf, objdump)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    sys.exit(1 if wrong else 0)


main()
