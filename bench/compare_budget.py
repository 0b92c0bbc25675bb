#!/usr/bin/env python3
"""Compares trading memory for time: Plimsoll's plans within budgets and torch.compile's activation_memory_budget.

The same training step on the same CPU in float32, with AdamW: forward, backward, clipping, update. PyTorch's budget is a
fraction, 0 to 1, of what its default saves; Plimsoll's are bytes, evenly spaced from the smallest that works to the smallest that
gives the fastest plan. Each measurement is a process of its own; the sides alternate, and so does the direction of rounds.

    saved       bytes that the forward pass stores for the backward pass. PyTorch's: all storages that autograd's graph of the
                compiled step holds, each counted once, in an additional untimed step; without those of parameters and batch.
                The allocator's sum at the end of the forward pass must agree within 1 %, else the table says DISAGREE.
                Plimsoll's: tensors of the plan that the forward pass writes and a later pass reads
                (`saved_activations_bytes`); `bench` checks that the arena that holds them has the planned size
    step        the fastest step of all rounds, since other processes only make steps slower. In the curves it is relative to the
                fastest of its own side: it shows the cost of memory, not which side is faster
    rise        maximum of the step's memory above weights and moments: saved activations, gradients, scratch, and recomputed
                tensors. PyTorch's from its allocator, Plimsoll's from the plan. It decides whether a step fits. Both clip
                gradients, so both hold all of them at the end of the backward pass
    below       whether, for a point of PyTorch's, some point of Plimsoll's saves no more bytes (or rises no further) and takes no
                longer, each time relative to its own fastest. Empty if PyTorch's saves less than Plimsoll can: Plimsoll keeps
                the inputs of blocks, PyTorch may recompute the whole model at once

usage:  plimsoll calibrate --threads 2
        python bench/compare_budget.py --plimsoll target/release/plimsoll [--rounds 3] [--threads 2] [--steps 3] [--budgets 11]
            [--cases gpt2-124m,smollm2-135m,small] [--seq-len 256] [--micro-batch 4] [--out bench/results/NAME.md]
needs:  Linux, a C++ compiler, and a Python with torch, numpy and transformers (this one, or the one given by --python)

stdout is Markdown, which --out also writes to a file, with a picture NAME.svg next to it; stderr shows progress.
Exit status: 0, or 1 if Plimsoll is not below PyTorch in saved bytes at every budget, or slower with more memory.
"""

import argparse
import os
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from budget_picture import Curve, Panel, picture
from compare_torch import BUSY_SHARE, MIB, TORCH_STEP, Case, Preset, command_line, cpu_model, memory_gib, mib, positive, publish, run
from measured_budgets import AtBudget, Bench, add_arguments, case_of, take

# Largest relative difference of the two ways to count what PyTorch saves.
HIGHEST_DIFFERENCE = 0.01
# Differences below this are noise.
NOISE = 0.01


@dataclass
class Torch:
    """Result of torch_step.py at a budget."""

    part: float
    saved_bytes: int
    allocator_bytes: int
    rise_bytes: int
    rise_phase: str
    torch: str
    step_ms: list[float] = field(default_factory=list)
    others_share: float = 0.0

    @property
    def fastest_ms(self) -> float:
        return min(self.step_ms)

    @property
    def disagrees(self) -> bool:
        return abs(self.saved_bytes - self.allocator_bytes) > HIGHEST_DIFFERENCE * self.allocator_bytes + MIB / 64


@dataclass
class Compared:
    """A case's points, by ascending budget."""

    case: Case | Preset
    torch: list[Torch]
    own: list[AtBudget]

    def relative(self, side: list[Torch] | list[AtBudget]) -> list[float]:
        least = min(point.fastest_ms for point in side)
        return [point.fastest_ms / least for point in side]

    def own_within(self, what: str, point: Torch) -> float | None:
        """Relative time of Plimsoll's fastest point with at most as many bytes as a point of PyTorch's."""
        own = zip(self.own, self.relative(self.own))
        limit = getattr(point, what)
        return min((time for own_point, time in own if getattr(own_point, what) <= limit), default=None)

    def below(self, what: str) -> list[bool | None]:
        """Whether Plimsoll is below, at each of PyTorch's budgets; None if it cannot have that few bytes."""
        found = [(self.own_within(what, point), time) for point, time in zip(self.torch, self.relative(self.torch))]
        return [None if own is None else own <= time + NOISE for own, time in found]


