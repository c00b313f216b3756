"""Records tensors of PyTorch and vLLM as dsakit recordings (docs/recorder.md)."""
from .recorder import Call, Recorder, RecorderError
from .recording import Recording

__all__ = ["Call", "Recorder", "RecorderError", "Recording"]
