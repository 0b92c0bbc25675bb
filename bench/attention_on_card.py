"""Times the tensor-core kernels of attention on a card next to PyTorch's and cuDNN's, and compares their results.

    python bench/attention_on_card.py [--kernels DIR] [--repetitions 30]

Needs a card of compute capability 8.0 or newer and PyTorch for it. Kernels are the PTX of crates/exec/kernels/ptx/sm_80,
or of another folder with such files. The reference is PyTorch's attention in single precision on the same inputs. Times are
medians between events around launches that were queued beforehand. Rates count the products of a causal attention, half those
of a full attention of the same size: 4 B H S T D forward, 2.5 times as many for the gradient.
"""

import argparse
import ctypes
import math
import statistics
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attention

KERNELS = Path(__file__).resolve().parents[1] / "crates/exec/kernels/ptx/sm_80"
# `CUfunction_attribute` values.
LOCAL_BYTES, REGISTERS, MOST_SHARED = 3, 4, 8
THREADS = 128
# From `attention.cuh`, `attention_tensor.cuh` and src/cuda/ops/attention_tensor.rs.
ROWS, KEYS, SMALL_HEAD, SPAN, MOST_BUCKETS = 64, 64, 64, 128, 128
GROUP_BYTES = 16 << 20

DRIVER = ctypes.CDLL("libcuda.so.1")


def called(code: int, what: str) -> None:
    """Raises RuntimeError if a call of the driver failed."""
    if code:
        name = ctypes.c_char_p()
        DRIVER.cuGetErrorName(code, ctypes.byref(name))
        raise RuntimeError(f"{what}: {name.value.decode() if name.value else code}")


class Kernel:
    """A kernel of a PTX file, and the shape of its blocks."""

    def __init__(self, path: Path, entry: str, shared_bytes: int, threads: int = THREADS) -> None:
        self.name, self._shared, self._threads = entry, shared_bytes, threads
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        text = path.read_text().encode()
        called(DRIVER.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(text)), str(path))
        called(DRIVER.cuModuleGetFunction(ctypes.byref(self._function), module, entry.encode()), entry)
        called(DRIVER.cuFuncSetAttribute(self._function, MOST_SHARED, shared_bytes), f"shared memory of {entry}")

    def figures(self) -> str:
        """Registers, bytes of spills, and blocks per multiprocessor."""
        of = []
        for attribute in (REGISTERS, LOCAL_BYTES):
            value = ctypes.c_int()
            called(DRIVER.cuFuncGetAttribute(ctypes.byref(value), attribute, self._function), "attribute")
            of.append(value.value)
        blocks = ctypes.c_int()
        size = ctypes.c_size_t(self._shared)
        called(
            DRIVER.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                ctypes.byref(blocks), self._function, self._threads, size
            ),
            "occupancy",
        )
        return f"{of[0]} registers, {of[1]} bytes of local memory, {blocks.value} blocks of {self._threads}"

    def launch(self, grid: tuple[int, int, int], arguments: list[bytes]) -> None:
        """Launches the kernel on PyTorch's stream. Arguments are raw bytes."""
        held = [ctypes.create_string_buffer(argument, len(argument)) for argument in arguments]
        pointers = (ctypes.c_void_p * len(held))(*(ctypes.addressof(argument) for argument in held))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        code = DRIVER.cuLaunchKernel(
            self._function, *grid, self._threads, 1, 1, self._shared, stream, pointers, ctypes.c_void_p()
        )
        called(code, self.name)


@dataclass(frozen=True)
class Case:
    """An attention: samples, heads, tokens and channels of a head."""

    samples: int
    heads: int
    tokens: int
    channels: int
    causal: bool = True

    def __str__(self) -> str:
        sizes = f"{self.samples} x {self.heads} x {self.tokens} x {self.channels}"
        return sizes if self.causal else f"{sizes} not causal"

    def flops(self) -> float:
        """Operations of the forward pass."""
        pairs = self.tokens**2 / (2 if self.causal else 1)
        return 4 * self.samples * self.heads * pairs * self.channels


