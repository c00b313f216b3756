#!/usr/bin/env python3
"""Replays and compares a recording that does not fit the memory they may take.
   tests/large/run.py BIN [GIB [FOLDER [OPERATION]]]
BIN holds dsakit and large_recording. Writes a recording of GIB (4) to FOLDER (.), of many operations or of
OPERATION alone, replays it, compares it with itself and removes it. Exit 1: a verdict is not pass, or more than 1 GiB of memory was taken."""
import os
import subprocess
import sys
import time

LIMIT = 1 << 30


def main(bin, gib="4", folder=".", *operation):
    path = os.path.join(folder, "large.h5")
    dsakit = os.path.join(bin, "dsakit")
    wrong = 0
    try:
        for command in ([os.path.join(bin, "large_recording"), path, gib, *operation],
                        [dsakit, "replay", path], [dsakit, "compare", path, path]):
            started = time.monotonic()
            process = subprocess.Popen(command, stdout=subprocess.PIPE)
            last = process.stdout.read().decode().strip().split("\n")[-1]
            _, status, usage = os.wait4(process.pid, 0)
            code, peak = os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024
            made = command[1] == path
            fine = code == 0 and (made or peak < LIMIT)
            wrong += not fine
            print("%s: %s, exit %d, peak %.0f MiB, %.0f s; %s" % (
                "ok" if fine else "WRONG", " ".join(command[1:3]), code, peak / 2**20,
                time.monotonic() - started, last))
            if made and code == 0:
                print("the recording has %.2f GiB" % (os.path.getsize(path) / 2**30))
            if made and code != 0:
                break
    finally:
        if os.path.exists(path):
            os.remove(path)
    return wrong != 0


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 5:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
