#!/usr/bin/env python3
"""Measures plans within budgets on an NVIDIA card: activations chosen tensor by tensor, compared with recomputing whole blocks.

For each case, budgets are spaced evenly from the smallest that works to the smallest that gives the fastest plan (`plimsoll plan
--curve`). Only recomputation and offload differ: micro-batch and rows of logits are fixed, and the optimizer stays on the card,
so losses must be equal to the bit. Each measurement is a process of its own, `plimsoll bench`; the sides alternate.

    by tensor   the plan of the budget: `--recompute auto --activation-offload auto`
    by block    the fewest recomputed blocks that fit in the same budget, without offload: `--recompute N`
    predicted   the plan's predicted step, from `plimsoll calibrate` on this card
    measured    the median step of a process
    order       Spearman's rank correlation of the two, over both sides; the goal is at least 0.9
    host        planned bytes of pinned host memory for offloaded tensors
    bytes       planned: `peak_bytes`. Held: the decrease of the driver's free memory since the arena was allocated, which must be the
                plan rounded up to pages; resident pages of the host's memory are subtracted from the total that `bench` reports

usage:  plimsoll calibrate --device cuda
        python bench/card_budgets.py --plimsoll target/release/plimsoll [--cases gpt2-medium,gpt2-xl,llama-3.2-1b,t5-base]
            [--budgets 8] [--steps 4] [--out bench/results/NAME.md]
needs:  an NVIDIA card with its driver, and Python

stdout is Markdown, which --out also writes to a file; stderr shows progress.
Exit status: 0, or 1 if a correlation is below the goal, the choice by tensor is slower than by block by more than the noise,
or bytes or a loss differ.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from compare_torch import command_line, mib, names_of, positive, publish
from measured_budgets import LEAST_CORRELATION, ranks, spearman

# Differences below this are noise.
NOISE = 0.01
# Page sizes of the arena, on the card and on the host.
PAGE_BYTES = 2 * 2**20
HOST_PAGE_BYTES = 4096
HEAD_CHUNK = 2048


@dataclass(frozen=True)
class Case:
    """A preset or configuration, the number of samples per step and their length."""

    model: str
    micro_batch: int
    lengths: tuple[str, ...]
    blocks: int

    def describe(self) -> str:
        return f"{self.micro_batch} samples per step, `{' '.join(self.lengths)}`, {HEAD_CHUNK} rows of logits at a time."


CASES = {
    "gpt2-medium": Case("gpt2-medium", 16, ("--seq-len", "1024"), 24),
    "gpt2-xl": Case("gpt2-xl", 8, ("--seq-len", "1024"), 48),
    "llama-3.2-1b": Case("llama-3.2-1b", 4, ("--seq-len", "2048"), 16),
    "t5-base": Case("t5-base", 32, ("--source-len", "512", "--target-len", "512"), 24),
}


@dataclass
class Measured:
    """Result of `plimsoll bench` for a plan."""

    budget_bytes: int
    planned_bytes: int
    host_bytes: int
    saved_bytes: int
    predicted_ms: float
    step_ms: float
    loss: float
    card_pages_bytes: int

    @property
    def is_exact(self) -> bool:
        return self.card_pages_bytes == -(-self.planned_bytes // PAGE_BYTES) * PAGE_BYTES


@dataclass
class AtBudget:
    """Both sides: by tensor, and by block with the number of blocks, if that fits."""

    by_tensor: Measured
    blocks: int | None
    by_block: Measured | None

    def all(self) -> list[Measured]:
        return [self.by_tensor] if self.by_block is None else [self.by_tensor, self.by_block]


def by_block(blocks: int) -> list[str]:
    """Flags to recompute this many blocks without offload."""
    return ["--recompute", str(blocks) if blocks else "none", "--activation-offload", "off"]


class Bench:
    """A case with its flags for `plimsoll plan` and `plimsoll bench`."""

    def __init__(self, name: str, arguments: argparse.Namespace):
        self.name, self.case, self.arguments = name, CASES[name], arguments
        self.flags = ["--device", "cuda", "--model", self.case.model, *self.case.lengths, "--precision", "bf16"]
        self.flags += ["--micro-batch", str(self.case.micro_batch), "--global-batch", str(self.case.micro_batch)]
        self.flags += ["--head-chunk", str(HEAD_CHUNK), "--optimizer-offload", "0", "--vram-margin", "0"]
        self.room = ["--vram", str(arguments.room_gib)]
        self.whole = self.measure([*self.room, *by_block(0)])
        # Planned bytes by number of recomputed blocks.
        self.peaks = {0: self.whole.planned_bytes}
        # Memory of the driver, which a budget includes.
        self.driver_bytes = arguments.room_gib * 2**30 - self.whole.budget_bytes

    def ask(self, command: str, flags: list[str]) -> dict:
        words = [self.arguments.plimsoll, command, *self.flags, *flags, "--json"]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"error: {' '.join(words)}: {done.stderr}")
        return json.loads(done.stdout)

    def measure(self, flags: list[str]) -> Measured:
        output = self.ask("bench", [*flags, "--steps", str(self.arguments.steps), "--warmup", "2"])
        plan, measured, predicted = output["plan"], output["measured"], output["predicted"]
        if predicted["times"].startswith("times are estimates"):
            sys.exit(f"error: {predicted['times']}")
        host_pages_bytes = -(-plan["host_bytes"] // HOST_PAGE_BYTES) * HOST_PAGE_BYTES
        return Measured(
            plan["budget_bytes"],
            plan["peak_bytes"],
            plan["host_bytes"],
            output["saved_activations_bytes"],
            predicted["step_ms"],
            measured["step_ms_p50"],
            output["loss"],
            measured["arena_resident_bytes"] - host_pages_bytes,
        )

    def budgets(self) -> list[int]:
        """Budgets spaced evenly between the ends of the curve, ends included."""
        points = self.ask("plan", [*self.room, "--curve"])["curve"]
        fastest = min(point["step_ms"] for point in points)
        least = points[0]["budget_bytes"]
        most = min(point["budget_bytes"] for point in points if point["step_ms"] == fastest)
        parts = max(1, self.arguments.budgets - 1)
        return [least + (most - least) * part // parts for part in range(self.arguments.budgets)]

    def planned_with(self, blocks: int) -> int:
        if blocks not in self.peaks:
            self.peaks[blocks] = self.ask("plan", [*self.room, *by_block(blocks)])["plan"]["peak_bytes"]
        return self.peaks[blocks]

    def fewest_blocks(self, budget_bytes: int) -> int | None:
        """The fewest recomputed blocks that fit; None if even all do not."""
        low, high = 0, self.case.blocks
        if self.planned_with(high) > budget_bytes:
            return None
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.planned_with(middle) <= budget_bytes else (middle + 1, high)
        return low

    def at(self, budget_bytes: int) -> AtBudget:
        vram = ["--vram", f"{budget_bytes + self.driver_bytes}B"]
        blocks = self.fewest_blocks(budget_bytes)
        other = None if blocks is None else self.measure([*vram, *by_block(blocks)])
        by_tensor = self.measure(vram)
        print(
            f"{self.name} at {mib(budget_bytes)} MiB: by tensor {by_tensor.step_ms:.2f} ms, predicted {by_tensor.predicted_ms:.2f}"
            + (f"; {blocks} blocks {other.step_ms:.2f} ms, predicted {other.predicted_ms:.2f}" if other else ""),
            file=sys.stderr,
            flush=True,
        )
        return AtBudget(by_tensor, blocks, other)


def measured_case(name: str, arguments: argparse.Namespace) -> tuple[list[str], bool]:
    bench = Bench(name, arguments)
    points = [bench.at(budget) for budget in bench.budgets()]
    whole, both = bench.whole, [point for point in points if point.by_block]
    every = [whole, *(side for point in points for side in point.all())]
    rho = spearman([side.predicted_ms for side in every], [side.step_ms for side in every])
    errors = [abs(side.step_ms / side.predicted_ms - 1) for side in every]
    is_exact, is_equal = all(side.is_exact for side in every), all(side.loss == whole.loss for side in every)
    is_faster = all(point.by_tensor.step_ms <= point.by_block.step_ms * (1 + NOISE) for point in both)
    columns = ["budget, MiB", "planned bytes", "held bytes", "saved, MiB", "on the host, MiB", "predicted ms", "measured ms"]
    columns += ["blocks recomputed", "predicted ms", "measured ms", "by tensor : by block", "loss"]
    table = [f"{bench.case.describe()}", "", f"| {' | '.join(columns)} |", f"|{' ---: |' * len(columns)}"]
    for point in points:
        side = point.by_tensor
        cells = [mib(side.budget_bytes), f"{side.planned_bytes:,}", f"{side.card_pages_bytes:,}", mib(side.saved_bytes)]
        cells += [mib(side.host_bytes), f"{side.predicted_ms:.1f}", f"{side.step_ms:.1f}"]
        if point.by_block is None:
            cells += ["does not fit", "", "", ""]
        else:
            other = point.by_block
            ratio = f"{side.step_ms / other.step_ms:.3f}"
            cells += [str(point.blocks), f"{other.predicted_ms:.1f}", f"{other.step_ms:.1f}", ratio]
        table.append(f"| {' | '.join([*cells, 'equal' if all(s.loss == whole.loss for s in point.all()) else 'NO'])} |")
    table += [
        "",
        f"Without recomputation and offload: {whole.planned_bytes:,} bytes, {mib(whole.saved_bytes)} MiB saved, predicted "
        f"{whole.predicted_ms:.1f} ms, measured {whole.step_ms:.1f} ms.",
        f"Rank correlation over {len(every)} plans: **{rho:.3f}**{' BELOW' if rho < LEAST_CORRELATION else ''} (goal: "
        f"{LEAST_CORRELATION}); median error of predictions {statistics.median(errors):.1%}, at most {max(errors):.1%}. By "
        f"tensor is never slower than by block: {'yes' if is_faster else 'NO'}. Held are the planned bytes, rounded up to pages: "
        f"{'yes' if is_exact else 'NO'}. Losses are equal to the bit: {'yes' if is_equal else 'NO'}.",
    ]
    return table, rho >= LEAST_CORRELATION and is_exact and is_equal and is_faster


def main() -> None:
    arguments = parse_arguments()
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    card = subprocess.run(query, capture_output=True, text=True).stdout.strip() if shutil.which(query[0]) else "no nvidia-smi"
    lines = [
        "# Budgets on a card, predicted and measured",
        "",
        f"- Card and driver: {card}",
        f"- Date: {date.today().isoformat()}",
        f"- Medians of {arguments.steps} steps; bf16",
        f"- Command: `{command_line()}`",
    ]
    all_hold = True
    for name in arguments.cases:
        table, holds = measured_case(name, arguments)
        lines += ["", f"## {name}", "", *table]
        all_hold &= holds
        # Keep the results so far if a later case fails or time runs out.
        if arguments.out:
            arguments.out.write_text("\n".join(lines) + "\n")
    publish("\n".join(lines) + "\n", arguments.out)
    sys.exit(0 if all_hold else 1)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares plans within budgets on a card with whole blocks recomputed.")
    parser.add_argument("--plimsoll", required=True, metavar="PATH", help="the plimsoll binary, built for release")
    parser.add_argument("--budgets", type=positive, default=8)
    parser.add_argument("--steps", type=positive, default=4, help="measured steps in each process")
    parser.add_argument("--room-gib", type=positive, default=64, metavar="GIB", help="memory of the card that suffices for all cases")
    known, default = names_of("case", CASES), ["gpt2-medium", "gpt2-xl", "llama-3.2-1b", "t5-base"]
    parser.add_argument("--cases", type=known, default=default, metavar="A,B", help=f"cases: {', '.join(CASES)}")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="also write the report to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
