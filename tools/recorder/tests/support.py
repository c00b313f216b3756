"""What the recorder's tests share: where dsakit and its recordings are, torch or its stand-in, golden tensors."""
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

try:
    import h5py  # noqa: F401
    import numpy as np
except ImportError as missing:
    print(f"SKIPPED: {missing} (tools/setup/recorder FOLDER makes a Python that has it)")
    sys.exit(77)

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
DSAKIT = os.environ.get("DSAKIT", str(ROOT / "build/ci/bin/dsakit"))
GOLDEN = ROOT / "golden/data"
sys.path[:0] = [str(HERE.parent), str(HERE / "stand_in")]


def load_torch():
    """The stand-in under the name torch, also where there is a real one: these tests are about our code."""
    spec = importlib.util.spec_from_file_location("torch", HERE / "fake_torch.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["torch"] = module
    spec.loader.exec_module(module)
    return module


if not os.access(DSAKIT, os.X_OK):
    sys.exit(f"DSAKIT: found no program {DSAKIT}, want dsakit")
torch = load_torch()

from dsakit_recorder import Recorder, Recording  # noqa: E402
from dsakit_recorder.tensors import Payload  # noqa: E402


def dsakit(*arguments):
    return subprocess.run([DSAKIT, *map(str, arguments)], capture_output=True, text=True, timeout=120)


def tensor(payload, device="cuda:0"):
    """A payload as a tensor of the stand-in."""
    return torch.Tensor(payload.bits.copy(), getattr(torch, payload.dtype), device)


def of(array, device="cuda:0"):
    return torch.Tensor(np.ascontiguousarray(array).view(f"<u{array.itemsize}").copy(),
                        getattr(torch, array.dtype.name), device)


class Golden:
    """An operation of a golden recording, as tensors of the stand-in."""

    def __init__(self, name, operation, step=0):
        self.recording = Recording(GOLDEN / f"{name}.h5")
        self.place = step, operation
        self.contract = self.recording.contract(step)
        self.config = self.recording.config

    def payload(self, side, name):
        return self.recording._payload("/".join(["/steps", str(self.place[0]), self.place[1], side, name]))

    def input(self, name):
        return tensor(self.payload("inputs", name))

    def output(self, name):
        return tensor(self.payload("outputs", name))


class RecorderTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.path = self.folder / "run.h5"

    def replays(self, path=None, code=0):
        """Replays on host lanes; its output."""
        done = dsakit("replay", path or self.path)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def topk(self, rows=6, keys=50, k=8, seed=0):
        """Inputs and outputs of a right top-k."""
        rng = np.random.default_rng(seed)
        logits = rng.normal(size=(rows, keys)).astype(np.float32)
        lengths = rng.integers(k + 1, keys + 1, rows).astype(np.int32)
        chosen = np.stack([np.argsort(-logits[row, :lengths[row]], kind="stable")[:k] for row in range(rows)])
        return {"logits": logits, "row_lens": lengths}, {"topk_indices": chosen.astype(np.int32)}


TOPK = {"tie_rule": "smaller_index", "topk_order": "rank"}

__all__ = ["DSAKIT", "GOLDEN", "Golden", "HERE", "Payload", "Recorder", "RecorderTest", "Recording", "TOPK", "dsakit",
           "np", "of", "os", "subprocess", "sys", "tensor", "torch", "unittest"]
