"""A stand-in for the parts of PyTorch that the hook uses. `FAKE_TORCH` selects a version: `observer` (2.1 and later), `ring`
(2.0), `plain` (1.13), `cpu`, `broken`. It records calls in `asked` and prints them to stdout at the end."""

import atexit
import os
import sys
import types

which = os.environ["FAKE_TORCH"]
asked = []
__version__ = "0.0+" + which
version = types.SimpleNamespace(cuda=None if which == "cpu" else "12.4", hip=None)


class OutOfMemoryError(RuntimeError):
    pass


class _Cuda(types.ModuleType):
    """Initialized on first use, like the real one."""

    OutOfMemoryError = OutOfMemoryError

    def __init__(self):
        super().__init__("torch.cuda")
        self.queue, self.ready, self.observers = [], False, []
        self.memory = types.SimpleNamespace(_snapshot=lambda: {"segments": [], "device_traces": []})
        if which == "observer":

            def record(enabled="all", context="all", stacks="all", max_entries=sys.maxsize, device=None):
                asked.append("record %s %s" % (stacks, max_entries))

            self.memory._dump_snapshot = lambda path: open(path, "w").write("snapshot")
        elif which == "broken":

            def record(*arguments, **more):
                raise RuntimeError("not today")

            self.memory._snapshot = record
        else:

            def record(enabled, record_context=True, trace_alloc_max_entries=1, trace_alloc_record_context=False):
                asked.append("record %s %s" % (enabled, trace_alloc_max_entries))

        self.memory._record_memory_history = record

    def is_initialized(self):
        return self.ready

    def device_count(self):
        return 2

    def current_device(self):
        assert self.ready
        return 0

    def set_per_process_memory_fraction(self, fraction, device=None):
        if which == "broken":
            raise RuntimeError("no fraction")
        asked.append("fraction %s of %s" % (fraction, device))

    def _lazy_call(self, call):
        if self.ready:
            call()
        else:
            self.queue.append(call)

    def use(self):
        self.ready = True
        for call in self.queue:
            call()
        self.queue = []

    def fail(self):
        for observer in self.observers:
            observer(0, 1 << 20, 1 << 30, 5)
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 MiB.")


cuda = _Cuda()
sys.modules["torch.cuda"] = cuda
_C = types.SimpleNamespace()
if which in ("observer", "broken"):
    _C._cuda_attach_out_of_memory_observer = cuda.observers.append
atexit.register(lambda: print("\n".join(asked)))
