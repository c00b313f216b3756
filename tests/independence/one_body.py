#!/usr/bin/env python3
"""One body per operation and format serves host lanes, AMD code objects and NVIDIA: lists it from the
commands. The body of MXFP4, where there is one, is <operation>_mxfp4.hip.

usage: one_body.py KERNELS_FOLDER BUILD_FOLDER TARGET...

TARGET: host-gfx942 | host-gfx950 | gfx942 | gfx950 | sm_90, those that this build has. Fails where one
is missing for a kernel, or where a kernel's folder holds a second source.
"""
import json
import pathlib
import sys

kernels, build, *targets = sys.argv[1:]
kernels, build = pathlib.Path(kernels), pathlib.Path(build)


def target_of(entry):
    command = entry.get("command") or " ".join(entry["arguments"])
    if "--offload-arch=" in command:
        return command.split("--offload-arch=")[1].split()[0]
    if "DSAKIT_HOST_ARCH=" in command:
        return "host-gfx" + command.split("DSAKIT_HOST_ARCH=")[1].split()[0]
    return "sm_90"


commands = [entry for name in ("compile_commands.json", "amd_commands.json")
            for entry in json.loads((build / name).read_text())]
wrong = []
for folder in sorted(path for path in kernels.iterdir() if path.is_dir()):
    first, mxfp4 = folder / f"{folder.name}.hip", folder / f"{folder.name}_mxfp4.hip"
    bodies = [first] + [mxfp4] * mxfp4.exists()
    wrong += [f"{path}: a second source beside {first.name}" for path in folder.iterdir()
              if path.suffix in (".hip", ".cpp", ".cu", ".cc") and path not in bodies]
    for body in bodies:
        built = [target_of(entry) for entry in commands if pathlib.Path(entry["file"]).resolve() == body.resolve()]
        print(f"{body.relative_to(kernels)}: {' '.join(sorted(built))}")
        wrong += [f"{body}: found no command for {target}" for target in targets if target not in built]
for target in ("gfx942", "gfx950", "sm_90"):
    if target not in targets:
        print(f"*** not in this build: {target} ***")
print(*wrong, sep="\n")
sys.exit(1 if wrong else 0)