class Inputs:
    """Random operands of a case, (B, T, H, D), and PyTorch's results in single precision."""

    def __init__(self, case: Case, dtype: torch.dtype, seed: int) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)
        size = (case.samples, case.tokens, case.heads, case.channels)
        self.case, self.dtype = case, dtype
        self.q, self.k, self.v, self.dy = (
            torch.randn(size, generator=generator, device="cuda").to(dtype) for _ in range(4)
        )
        self.lse, self.delta = (
            torch.full((case.samples, case.heads, case.tokens), math.nan, device="cuda") for _ in range(2)
        )
        self.y, self.dq, self.dk, self.dv = (torch.full_like(self.q, math.nan) for _ in range(4))
        wide = [x.float().transpose(1, 2).requires_grad_() for x in (self.q, self.k, self.v)]
        with sdpa_kernel(SDPBackend.MATH):
            y = attention(*wide, is_causal=case.causal)
        grads = torch.autograd.grad(y, wide, self.dy.float().transpose(1, 2))
        self.expected = [x.detach().transpose(1, 2) for x in (y, *grads)]

    def errors(self) -> list[float]:
        """For y, dq, dk and dv: the norm of the difference relative to that of the reference."""
        made = (self.y, self.dq, self.dk, self.dv)
        return [float((x.float() - ref).norm() / ref.norm()) for x, ref in zip(made, self.expected, strict=True)]

    def shape(self) -> bytes:
        """`struct Shape` of attention.cuh."""
        case = self.case
        width = case.heads * case.channels
        number = 1 if self.dtype == torch.float16 else 2
        scale = 1 / math.sqrt(case.channels)
        tokens = (case.tokens, case.tokens, case.channels, case.heads, case.heads, number, int(case.causal))
        return struct.pack("<3Q7if2iIfI4x", width, width, width, *tokens, scale, 0, 0, 0, 1.0, 0)


def address(tensor: torch.Tensor | None) -> bytes:
    """The address as an argument."""
    return struct.pack("<Q", 0 if tensor is None else tensor.data_ptr())


