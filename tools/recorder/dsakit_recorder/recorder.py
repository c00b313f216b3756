"""Writes recordings: named tensors of operations, with their contract and where they come from."""
import functools
import hashlib
import inspect
import os
import re
import sys
import threading
import warnings
from dataclasses import dataclass, field

import numpy as np
from h5py import h5g

from . import hdf5
from .contract import call_fault, value_fault
from .operations import OPERATIONS, ROWS, axes_of, compact, pick
from .tensors import is_torch, take, to_numpy

LEVELS = ("full", "stats", "meta")


class RecorderError(ValueError):
    """What was asked for cannot be recorded; the message names what was found and what is wanted."""


@dataclass
class Call:
    """One run of an operation. `dtypes` of tensors whose elements are bytes; `attributes` by output."""
    operation: str
    inputs: dict
    outputs: dict
    contract: dict = field(default_factory=dict)
    config: dict = field(default_factory=dict)
    attributes: dict = field(default_factory=dict)
    dtypes: dict = field(default_factory=dict)


def in_graph_capture():
    """Whether the current stream is being captured, or code is being traced: tensors hold nothing then."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    compiler = getattr(torch, "compiler", None)
    if compiler is not None and getattr(compiler, "is_compiling", bool)():
        return True
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


class Recorder:
    """with Recorder("run.h5", contract={...}) as recorder: ...

    The file appears when the block ends, whole; an exception leaves nothing.

    contract, config, provenance   what the whole file says; a call adds what is its own. A contract that dsakit
                would not take is refused: an unknown key, another value, one that an operation needs and nobody says
    level       full | stats (minimum, maximum, mean and counts in place of values) | meta (shapes alone);
                dsakit replays full ones
    select      regular expression: operations that do not match as a whole are left out
    rows        at most so many rows of each operation, a sample drawn with `seed`; caches that are written and what
                is gathered from them stay whole
    max_bytes   of payload; a call that does not fit is left out, which left_out says
    compact_pages  leaves out pages of a cache that the operation does not reach, and renames the others
    """

    def __init__(self, path, *, contract=None, config=None, provenance=None, level="full", select=".*", rows=None,
                 seed=0, max_bytes=None, compact_pages=True):
        if level not in LEVELS:
            raise RecorderError(f"level: found {level!r}, want {' | '.join(LEVELS)}")
        if rows is not None and rows < 1:
            raise RecorderError(f"rows: found {rows}, want at least 1")
        self.path = os.path.abspath(path)
        self.contract = {key: str(value) for key, value in (contract or {}).items()}
        _refuse_values(self.contract)
        self.config = {key: str(value) for key, value in (config or {}).items()}
        self.provenance = {key: str(value) for key, value in (provenance or {}).items()}
        self.level, self.rows, self.seed = level, rows, seed
        self.select = re.compile(select)
        self.max_bytes, self.compact_pages = max_bytes, compact_pages
        self.left_out = []   # "operation: why"
        self.recorded = {}   # operation -> calls
        self._steps = []     # by step: {"operations": set, "contract": dict}
        self._stored = {}    # content -> (object, attributes)
        self._bytes = 0
        self._undo = []
        self._lock = threading.RLock()
        self._temporary = os.path.join(os.path.dirname(self.path), f".{os.path.basename(self.path)}.{os.getpid()}.tmp")
        if os.path.isdir(self.path):
            raise RecorderError(f"{self.path}: found a directory, want a file to write")
        if os.path.exists(self.path) and not os.path.isfile(self.path):
            raise RecorderError(f"{self.path}: found a special file, want a file to write")
        self._file = hdf5.create_file(self._temporary)
        self._groups = set()
        root = h5g.open(self._file, b"/")
        hdf5.write_attribute(root, "format", hdf5.FORMAT)
        hdf5.write_attribute(root, "level", level)
        for group in ("/contract", "/config", "/provenance", "/steps", "/weights"):
            self._group(group)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close() if kind is None else self.abort()

    @property
    def open(self):
        return self._file is not None

    def record(self, operation, inputs, outputs, *, contract=None, config=None, attributes=None, dtypes=None):
        """Copies the tensors of one run; the step that it became, None where it was left out.

        Tensors are torch's, of any device, or arrays; names are those of docs/recordings.md, an output of somebody
        else's "logits.mine". `attributes` of outputs ({"logits.mine": {"accumulation": "fp32"}}); `dtypes` of tensors
        that are bytes ({"index_q_fp8": "float8_e4m3fn"}).
        """
        return self.add(Call(operation, dict(inputs), dict(outputs), dict(contract or {}), dict(config or {}),
                             dict(attributes or {}), dict(dtypes or {})))

    def add(self, call):
        """record() of a Call."""
        with self._lock:
            if not self.open:
                raise RecorderError(f"{self.path}: the recorder is closed")
            if in_graph_capture():
                raise RecorderError(f"{call.operation}: inside graph capture or compilation, where tensors have no "
                                    "values yet: record eagerly")
            if call.operation not in OPERATIONS:
                raise RecorderError(f"operation: found {call.operation!r}, want one of {', '.join(OPERATIONS)}")
            if not self.select.fullmatch(call.operation):
                return None
            return self._add(call)

    def _add(self, call):
        contract = {key: str(value) for key, value in call.contract.items()}
        _refuse_values(contract, f"{call.operation}: ")
        config = {key: str(value) for key, value in {**self.config, **call.config}.items()}
        if fault := call_fault(call.operation, {**self.contract, **contract}, config, call.inputs, call.outputs,
                               call.attributes):
            raise RecorderError(f"{call.operation}: {fault}")
        inputs, outputs = self._sample(call)
        page_size = contract.get("page_size", self.contract.get("page_size"))
        if self.compact_pages and page_size:
            inputs, outputs = compact(call.operation, inputs, outputs, int(page_size))

        tensors = []  # everything is copied before anything is written, so that no operation is half there
        for side, named in (("inputs", inputs), ("outputs", outputs)):
            for name, value in named.items():
                canonical, _, producer = name.partition(".")
                attributes = dict(call.attributes.get(name, {})) if side == "outputs" else {}
                if side == "outputs" and producer:
                    attributes.setdefault("output", canonical)
                    attributes.setdefault("producer", producer)
                try:
                    payload = take(value, call.dtypes.get(name, call.dtypes.get(canonical)))
                except TypeError as error:
                    raise RecorderError(f"{call.operation} {side} {name}: {error}") from None
                attributes.update(dtype=payload.dtype, axes=axes_of(canonical, len(payload.shape)))
                tensors.append((f"{side}/{name}", payload, attributes))

        if self.max_bytes is not None:
            new = sum(payload.nbytes for _, payload, attributes in tensors
                      if not self._find(payload, attributes))
            if self._bytes + new > self.max_bytes:
                self._leave_out(call.operation, f"{new} more bytes than max_bytes {self.max_bytes} leaves room for")
                return None

        step = self._step(call.operation, contract)
        base = f"/steps/{step}/{call.operation}"
        for side in ("inputs", "outputs"):
            self._group(f"{base}/{side}")
        for name, payload, attributes in tensors:
            self._write(f"{base}/{name}", payload, attributes)
        for key, value in call.config.items():
            known = self.config.setdefault(key, str(value))
            if known != str(value):
                raise RecorderError(f"{call.operation}: found config {key} {value}, want {known} as in the file")
        self._note_device(call)
        self.recorded[call.operation] = self.recorded.get(call.operation, 0) + 1
        return step

    def _sample(self, call):
        rowed = ROWS.get(call.operation, set())
        lengths = {value.shape[0] for side in (call.inputs, call.outputs) for name, value in side.items()
                   if name.partition(".")[0] in rowed and len(value.shape)}
        if self.rows is None or len(lengths) != 1 or lengths <= set(range(self.rows + 1)):
            return call.inputs, call.outputs
        chosen = np.sort(np.random.default_rng(self.seed).choice(lengths.pop(), self.rows, replace=False))
        inputs = dict(call.inputs)
        if call.operation == "index_logits_decode" and "row_request" not in inputs:
            requests = inputs["block_table"].shape[0]  # whose rows they are is no longer a matter of counting
            inputs["row_request"] = np.repeat(np.arange(requests, dtype=np.int32),
                                              len(inputs["row_lens"]) // requests)
        sides = [{name: pick(value, chosen) if name.partition(".")[0] in rowed else value
                  for name, value in side.items()} for side in (inputs, call.outputs)]
        return sides[0], sides[1]

    def _step(self, operation, contract):
        """The first step that has no such operation yet and says nothing else of the contract."""
        for number, step in enumerate(self._steps):
            if operation not in step["operations"] and \
                    all(step["contract"].get(key, value) == value for key, value in contract.items()):
                break
        else:
            number = len(self._steps)
            self._steps.append({"operations": set(), "contract": {}})
        self._steps[number]["operations"].add(operation)
        self._steps[number]["contract"].update(contract)
        return number

    def _group(self, path):
        if path and path not in self._groups:
            self._group(path.rpartition("/")[0])
            hdf5.create_group(self._file, path)
            self._groups.add(path)

    def _key(self, payload):
        return payload.dtype, payload.shape, hashlib.sha256(payload.bits.tobytes()).digest()

    def _find(self, payload, attributes):
        """Where the same is stored, with these attributes at least."""
        for stored, known in self._stored.get(self._key(payload), []):
            if all(known.get(key) == value for key, value in attributes.items()):
                return stored
        return None

    def _write(self, path, payload, attributes):
        stored = self._find(payload, attributes)
        if stored:
            hdf5.link(self._file, stored, path)
            return
        if self.level == "stats":
            attributes = {**attributes, **_statistics(payload)}
        hdf5.write_dataset(self._file, path, payload, attributes, with_payload=self.level == "full")
        self._stored.setdefault(self._key(payload), []).append((path, attributes))
        self._bytes += payload.nbytes

    def _leave_out(self, operation, why):
        self.left_out.append(f"{operation}: {why}")
        warnings.warn(f"dsakit_recorder: left out {operation}: {why}", stacklevel=4)

    def _note_device(self, call):
        for value in (*call.inputs.values(), *call.outputs.values()):
            if is_torch(value) and getattr(value, "is_cuda", False):
                torch = sys.modules["torch"]
                self.provenance.setdefault("device", torch.cuda.get_device_name(value.device))
                return

    def hook(self, owner, name, after, before=None, parameters=""):
        """Replaces owner.name by a function that also records, until the recorder ends.

        after(arguments, result, kept) gives a Call, a list of them or None; arguments is the dict of all parameters by
        name, kept what before(arguments) returned before the function ran. What fails in there is a warning: the
        program that is watched goes on. So does one inside graph capture, where nothing is recorded. `parameters`
        names those of a function that has no signature, separated by spaces.
        """
        original = getattr(owner, name)
        if getattr(original, "_dsakit_recorder", None) is self:
            raise RecorderError(f"{name}: is hooked already")
        if parameters:
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            signature = inspect.Signature([inspect.Parameter(one, kind) for one in parameters.split()])
        else:
            signature = inspect.signature(original)
        recorder = self

        def wrapper(*positional, **named):
            if not recorder.open or in_graph_capture():
                if recorder.open:
                    recorder._warn_once(name, "inside graph capture: not recorded")
                return original(*positional, **named)
            kept = arguments = None
            try:
                bound = signature.bind(*positional, **named)
                bound.apply_defaults()
                arguments = dict(bound.arguments)
                kept = before(arguments) if before else None
            except Exception as error:  # noqa: BLE001 the watched program must not fail by being watched
                recorder._warn_once(name, f"{type(error).__name__}: {error}")
                arguments = None
            result = original(*positional, **named)
            if arguments is not None:
                try:
                    calls = after(arguments, result, kept)
                    for call in calls if isinstance(calls, list) else [calls]:
                        if call is not None and recorder.open:
                            recorder.add(call)
                except Exception as error:  # noqa: BLE001
                    recorder._warn_once(name, f"{type(error).__name__}: {error}")
            return result

        functools.update_wrapper(wrapper, original)
        wrapper._dsakit_recorder = self
        self._replace(owner, name, original, wrapper)
        return wrapper

    def hook_module(self, module, after):
        """The same for a torch.nn.Module: after(arguments, result, None), its inputs by the names of forward()."""
        signature = inspect.signature(module.forward)

        def hooked(_, positional, named, result):
            if not self.open or in_graph_capture():
                return
            bound = signature.bind(*positional, **named)
            bound.apply_defaults()
            calls = after(dict(bound.arguments), result, None)
            for call in calls if isinstance(calls, list) else [calls]:
                if call is not None:
                    self.add(call)

        self._undo.append(module.register_forward_hook(hooked, with_kwargs=True).remove)

    def _replace(self, owner, name, original, wrapper):
        """In its module and wherever `from module import name` left it."""
        package = getattr(owner, "__name__", "").partition(".")[0]
        places = [(owner, name)]
        for module_name, module in list(sys.modules.items()):
            if module is not None and module is not owner and package and \
                    module_name.partition(".")[0] == package:
                places += [(module, alias) for alias, value in list(vars(module).items()) if value is original]
        for place, alias in places:
            setattr(place, alias, wrapper)
            self._undo.append(functools.partial(setattr, place, alias, original))

    def _warn_once(self, what, why):
        text = f"{what}: {why}"
        if text not in self.left_out:
            self._leave_out(what, why)

    def _unhook(self):
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def close(self):
        """Ends the hooks and makes the file appear."""
        with self._lock:
            if not self.open:
                return
            self._unhook()
            if not self._steps:
                self.abort()
                raise RecorderError(f"{self.path}: found no operation that was recorded, so there is no file" +
                                    "".join(f"; {text}" for text in self.left_out[:3]))
            self.provenance.setdefault("producer", "dsakit_recorder")
            torch = sys.modules.get("torch")
            if torch is not None and hasattr(torch, "__version__"):
                self.provenance.setdefault("torch", str(torch.__version__))
            if self.left_out:
                self.provenance["left_out"] = "; ".join(self.left_out)[:4000]
            if self.rows is not None:
                self.provenance["rows"] = f"at most {self.rows} of each operation, seed {self.seed}"
            for group, values in (("/contract", self.contract), ("/config", self.config),
                                  ("/provenance", self.provenance)):
                self._attributes(group, values)
            for number, step in enumerate(self._steps):
                self._attributes(f"/steps/{number}", {key: value for key, value in step["contract"].items()
                                                      if self.contract.get(key) != value})
            self._file.close()
            self._file = None
            try:
                with open(self._temporary, "rb") as file:  # a full network file system may say so only now
                    os.fsync(file.fileno())
                os.replace(self._temporary, self.path)
            except OSError:
                self._unlink()
                raise

    def abort(self):
        """Ends the hooks and leaves no file."""
        with self._lock:
            self._unhook()
            if self.open:
                self._file.close()
                self._file = None
                self._unlink()

    def _unlink(self):
        try:
            os.unlink(self._temporary)
        except FileNotFoundError:
            pass

    def _attributes(self, group, values):
        opened = h5g.open(self._file, group.encode())
        for key in sorted(values):
            hdf5.write_attribute(opened, key, values[key])


def _refuse_values(contract, where=""):
    for key, value in contract.items():
        if fault := value_fault(key, value):
            raise RecorderError(where + fault)


def _statistics(payload):
    values = to_numpy(payload).astype(np.float64)
    finite = values[np.isfinite(values)]
    numbers = {"nan": int(np.isnan(values).sum()), "inf": int(np.isinf(values).sum())}
    if finite.size:
        numbers.update(minimum=finite.min(), maximum=finite.max(), mean=finite.mean())
    return {key: format(value, ".9g") for key, value in numbers.items()}
