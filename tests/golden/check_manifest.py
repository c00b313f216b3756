#!/usr/bin/env python3
"""golden/manifest.json lists every file of golden/data with its SHA-256, and nothing else.

usage: check_manifest.py GOLDEN_FOLDER
"""
import hashlib
import json
import pathlib
import sys

golden = pathlib.Path(sys.argv[1])
entries = json.loads((golden / "manifest.json").read_text())["entries"]
listed = {golden / entry["file"]: entry["sha256"] for entry in entries}
problems = []
for path in sorted(set(listed) | set((golden / "data").iterdir())):
    found = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "no file"
    if listed.get(path) != found:
        problems.append(f"{path}: found {found}, the manifest says {listed.get(path, 'nothing')}")
print("\n".join(problems) or f"{len(listed)} golden files are as the manifest says")
sys.exit(bool(problems))
