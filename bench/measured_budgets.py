#!/usr/bin/env python3
"""Checks predictions of plans: the order of their times, and their memory to the byte.

For each case, budgets are spaced evenly from the smallest that works to the smallest that gives the fastest plan (`plimsoll plan
--curve`), without those that give the same plan. Only recomputation differs: micro-batch and rows of logits and scores are fixed,
so losses must be equal too. Each budget is a process of its own, `plimsoll bench`; rounds alternate in direction, and each
process is paired with one without recomputation: a shared machine is slower for minutes at a time, which affects both.

    predicted   the plan's predicted step, from `plimsoll calibrate` on this machine
    measured    the fastest step of a process relative to that of its pair, the median over the rounds, times the fastest of all pairs:
                the step's time while the machine is at its best
    order       Spearman's rank correlation of the two; the goal is at least 0.9
    CPU         the minimum CPU time of a whole process, user and system. It includes initialization and warm-up, which take the same
                time at every budget; on a busy machine its order is more reliable, so its correlation is reported as well
    bytes       planned: `peak_bytes`. Measured: the highest byte used, which must be equal, and the arena's resident pages, whose
                number must match
    saved       bytes that the forward pass stores for the backward pass: `saved_activations_bytes`

usage:  plimsoll calibrate --threads 2
        python bench/measured_budgets.py --plimsoll target/release/plimsoll [--rounds 5] [--threads 2] [--steps 3]
            [--cases gpt2-124m,smollm2-135m,small] [--seq-len 256] [--micro-batch 4] [--out bench/results/NAME.md]
needs:  Linux and Python

stdout is Markdown, which --out also writes to a file; stderr shows progress.
Exit status: 0, or 1 if a correlation is below the goal, or bytes or a loss differ.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

from compare_memory import BUDGET_GIB, config_of
from compare_torch import BUSY_SHARE, Case, Preset, command_line, cpu_model, memory_gib, mib, names_of, positive, publish, run
from compare_torch import CASES as TIMED_CASES

LEAST_CORRELATION = 0.9
PAGE_BYTES = 4096
# Bytes per parameter: itself and AdamW's two moments.
STATE_BYTES = 12
# Fixed, because fewer rows in small budgets would change the order of sums.
ROWS = ("--head-chunk", "256", "--attention-rows", "64")
CASES = {
    "gpt2-124m": TIMED_CASES["gpt2-124m"],
    "smollm2-135m": TIMED_CASES["smollm2-135m"],
    "small": Case(4, 256, 4, 2000, positions=128, seq_len=128, micro_batch=4, bias=True),
}


@dataclass
class AtBudget:
    """Result of `plimsoll bench` at a budget. All rounds have the same plan."""

    budget_bytes: int
    planned_bytes: int
    saved_bytes: int
    # Above weights and moments.
    rise_bytes: int
    predicted_ms: float
    step_ms: list[float] = field(default_factory=list)
    measured_bytes: set[int] = field(default_factory=set)
    losses: set[float] = field(default_factory=set)
    # Fastest steps relative to those of their pairs.
    relative: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    is_resident: bool = True
    others_share: float = 0.0

    @property
    def fastest_ms(self) -> float:
        return min(self.step_ms)

    @property
    def is_exact(self) -> bool:
        return self.is_resident and self.measured_bytes == {self.planned_bytes}


class Bench:
    """A case with its flags for `plimsoll plan` and `plimsoll bench`."""

    def __init__(self, case: Case | Preset, folder: Path, arguments: argparse.Namespace):
        self.case, self.arguments = case, arguments
        model = case.model if isinstance(case, Preset) else str(folder / "config.json")
        if isinstance(case, Case):
            (folder / "config.json").write_text(json.dumps(config_of(case)))
        self.flags = ["--device", "cpu", "--model", model, "--seq-len", str(case.seq_len), *ROWS, "--precision", "fp32"]
        self.flags += ["--micro-batch", str(case.micro_batch), "--threads", str(arguments.threads), "--vram-margin", "0"]

    def budgets(self) -> list[int]:
        """Budgets of distinct plans, ascending."""
        whole = ["--global-batch", str(self.case.micro_batch), "--vram", str(BUDGET_GIB)]
        command = [self.arguments.plimsoll, "plan", *self.flags, *whole, "--curve", "--json"]
        points = run(command, self.arguments.threads)[0]["curve"]
        by_step = {point["step_ms"]: point["budget_bytes"] for point in reversed(points)}
        return sorted(by_step.values())

    def measure(self, budget_bytes: int | None) -> AtBudget:
        """Runs one process at a budget, or without recomputation if it is None."""
        counts = ["--steps", str(self.arguments.steps), "--warmup", "1", "--blas", "off", "--json"]
        room = ["--vram", str(BUDGET_GIB), "--recompute", "none"]
        room = room if budget_bytes is None else ["--vram", f"{budget_bytes}B"]
        output, usage = run([self.arguments.plimsoll, "bench", *self.flags, *room, *counts], self.arguments.threads)
        plan, measured, predicted = output["plan"], output["measured"], output["predicted"]
        if predicted["times"].startswith("times are estimates"):
            sys.exit(f"error: {predicted['times']}")
        resident, pages = measured["arena_resident_peak_bytes"], -(-plan["peak_bytes"] // PAGE_BYTES)
        rise_bytes = plan["peak_bytes"] - STATE_BYTES * output["model"]["parameters"]
        saved_bytes, predicted_ms = output["saved_activations_bytes"], predicted["step_ms"]
        found = AtBudget(plan["budget_bytes"], plan["peak_bytes"], saved_bytes, rise_bytes, predicted_ms)
        found.step_ms, found.losses = output["step_ms"], {output["loss"]}
        found.measured_bytes, found.is_resident = {measured["touched_bytes"]}, resident in (None, pages * PAGE_BYTES)
        found.others_share, found.cpu_s = usage.others_share, [usage.cpu_s]
        return found


def in_rounds(name: str, bench: Bench, budgets: list[int], rounds: int) -> tuple[AtBudget, list[AtBudget]]:
    """Measures without recomputation and at each budget, in pairs."""
    found = {}
    for number in range(rounds):
        is_odd = number % 2 == 1
        for budget in budgets[::-1] if is_odd else budgets:
            pair = [bench.measure(of) for of in ([None, budget] if is_odd else [budget, None])]
            again, plain = pair[::-1] if is_odd else pair
            again.relative = [again.fastest_ms / plain.fastest_ms]
            print(
                f"{name} round {number + 1}/{rounds}, {again.planned_bytes:,} bytes: {again.fastest_ms:.1f} ms next to "
                f"{plain.fastest_ms:.1f}, predicted {again.predicted_ms:.1f} next to {plain.predicted_ms:.1f}",
                file=sys.stderr,
            )
            take(found, None, plain)
            take(found, budget, again)
    return found[None], [found[budget] for budget in budgets]


def take(found: dict[int | None, AtBudget], budget: int | None, again: AtBudget) -> None:
    """Adds a process's result to those of the same budget."""
    first = found.setdefault(budget, again)
    if first is again:
        return
    if (first.planned_bytes, first.predicted_ms) != (again.planned_bytes, again.predicted_ms):
        sys.exit(f"error: two plans within {first.budget_bytes} bytes: was the machine calibrated in between?")
    first.step_ms += again.step_ms
    first.relative += again.relative
    first.cpu_s += again.cpu_s
    first.losses |= again.losses
    first.measured_bytes |= again.measured_bytes
    first.is_resident &= again.is_resident
    first.others_share = max(first.others_share, again.others_share)


