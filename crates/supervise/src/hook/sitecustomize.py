"""Plimsoll's hook. Python runs a module of this name when it starts. The hook waits for `import torch`. When CUDA is first
used, it sets the requested memory fraction, records the allocator's history in a ring, and dumps a snapshot when memory runs
out. It initializes no device itself, changes no results, raises no exceptions, and logs its actions.

It checks for features of PyTorch, not for versions. Supports 1.13 to 2.x.
"""

import json
import os
import sys
import time

_FOLDER = os.environ.get("PLIMSOLL_HOOK_FOLDER")
_HERE = os.path.dirname(os.path.abspath(__file__))
# Limit per process: a program that catches every error would otherwise fill the disk.
_MOST_SNAPSHOTS = 3
_state = {"snapshots": 0, "has_begun": False}


def _note(did, **more):
    """Appends a line to the log with one write, so that lines of other processes do not mix with it."""
    try:
        record = {"time_s": time.time(), "pid": os.getpid(), "did": did}
        record.update(more)
        line = (json.dumps(record, default=str) + "\n").encode()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        descriptor = os.open(os.path.join(_FOLDER, "hook.jsonl"), flags, 0o644)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
    except Exception:
        pass


def _attempt(what, do):
    """Does something, or logs why it could not be done."""
    try:
        did = do()
    except Exception as error:
        _note("not " + what, why="%s: %s" % (type(error).__name__, error))
        return False
    if did:
        _note(what, how=did)
    return bool(did)


def _set_fraction(torch):
    fraction = os.environ.get("PLIMSOLL_MEMORY_FRACTION")
    if not fraction:
        return None
    # Use only this process's card: querying another one would create a context on it.
    rank = os.environ.get("LOCAL_RANK", "")
    device = int(rank) if rank.isdigit() and int(rank) < torch.cuda.device_count() else torch.cuda.current_device()
    torch.cuda.set_per_process_memory_fraction(float(fraction), device)
    return "%s of GPU %d" % (fraction, device)


def _record_history(torch):
    import inspect

    entries = int(os.environ.get("PLIMSOLL_HISTORY_ENTRIES") or 100000)
    if entries == 0:
        return None
    record = torch.cuda.memory._record_memory_history
    parameters = inspect.signature(record).parameters
    if "max_entries" in parameters:
        more = {"stacks": "python"} if "stacks" in parameters else {}
        record(max_entries=entries, **more)
    elif "trace_alloc_max_entries" in parameters:
        record(True, trace_alloc_max_entries=entries, trace_alloc_record_context=True)
    else:
        record(True)
        return "without a ring"
    return "the last %d events" % entries


def _leave_snapshot(torch, why):
    if _state["snapshots"] >= _MOST_SNAPSHOTS:
        return None
    _state["snapshots"] += 1
    name = "oom-%d-%d.pickle" % (os.getpid(), _state["snapshots"])
    path = os.path.join(_FOLDER, name)
    if hasattr(torch.cuda.memory, "_dump_snapshot"):
        torch.cuda.memory._dump_snapshot(path)
    else:
        import pickle

        with open(path, "wb") as file:
            pickle.dump(torch.cuda.memory._snapshot(), file)
    return "%s, as %s" % (name, why)


def _watch_for_oom(torch):
    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if attach is not None:

        def observe(device, allocated, device_allocated, device_free):
            _attempt("left a snapshot", lambda: _leave_snapshot(torch, "an allocation of %d B on GPU %d failed" % (allocated, device)))

        attach(observe)
        return "with an allocator observer"
    before = sys.excepthook

    def excepthook(kind, error, traceback):
        if "OutOfMemory" in kind.__name__ or "out of memory" in str(error):
            _attempt("left a snapshot", lambda: _leave_snapshot(torch, "the process ended with %s" % kind.__name__))
        before(kind, error, traceback)

    sys.excepthook = excepthook
    return "with the exception that ends the process"


def _begin(torch):
    """Runs when CUDA is first used."""
    if _state["has_begun"]:
        return
    _state["has_begun"] = True
    _attempt("set the memory fraction", lambda: _set_fraction(torch))
    _attempt("records the allocator's history", lambda: _record_history(torch))
    _attempt("watches for out-of-memory errors", lambda: _watch_for_oom(torch))


def _enable_faulthandler():
    import faulthandler

    if faulthandler.is_enabled():
        return None
    faulthandler.enable()
    return "for crashes"


def _await_cuda(torch):
    if getattr(torch.version, "cuda", None) is None and getattr(torch.version, "hip", None) is None:
        return "nothing: this PyTorch is built without CUDA"
    if torch.cuda.is_initialized():
        _begin(torch)
        return "nothing: CUDA is in use"
    torch.cuda._lazy_call(lambda: _begin(torch))
    import atexit

    atexit.register(lambda: _state["has_begun"] or _note("did nothing: CUDA was not used"))
    return "CUDA"


def _imported(torch):
    _note("saw torch", version=getattr(torch, "__version__", None))
    _attempt("enabled faulthandler", _enable_faulthandler)
    _attempt("waits for", lambda: _await_cuda(torch))


class _Finder:
    """Finds `torch` through the other finders, and runs the hook after it is loaded."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        try:
            sys.meta_path.remove(self)
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find is not None else None
                if spec is not None:
                    self._watch(spec)
                    return spec
        except Exception as error:
            _note("not waiting for torch", why=repr(error))
        return None

    @staticmethod
    def _watch(spec):
        loader = spec.loader
        execute = loader.exec_module

        def exec_module(module):
            # Restore the loader.
            del loader.exec_module
            execute(module)
            try:
                _imported(module)
            except Exception:
                pass

        loader.exec_module = exec_module


def _next_sitecustomize():
    """The module that Python would have run without this one, or None."""
    import importlib.machinery

    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    return importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)


def _run_next(spec):
    import importlib.util

    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    if _FOLDER and "torch" not in sys.modules:
        sys.meta_path.insert(0, _Finder())
except Exception as error:
    _note("not waiting for torch", why=repr(error))
_spec = None
try:
    _spec = _next_sitecustomize()
except Exception as error:
    _note("not looking for another sitecustomize", why=repr(error))
# Let exceptions of the other module propagate, as they would without this one.
if _spec is not None:
    _run_next(_spec)
