#!/usr/bin/env python3
"""Compares the memory that Plimsoll plans with what PyTorch uses: the same training step, in float32, without recomputation.

The goal is a plan whose peak is at most 0.8 of PyTorch's. PyTorch's peak is that of a whole step after the first (forward,
backward, clipping, fused AdamW with existing moments, zero_grad), on the CPU, with torch_step.py's model. It counts tensors only, not
libraries or memory that the allocator keeps after frees. It is measured in two ways, each over a step of its own in the same
process, a new one for each case:

    allocator   the maximum running sum of the CPU allocator's allocations and frees in the profiler, added to the parameters,
                moments and batch from before the step; includes temporaries inside operations. The ratio and the exit status
                use this one
    storages    the maximum sum over live storages, tracked by a dispatch mode and weak references, starting with all tensors
                that the garbage collector knows. It misses temporaries inside operations, so it may be lower; the table says
                DISAGREE if the two differ by more than 5 %

Plimsoll's peak is `peak_bytes` of `plimsoll plan --recompute none`: everything in its arena, from weights to scratch.
Also listed, though not comparable: that of `--recompute cheap`, which recomputes norms and activations.

usage:  python bench/compare_memory.py [--plimsoll target/release/plimsoll] [--threads 2]
            [--cases gpt2-4x256,char-12x256] [--out bench/results/NAME.md]
needs:  Linux, and torch and numpy in this Python

stdout is a Markdown table, which --out also writes to a file; stderr shows progress.
Exit status: 0, or 1 if a ratio is above 0.8.
"""

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from compare_torch import CASES as TIMED_CASES
from compare_torch import MIB, REPOSITORY, Case, command_line, cpu_model, memory_gib, names_of, positive, run

HIGHEST_RATIO = 0.8
# Largest relative difference of the two ways to measure PyTorch.
HIGHEST_DIFFERENCE = 0.05
# More than any case needs, so that plans are not limited by it.
BUDGET_GIB = 60

GPT2 = TIMED_CASES["gpt2-124m"]
CASES = {
    "gpt2-4x256": GPT2,
    "char-12x256": TIMED_CASES["char-6x384"],
    "gpt2-1x1024": replace(GPT2, micro_batch=1, seq_len=1024),
    "gpt2-medium-1x512": replace(GPT2, layers=24, hidden=1024, heads=16, micro_batch=1, seq_len=512),
}


@dataclass(frozen=True)
class Row:
    """Result of one case."""

    name: str
    allocator_bytes: int
    storages_bytes: int
    plan_bytes: int
    cheap_bytes: int

    @property
    def ratio(self) -> float:
        return self.plan_bytes / self.allocator_bytes

    @property
    def too_high(self) -> bool:
        return self.ratio > HIGHEST_RATIO

    def cells(self) -> str:
        difference = self.storages_bytes / self.allocator_bytes - 1
        disagree = " DISAGREE" if abs(difference) > HIGHEST_DIFFERENCE else ""
        cells = [
            self.name,
            f"{self.allocator_bytes:,}",
            f"{self.storages_bytes:,} ({difference:+.1%}){disagree}",
            f"{self.plan_bytes:,}",
            f"**{self.ratio:.3f}**" + (f" ABOVE {HIGHEST_RATIO}" if self.too_high else ""),
            f"{self.cheap_bytes:,}",
            f"{self.cheap_bytes / self.allocator_bytes:.3f}",
        ]
        return f"| {' | '.join(cells)} |"


def main() -> None:
    arguments = parse_arguments()
    if arguments.measure:
        print(json.dumps(measure_torch(CASES[arguments.measure], arguments.threads)))
        return
    rows, torch_version = [], ""
    for name in arguments.cases:
        row, torch_version = compare(name, arguments)
        rows.append(row)
    text = report(arguments, rows, torch_version)
    print(text, end="")
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text)
    sys.exit(any(row.too_high for row in rows))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares the memory of Plimsoll's plan with what PyTorch holds.")
    binary = Path(os.path.relpath(REPOSITORY / "target/release/plimsoll"))
    parser.add_argument("--plimsoll", default=str(binary), metavar="PATH", help=f"default: {binary}")
    parser.add_argument("--threads", type=positive, default=2)
    known, every = names_of("case", CASES), list(CASES)
    parser.add_argument("--cases", type=known, default=every, metavar="A,B", help=", ".join(every))
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="also write the table to this file")
    # Internal: PyTorch's side of one case, which this script runs in a process of its own.
    parser.add_argument("--measure", choices=list(CASES), help=argparse.SUPPRESS)
    return parser.parse_args()


def compare(name: str, arguments: argparse.Namespace) -> tuple[Row, str]:
    """A case's row, and PyTorch's version."""
    case = CASES[name]
    # First, because it is fast and fails immediately if the binary is missing.
    plan, cheap = (plan_of(case, level, arguments) for level in ("none", "cheap"))
    command = [sys.executable, str(Path(__file__).resolve()), "--measure", name, "--threads", str(arguments.threads)]
    torch, _ = run(command, arguments.threads)
    if torch["parameters"] != plan["model"]["parameters"]:
        sys.exit(f"error: {plan['model']['parameters']} parameters in the plan, {torch['parameters']} in PyTorch")
    row = Row(name, torch["allocator_bytes"], torch["storages_bytes"], plan["plan"]["peak_bytes"], cheap["plan"]["peak_bytes"])
    print(
        f"{name}: PyTorch holds {torch['held_bytes'] / MIB:.1f} MiB before the step and at most "
        f"{row.allocator_bytes / MIB:.1f} MiB in it, in {torch['peak_phase']}; "
        f"the plan's peak is {row.plan_bytes / MIB:.1f} MiB",
        file=sys.stderr,
    )
    return row, torch["torch"]