def ranks(values: list[float]) -> list[float]:
    """Ranks from 1; equal values share the mean of their ranks."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) + 1) / 2 for value in values]


def spearman(predicted: list[float], measured: list[float]) -> float:
    """Spearman's rank correlation."""
    return statistics.correlation(ranks(predicted), ranks(measured))


def main() -> None:
    arguments = parse_arguments()
    lines = [
        "# Steps at budgets, predicted and measured",
        "",
        f"- Machine: {cpu_model()}, {os.cpu_count()} cores, {memory_gib():.0f} GiB",
        f"- Date: {date.today().isoformat()}",
        f"- {arguments.threads} threads; {arguments.rounds} rounds of {arguments.steps} steps; float32, gradients clipped",
        f"- Command: `{command_line()}`",
    ]
    all_hold = True
    for name in arguments.cases:
        table, holds = measured_case(name, arguments)
        lines += ["", f"## {name}", "", *table]
        all_hold &= holds
    text = "\n".join(lines) + "\n"
    publish(text, arguments.out)
    sys.exit(0 if all_hold else 1)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares steps and bytes at many budgets with predictions.")
    add_arguments(parser, rounds=5)
    return parser.parse_args()


def add_arguments(parser: argparse.ArgumentParser, rounds: int) -> None:
    """Adds the arguments shared with compare_budget.py."""
    parser.add_argument("--plimsoll", required=True, metavar="PATH", help="the plimsoll binary, built for release")
    parser.add_argument("--rounds", type=positive, default=rounds, help="processes per budget")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--steps", type=positive, default=3, help="measured steps per process")
    known, default = names_of("case", CASES), ["gpt2-124m", "smollm2-135m"]
    parser.add_argument("--cases", type=known, default=default, metavar="A,B", help=f"cases: {', '.join(CASES)}")
    parser.add_argument("--seq-len", type=positive, help="tokens per sample; default: the case's")
    parser.add_argument("--micro-batch", type=positive, help="samples per step; default: the case's")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="also write the report to this file")