def slower_with_more(relative: list[float]) -> float:
    """The largest slowdown as memory grows."""
    return max((relative[j] - min(relative[: j + 1]) for j in range(len(relative))), default=0.0)


def main() -> None:
    arguments = parse_arguments()
    compared = {name: measure(name, arguments) for name in arguments.cases}
    text = report(arguments, compared)
    publish(text, arguments.out)
    if arguments.out:
        arguments.out.with_suffix(".svg").write_text(picture([panel(name, one) for name, one in compared.items()]))
    holds = all(all(one.below("saved_bytes")) and slower_with_more(one.relative(one.own)) <= NOISE for one in compared.values())
    sys.exit(0 if holds else 1)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares plans within budgets with torch.compile's memory budget.")
    add_arguments(parser, rounds=3)
    parser.add_argument("--budgets", type=positive, default=11, help="number of PyTorch's budgets from 0 to 1, and roughly of Plimsoll's")
    parser.add_argument("--python", default=sys.executable, help="Python with torch; default: this one")
    return parser.parse_args()


def measure(name: str, arguments: argparse.Namespace) -> Compared:
    case = case_of(name, arguments)
    last = max(arguments.budgets - 1, 1)
    parts = [number / last for number in range(arguments.budgets)]
    torch, own = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(case, Path(folder), arguments)
        budgets = bench.budgets()
        budgets = sorted({budgets[round(part * (len(budgets) - 1))] for part in parts})
        for number in range(arguments.rounds):
            backwards = slice(None, None, -1 if number % 2 else 1)
            for part in parts[backwards]:
                join(torch, run_torch(case, part, arguments))
                say(name, number, arguments, f"PyTorch {part:.2f}", torch[part])
            for budget in budgets[backwards]:
                take(own, budget, bench.measure(budget))
                say(name, number, arguments, "Plimsoll", own[budget])
    return Compared(case, [torch[part] for part in parts], [own[budget] for budget in budgets])


def run_torch(case: Case | Preset, part: float, arguments: argparse.Namespace) -> Torch:
    counts = ["--steps", str(arguments.steps), "--threads", str(arguments.threads), "--memory-budget", str(part)]
    command = [arguments.python, str(TORCH_STEP), *case.flags(), *case.torch_flags(), "--mode", "compile", *counts]
    output, usage = run(command, arguments.threads)
    of = output["activations"]
    point = Torch(part, of["saved_bytes"], of["after_forward_bytes"], of["peak_bytes"], of["peak_phase"], output["torch"])
    point.step_ms, point.others_share = [output["step_ms_min"]], usage.others_share
    return point


def join(found: dict[float, Torch], again: Torch) -> None:
    first = found.setdefault(again.part, again)
    if first is not again:
        first.step_ms += again.step_ms
        first.others_share = max(first.others_share, again.others_share)


def say(name: str, number: int, arguments: argparse.Namespace, side: str, point: Torch | AtBudget) -> None:
    print(
        f"{name} round {number + 1}/{arguments.rounds} {side}: saves {mib(point.saved_bytes)} MiB, "
        f"{point.fastest_ms:.1f} ms",
        file=sys.stderr,
    )