def plan_of(case: Case, recompute: str, arguments: argparse.Namespace) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.json")
        config.write_text(json.dumps(config_of(case)))
        command = [
            *(arguments.plimsoll, "plan", "--json", "--model", str(config)),
            *("--micro-batch", str(case.micro_batch), "--global-batch", str(case.micro_batch)),
            *("--seq-len", str(case.seq_len), "--vram", str(BUDGET_GIB), "--recompute", recompute),
            *("--threads", str(arguments.threads)),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            sys.exit(f"error: cannot start {arguments.plimsoll}: {error.strerror}")
    if done.returncode != 0:
        sys.exit(f"error: exit status {done.returncode} from plimsoll plan\n{done.stderr[-2000:]}")
    output = json.loads(done.stdout)
    found = {key: output["plan"][key] for key in ("micro_batch", "accumulation", "seq_len")}
    if found != {"micro_batch": case.micro_batch, "accumulation": 1, "seq_len": case.seq_len}:
        sys.exit(f"error: the case asks for {case.describe()}, the plan has {found}")
    return output


def config_of(case: Case) -> dict:
    """The model as a config.json with Hugging Face's keys; `bias` is Plimsoll's. No dropout, as in torch_step.py."""
    return {
        "model_type": "gpt2",
        "vocab_size": case.vocab_size,
        "n_positions": case.positions,
        "n_embd": case.hidden,
        "n_layer": case.layers,
        "n_head": case.heads,
        "bias": case.bias,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
    }


def measure_torch(case: Case, threads: int) -> dict:
    """PyTorch's side: the peak of the second step by the allocator, and of the third by storages."""
    # Imported here, so that the comparing process does not need the memory.
    import torch
    from torch_step import Gpt, held

    torch.set_num_threads(threads)
    torch.manual_seed(1337)
    model = Gpt(case.layers, case.hidden, case.heads, case.vocab_size, case.positions, case.bias)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    batch = torch.randint(0, case.vocab_size, (2, case.micro_batch, case.seq_len))

    def step() -> None:
        """The step of torch_step.py, always on the same batch."""
        with torch.profiler.record_function("forward"):
            loss = model(*batch)
        with torch.profiler.record_function("backward"):
            loss.backward()
        with torch.profiler.record_function("optimizer"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    step()
    gc.collect()
    state = [value for values in optimizer.state.values() for value in values.values() if torch.is_tensor(value)]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    held_bytes = storage_bytes([*model.parameters(), *model.buffers(), *gradients, *state, batch])
    risen = held(step)
    return {
        "torch": torch.__version__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "held_bytes": held_bytes,
        "allocator_bytes": held_bytes + risen.peak_bytes,
        "peak_phase": risen.peak_phase,
        "storages_bytes": storages_peak(step),
    }


def storage_bytes(tensors: Iterable["torch.Tensor"]) -> int:
    """Bytes of the tensors' storages, each counted once."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def storages_peak(step: Callable[[], None]) -> int:
    """Maximum bytes in live storages during a step, including those from before the step."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class LiveStorages(TorchDispatchMode):
        """Tracks each storage from the operation that returns it until it is freed."""

        def __init__(self):
            super().__init__()
            self.live, self.total_bytes, self.peak_bytes = {}, 0, 0

        def add(self, tensor: torch.Tensor) -> None:
            # Once created, Python's object for a storage lives as long as the storage.
            storage = tensor.untyped_storage()
            key = id(storage)
            if key in self.live:
                return
            size_bytes = storage.nbytes()

            def end(_):
                del self.live[key]
                self.total_bytes -= size_bytes

            self.live[key] = weakref.ref(storage, end)
            self.total_bytes += size_bytes
            self.peak_bytes = max(self.peak_bytes, self.total_bytes)

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            output = function(*args, **(kwargs or {}))
            for leaf in tree_leaves(output):
                if isinstance(leaf, torch.Tensor):
                    self.add(leaf)
            return output

    storages = LiveStorages()
    gc.collect()
    for thing in gc.get_objects():
        # Not isinstance, which reads attributes of some lazy modules.
        if issubclass(type(thing), torch.Tensor):
            storages.add(thing)
    with storages:
        step()
    return storages.peak_bytes


def report(arguments: argparse.Namespace, rows: list[Row], torch_version: str) -> str:
    lines = [
        "# Plimsoll and PyTorch: memory of one training step",
        "",
        f"- PyTorch {torch_version} on {cpu_model()}, {os.cpu_count()} cores, {memory_gib():.0f} GiB, "
        f"{platform.machine()}; {arguments.threads} threads",
        "- float32, no dropout, no recomputation; PyTorch eager with fused AdamW, the second step or later",
        f"- Date: {date.today().isoformat()}",
        f"- Command: `{command_line()}`",
        *(f"- {row.name}: {CASES[row.name].describe()}" for row in rows),
        "",
        "| case | PyTorch bytes (allocator) | PyTorch bytes (storages) | plan bytes | ratio | cheap recompute | its ratio |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(row.cells() for row in rows),
        "",
        "Ratio: plan / PyTorch by its allocator, lower is better; the goal is at most "
        f"{HIGHEST_RATIO}. Storages: a second way to measure, which misses temporaries inside operations; in "
        f"parentheses its difference from the allocator's, DISAGREE above {HIGHEST_DIFFERENCE:.0%}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