def case_of(name: str, arguments: argparse.Namespace) -> Case | Preset:
    """The case with the requested lengths."""
    case = CASES[name]
    seq_len, micro_batch = arguments.seq_len or case.seq_len, arguments.micro_batch or case.micro_batch
    case = replace(case, seq_len=seq_len, micro_batch=micro_batch)
    return replace(case, positions=max(case.positions, seq_len)) if isinstance(case, Case) else case


def measured_case(name: str, arguments: argparse.Namespace) -> tuple[list[str], bool]:
    case = case_of(name, arguments)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(case, Path(folder), arguments)
        plain, points = in_rounds(name, bench, bench.budgets(), arguments.rounds)
    steps_ms = [statistics.median(point.relative) * plain.fastest_ms for point in points]
    predicted_ms = [point.predicted_ms for point in points]
    rho = spearman(predicted_ms, steps_ms)
    rho_of_cpu = spearman(predicted_ms, [min(point.cpu_s) for point in points])
    is_exact, is_equal = all(p.is_exact for p in points), all(p.losses == plain.losses for p in [plain, *points])
    of_predicted, of_measured = ranks(predicted_ms), ranks(steps_ms)
    worst = max(point.others_share for point in [plain, *points])
    columns = ["budget, MiB", "planned bytes", "measured bytes", "saved, MiB", "predicted ms", "measured ms"]
    columns += ["measured / predicted", "CPU s", "ranks", "loss as without recomputation"]
    table = [
        case.describe(),
        "",
        f"| {' | '.join(columns)} |",
        f"|{' ---: |' * len(columns)}",
    ]
    for point, step_ms, *both in zip(points, steps_ms, of_predicted, of_measured):
        cells = [mib(point.budget_bytes), f"{point.planned_bytes:,}", " ".join(f"{b:,}" for b in point.measured_bytes)]
        cells += [mib(point.saved_bytes), f"{point.predicted_ms:.1f}", f"{step_ms:.1f}"]
        cells += [f"{step_ms / point.predicted_ms:.3f}", f"{min(point.cpu_s):.2f}"]
        cells += [" / ".join(f"{rank:g}" for rank in both)]
        table.append(f"| {' | '.join([*cells, 'yes' if point.losses == plain.losses else 'NO'])} |")
    table += [
        "",
        f"Without recomputation: {plain.planned_bytes:,} bytes, {mib(plain.saved_bytes)} MiB saved, predicted "
        f"{plain.predicted_ms:.1f} ms, measured {plain.fastest_ms:.1f} ms.",
        f"Rank correlation over {len(points)} budgets: **{rho:.3f}**{' BELOW' if rho < LEAST_CORRELATION else ''} (goal: "
        f"{LEAST_CORRELATION}); by CPU time {rho_of_cpu:.3f}. Planned bytes equal measured bytes: {'yes' if is_exact else 'NO'}. Losses are equal to the "
        f"bit: {'yes' if is_equal else 'NO'}. Other processes used at most {worst:.0%} of the cores"
        f"{' BUSY' if worst > BUSY_SHARE else ''}.",
    ]
    return table, rho >= LEAST_CORRELATION and is_exact and is_equal


if __name__ == "__main__":
    main()