def report(arguments: argparse.Namespace, compared: dict[str, Compared]) -> str:
    version = next(iter(compared.values())).torch[0].torch
    lines = [
        "# Trading memory for time: Plimsoll and torch.compile",
        "",
        f"- Machine: {cpu_model()}, {os.cpu_count()} cores, {memory_gib():.0f} GiB",
        f"- Date: {date.today().isoformat()}",
        f"- PyTorch {version}: torch.compile, activation_memory_budget, fused AdamW; float32 and gradients clipped on both sides",
        f"- {arguments.threads} threads; {arguments.rounds} rounds in turn, {arguments.steps} measured steps in each",
        f"- Command: `{command_line()}`",
    ]
    if arguments.out:
        lines += ["", f"![both curves]({arguments.out.with_suffix('.svg').name})"]
    for name, one in compared.items():
        lines += ["", f"## {name}", "", one.case.describe(), "", *table(one), "", *verdict(one)]
    lines += [
        "",
        "Saved: bytes that the forward pass stores for the backward pass, MiB. Time: the fastest step relative to its side's fastest. "
        "Rise: maximum of a step's memory above weights and moments, MiB, and the phase of PyTorch's peak. "
        "Plimsoll within: time of its fastest point that saves, or rises, no more than PyTorch's; - if there is none. "
        "A row has one budget of each, in ascending order; they do not save the same number of bytes.",
    ]
    return "\n".join(lines) + "\n"


def table(one: Compared) -> list[str]:
    columns = ["budget", "PyTorch saved", "its step, ms", "time", "its rise", "Plimsoll within what it saves"]
    columns += ["Plimsoll within its rise", "Plimsoll's budget"]
    columns += ["saved", "step, ms", "time", "rise"]
    rows = [f"| {' | '.join(columns)} |", f"|{' ---: |' * len(columns)}"]
    own_times = one.relative(one.own)
    below = {what: one.below(what) for what in ("saved_bytes", "rise_bytes")}
    for index, (point, time) in enumerate(zip(one.torch, one.relative(one.torch))):
        cells = [f"{point.part:.2f}", mib(point.saved_bytes) + (" DISAGREE" if point.disagrees else "")]
        cells += [f"{point.fastest_ms:.0f}", f"{time:.3f}", f"{mib(point.rise_bytes)} ({point.rise_phase})"]
        for what, is_below in below.items():
            within = one.own_within(what, point)
            cells.append("-" if within is None else f"{within:.3f}" + ("" if is_below[index] else " ABOVE"))
        rows.append(f"| {' | '.join(cells + own_cells(one, own_times, index))} |")
    return rows


def own_cells(one: Compared, times: list[float], index: int) -> list[str]:
    if index >= len(one.own):
        return [""] * 5
    point = one.own[index]
    inexact = "" if point.is_exact else " NOT AS PLANNED"
    cells = [mib(point.budget_bytes) + inexact, mib(point.saved_bytes), f"{point.fastest_ms:.0f}", f"{times[index]:.3f}"]
    return [*cells, mib(point.rise_bytes)]


def verdict(one: Compared) -> list[str]:
    lines = []
    for what, words in (("saved_bytes", "saves no more bytes"), ("rise_bytes", "rises no further")):
        below = one.below(what)
        lines.append(
            f"Where Plimsoll {words}, it is below PyTorch at {below.count(True)} of {len(below)} budgets and above at "
            f"{below.count(False)}; at {below.count(None)} it cannot."
        )
    own_rise, torch_rise = (slower_with_more(one.relative(side)) for side in (one.own, one.torch))
    saved = [point.saved_bytes for point in one.torch]
    worst = max(point.others_share for point in [*one.torch, *one.own])
    lines.append(
        f"As memory grows, Plimsoll becomes slower by at most {own_rise:.1%}, "
        f"PyTorch by {torch_rise:.1%}; what PyTorch saves {'grows' if saved == sorted(saved) else 'does NOT always grow'} "
        f"with its budget. Other processes used at most {worst:.0%} of the cores{' BUSY' if worst > BUSY_SHARE else ''}."
    )
    return [" ".join(lines)]


def panel(name: str, one: Compared) -> Panel:
    def curve(label: str, side: list[Torch] | list[AtBudget]) -> Curve:
        points = zip((point.saved_bytes / MIB for point in side), one.relative(side))
        return Curve(label, sorted(points))

    return Panel(name, [curve("torch.compile", one.torch), curve("Plimsoll", one.own)])


if __name__ == "__main__":
    main()