def grid(case: Case) -> tuple[int, int, int]:
    """Heads in groups whose keys and values stay in the L2 cache, tiles, and groups by spans."""
    heads = case.samples * case.heads
    most = max(1, GROUP_BYTES // (4 * case.tokens * case.channels))
    group = max(n for n in range(1, heads + 1) if heads % n == 0 and n <= most)
    return group, -(-case.tokens // ROWS), heads // group * -(-case.channels // SPAN)


@cache
def scalars() -> torch.Tensor:
    """`struct Scalars` of common.cuh; never read, because dropout is off."""
    return torch.zeros(64, dtype=torch.uint8, device="cuda")


def results_arguments(x: Inputs) -> list[bytes]:
    """Arguments of the forward pass."""
    operands = (x.q, x.k, x.v, None, None, None, x.y, x.lse, scalars())
    return [*map(address, operands), x.shape(), bytes(4 * MOST_BUCKETS)]


def delta_arguments(x: Inputs) -> list[bytes]:
    """Arguments of the kernel of products of results with their gradients."""
    return [*map(address, (x.dy, x.y, x.delta)), struct.pack("<i", x.case.samples), x.shape()]


def queries_arguments(x: Inputs, stages: int) -> list[bytes]:
    """Arguments of the kernel of gradients of queries."""
    operands = (x.dy, x.q, x.k, x.v, None, None, None, x.lse, x.delta, x.dq, None, scalars())
    return [*map(address, operands), x.shape(), bytes(4 * MOST_BUCKETS), struct.pack("<i", stages)]


def keys_arguments(x: Inputs, stages: int) -> list[bytes]:
    """Arguments of the kernel of gradients of keys and values."""
    operands = (x.dy, x.q, x.k, x.v, None, None, None, x.lse, x.delta, x.dk, x.dv, scalars())
    return [*map(address, operands), x.shape(), bytes(4 * MOST_BUCKETS), struct.pack("<i", stages)]


def median_ms(run: Callable[[], object], repetitions: int) -> float:
    """The median time of a call. The card sleeps while the host queues the calls, so that none waits for the host."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repetitions)]
    torch.cuda._sleep(10_000_000)
    for start, end in events:
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events)


def torch_ms(x: Inputs, backend: SDPBackend, repetitions: int) -> tuple[float, float]:
    """Attention of PyTorch by a backend: forward and backward. NaN if the backend has no kernel for these sizes."""
    q, k, v = (t.transpose(1, 2).detach().requires_grad_() for t in (x.q, x.k, x.v))
    dy = x.dy.transpose(1, 2)
    try:
        with sdpa_kernel(backend):
            y = attention(q, k, v, is_causal=x.case.causal)
            with torch.no_grad():
                forward = median_ms(lambda: attention(q, k, v, is_causal=x.case.causal), repetitions)
            backward = median_ms(lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True), repetitions)
    except RuntimeError:
        return math.nan, math.nan
    return forward, backward


class Kernels:
    """The four kernels of attention and its gradient for heads of a size."""

    def __init__(self, folder: Path, channels: int) -> None:
        head = SMALL_HEAD if channels <= SMALL_HEAD else 2 * SPAN
        row = 2 * (SMALL_HEAD if channels <= SMALL_HEAD else -(-channels // SPAN) * SPAN)
        columns = 64 if channels <= SMALL_HEAD else 32
        self._stages = 2 if channels <= SPAN else 1
        own_stage = self._stages - 1 if channels <= SMALL_HEAD else self._stages
        tiles, bias = (2 * own_stage * columns + 2 * ROWS) * row, 4 * (ROWS + columns)
        queries = 0 if channels <= SMALL_HEAD else ROWS * row
        forward = KEYS * (row + min(row, 2 * SPAN)) + queries + 4 * (ROWS + 2 * KEYS)
        file, grad = folder / f"attention_tensor_{head}.ptx", folder / f"attention_tensor_grad_{head}.ptx"
        self._forward = Kernel(file, f"attention_tensor_{head}_bf16", forward)
        shared = tiles + self._stages * (2 * bias + 4 * columns)
        self._queries = Kernel(grad, f"attention_tensor_grad_queries_{head}_bf16", shared)
        shared = tiles + self._stages * (bias + 12 * columns)
        self._keys = Kernel(grad, f"attention_tensor_grad_keys_{head}_bf16", shared)
        self._delta = Kernel(folder / "attention_grad_sums.ptx", "attention_grad_results", 0)
        lanes = 1
        while lanes < 32 and lanes * 8 < channels:
            lanes *= 2
        self._rows = THREADS // lanes

    def figures(self) -> list[str]:
        """Figures of each kernel."""
        return [f"{kernel.name}: {kernel.figures()}" for kernel in (self._forward, self._queries, self._keys)]

    def passes(self, x: Inputs) -> dict[str, Callable[[], None]]:
        """Launches by name, in order."""
        case = x.case
        rows = -(-case.samples * case.heads * case.tokens // self._rows)
        return {
            "forward": lambda: self._forward.launch(grid(case), results_arguments(x)),
            "delta": lambda: self._delta.launch((rows, 1, 1), delta_arguments(x)),
            "queries": lambda: self._queries.launch(grid(case), queries_arguments(x, self._stages)),
            "keys": lambda: self._keys.launch(grid(case), keys_arguments(x, self._stages)),
        }


CASES = [
    Case(1, 16, 1024, 64),
    Case(1, 16, 4096, 64),
    Case(32, 12, 1024, 64),
    Case(4, 16, 2048, 64, causal=False),
    Case(16, 12, 1024, 32),
    Case(8, 16, 1024, 96),
    Case(1, 16, 1024, 128),
    Case(8, 16, 1024, 128),
    Case(4, 8, 1024, 256),
]
# What the kernels are compared with, by the titles of its columns. cuDNN's is PyTorch's fastest on Hopper.
BACKENDS = {"flash's": SDPBackend.FLASH_ATTENTION, "cuDNN's": SDPBackend.CUDNN_ATTENTION}
# Several times the rounding error of bf16.
MOST_ERROR = 1e-2


def row(case: Case, kernels: Kernels, repetitions: int) -> str:
    """Times and rates of a case as a row of a table. Exits if results differ from PyTorch's or between runs."""
    x = Inputs(case, torch.bfloat16, seed=5)
    passes = kernels.passes(x)
    made = []
    for _ in range(2):
        for launch in passes.values():
            launch()
        made.append([t.clone() for t in (x.y, x.dq, x.dk, x.dv)])
    errors = x.errors()
    # Written so that NaN fails.
    if not all(error < MOST_ERROR for error in errors):
        sys.exit(f"error: {case}: results differ from PyTorch's by {errors}")
    if not all(map(torch.equal, *made)):
        sys.exit(f"error: {case}: results differ from run to run")
    ms = {name: median_ms(launch, repetitions) for name, launch in passes.items()}
    grad = ms["delta"] + ms["queries"] + ms["keys"]
    flops = case.flops() / 1e9
    forwards, backwards = zip(*(torch_ms(x, backend, repetitions) for backend in BACKENDS.values()))
    times = [ms["forward"], *forwards, ms["delta"], ms["queries"], ms["keys"], grad, *backwards]
    rates = [flops / forward for forward in (ms["forward"], *forwards)]
    rates += [2.5 * flops / backward for backward in (grad, *backwards)]
    cells = [f"{1000 * t:.0f}" for t in times] + [f"{rate:.0f}" for rate in rates] + [f"{max(errors):.1e}"]
    return f"| {case} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=Path, default=KERNELS, help="folder of PTX files")
    parser.add_argument("--repetitions", type=int, default=30)
    arguments = parser.parse_args()
    torch.zeros(1, device="cuda")
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, bf16, microseconds and TFLOP/s\n")
    titles = ["samples x heads x tokens x channels", "forward", *BACKENDS, "delta", "queries", "keys", "gradient", *BACKENDS]
    titles += ["forward TFLOP/s", *BACKENDS, "gradient TFLOP/s", *BACKENDS, "largest error"]
    print(f"| {' | '.join(titles)} |\n|{' --- |' * len(titles)}")
    of_size = {channels: Kernels(arguments.kernels, channels) for channels in sorted({c.channels for c in CASES})}
    for case in CASES:
        print(row(case, of_size[case.channels], arguments.repetitions), flush=True)
        torch.cuda.empty_cache()
    for channels in (64, 128):
        print("\n" + "\n".join(of_size[channels].figures()))


if __name__ == "__main__":
    main()
