#!/usr/bin/env python3
"""Times planning: every preset on twelve cards, whether it fits or not.

    grid    `plimsoll plan --model PRESET --gpu CARD --json` for every preset and card, one process each
    named   cases that once were slow, several rounds; with --before alternating with that binary, and checks that the predicted step
            of the chosen plan is no longer than the other binary's

usage:  python bench/plan_times.py --plimsoll target/release/plimsoll [--before PATH] [--rounds 3] [--host-ram 24]
            [--parts grid,named] [--models gpt2,t5-xl] [--out bench/results/NAME.md]
needs:  Linux and Python

Wall time is from the start of the process to its end. CPU time, user and system, is listed as well: it is more reliable on a busy
machine. The host's memory is fixed, since plans depend on it. stdout is Markdown, which --out also writes to a file; stderr shows
progress. Exit status: 0, or 1 if a chosen plan is worse than the other binary's.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from compare_torch import command_line, cpu_model, memory_gib, names_of, positive, publish

CARDS = (
    *("GTX 1060 6GB", "RTX 2060", "RTX 3050 6GB", "RTX 3060 12GB", "RTX 3070", "RTX 3090", "RTX 4090", "RTX 5090", "T4"),
    *("V100 SXM2 32GB", "A100 SXM4 80GB", "H100 SXM5 80GB"),
)
NAMED = {
    "gpt2-xl, RTX 4090": "--model gpt2-xl --gpu 4090",
    "gpt2-xl, RTX 3070": "--model gpt2-xl --gpu 3070",
    "flan-t5-xl, RTX 4090": "--model flan-t5-xl --gpu 4090",
    "flan-t5-xl, RTX 3070": "--model flan-t5-xl --gpu 3070",
    "llama-3.1-8b, RTX 4090": "--model llama-3.1-8b --gpu 4090",
    "t5-xl, batch of 1,000 in 9 GiB": "--model t5-xl --gpu 3090 --vram 9 --vram-margin 0 --global-batch 1000 "
    "--precision bf16-pure",
}
# Predicted steps are sums of thousands of numbers, whose order may differ.
ROUNDING = 1 + 1e-9
DOES_NOT_FIT = 3


@dataclass(frozen=True)
class Run:
    wall_s: float
    cpu_s: float
    fits: bool
    # Predicted seconds per step of the chosen plan; None if nothing fits.
    step_s: float | None


def main() -> None:
    arguments = parse_arguments()
    lines = [
        "# Times of plans",
        "",
        f"- Machine: {cpu_model()}, {os.cpu_count()} cores, {memory_gib():.0f} GiB",
        f"- Date: {date.today().isoformat()}",
        f"- Host memory for plans: {arguments.host_ram} GiB",
        f"- Command: `{command_line()}`",
    ]
    is_worse = False
    for part in arguments.parts:
        table, part_is_worse = PARTS[part](arguments)
        lines += ["", f"## {part.capitalize()}", "", *table]
        is_worse |= part_is_worse
    text = "\n".join(lines) + "\n"
    publish(text, arguments.out)
    sys.exit(1 if is_worse else 0)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Times planning of every preset on twelve cards.")
    parser.add_argument("--plimsoll", required=True, metavar="PATH", help="the plimsoll binary, built for release")
    parser.add_argument("--before", metavar="PATH", help="another binary to compare with, alternating")
    parser.add_argument("--rounds", type=positive, default=3, help="processes per binary and named case")
    parser.add_argument("--host-ram", type=positive, default=24, metavar="GIB")
    parser.add_argument("--models", metavar="A,B", help="presets of the grid; default: all")
    known, every = names_of("part", PARTS), list(PARTS)
    parser.add_argument("--parts", type=known, default=every, metavar="A,B", help=", ".join(every))
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="also write the report to this file")
    return parser.parse_args()


def grid(arguments: argparse.Namespace) -> tuple[list[str], bool]:
    models = arguments.models.split(",") if arguments.models else presets(arguments.plimsoll)
    table = [f"Wall time in ms; a star means that nothing fits. {len(models)} presets on {len(CARDS)} cards.", ""]
    table += ["| preset | " + " | ".join(CARDS) + " |", "| --- |" + " ---: |" * len(CARDS)]
    runs, slowest = [], ("", 0.0)
    for model in models:
        print(f"timing: {model}", file=sys.stderr)
        of_model = [plan(arguments.plimsoll, ["--model", model, "--gpu", card], arguments) for card in CARDS]
        table.append(f"| {model} | " + " | ".join(ms(run.wall_s) + "*" * (not run.fits) for run in of_model) + " |")
        runs += of_model
        slowest = max(slowest, *((f"{model}, {card}", run.cpu_s) for card, run in zip(CARDS, of_model)), key=lambda one: one[1])
    table += ["", f"Maximum CPU time: {slowest[0]}, {ms(slowest[1])} ms."]
    table += ["", "| plans | number | wall, median | wall, maximum | CPU, median | CPU, maximum |"]
    table.append("| --- | ---: | ---: | ---: | ---: | ---: |")
    for what, some in [("fit", [r for r in runs if r.fits]), ("do not fit", [r for r in runs if not r.fits])]:
        walls, cpus = [run.wall_s for run in some], [run.cpu_s for run in some]
        cells = [ms(of(values)) for values in (walls, cpus) if values for of in (statistics.median, max)]
        table.append(f"| {what} | {len(some)} | " + " | ".join(cells) + " |")
    return table, False


def named(arguments: argparse.Namespace) -> tuple[list[str], bool]:
    binaries = [path for path in (arguments.before, arguments.plimsoll) if path]
    names = ["before", "now"][-len(binaries) :]
    columns = [f"{name}, {what}" for what in ("wall ms", "CPU ms") for name in names] + ["fits", "choice"]
    table = ["Medians, with minimum and maximum in parentheses.", "", f"| case | {' | '.join(columns)} |"]
    table.append("| --- |" + " ---: |" * (len(columns) - 2) + " --- | --- |")
    is_worse = False
    for case, flags in NAMED.items():
        print(f"timing: {case}", file=sys.stderr)
        rounds = [[plan(path, flags.split(), arguments) for path in binaries] for _ in range(arguments.rounds)]
        by_binary = list(zip(*rounds, strict=True))
        cells = [spread(run.wall_s for run in runs) for runs in by_binary]
        cells += [spread(run.cpu_s for run in runs) for runs in by_binary]
        choice = compared([runs[0] for runs in by_binary])
        is_worse |= choice == "worse"
        cells += ["yes" if by_binary[-1][0].fits else "no", choice]
        table.append(f"| {case} | {' | '.join(cells)} |")
    return table, is_worse


PARTS = {"grid": grid, "named": named}


def plan(binary: str, flags: list[str], arguments: argparse.Namespace) -> Run:
    command = [binary, "plan", *flags, "--host-ram", str(arguments.host_ram), "--json"]
    # Files, not pipes: wait4 must reap the child, and a full pipe would block the child.
    with tempfile.TemporaryFile("w+") as stdout:
        start_s = time.monotonic()
        child = subprocess.Popen(command, stdout=stdout, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.monotonic() - start_s
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in (0, DOES_NOT_FIT):
            sys.exit(f"error: exit status {child.returncode} from: {' '.join(command)}")
        stdout.seek(0)
        output = json.load(stdout)
    predicted = output["predicted"]
    step_s = predicted["step_ms"] / 1e3 if predicted else None
    return Run(wall_s, usage.ru_utime + usage.ru_stime, output["fits"], step_s)


def compared(runs: list[Run]) -> str:
    if len(runs) == 1:
        return "-"
    before, now = (run.step_s for run in runs)
    if before is None or now is None:
        return "same" if before == now else "worse" if now is None else "better"
    if now > before * ROUNDING:
        return "worse"
    return "better" if now * ROUNDING < before else "same"


def presets(binary: str) -> list[str]:
    """The names of all presets."""
    said = subprocess.run([binary, "models", "--json"], capture_output=True, text=True, check=True).stdout
    return [model["name"] for model in json.loads(said)["models"]]


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f}"


def spread(seconds: Iterable[float]) -> str:
    values = list(seconds)
    return f"{ms(statistics.median(values))} ({ms(min(values))} to {ms(max(values))})"


if __name__ == "__main__":
    main()
