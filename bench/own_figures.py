#!/usr/bin/env python3
"""Measures Plimsoll by itself: figures that have no counterpart in other programs.

    start-up   from the start of the process to the end of the first training step of `nano`, with cached data, from the event's
               time in the journal; and the whole process, which then evaluates, saves a checkpoint and writes a sample
    scaling    tokens/s with all threads relative to one thread, alternating
    length     planned memory of GPT-2 124M for one sequence, by its length; without running it
    profile    shares of a step's time, and the rates of ops relative to a large product and a large copy

usage:  python bench/own_figures.py --plimsoll target/release/plimsoll [--rounds 5] [--threads 2]
            [--parts start-up,scaling,length,profile] [--out bench/results/NAME.md]
needs:  Linux and Python

Reported are medians over the rounds, with minimum and maximum in parentheses; each measurement is a process of its own.
stdout is Markdown, which --out also writes to a file; stderr shows progress.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import date
from pathlib import Path

from compare_memory import plan_of
from compare_torch import BUSY_SHARE, CASES, MIB, names_of, positive
from compare_torch import command_line, cpu_model, memory_gib, mib, run, spread

TIMED = ("char-6x384", "gpt2-124m")
LENGTHS = (1024, 2048, 4096, 8192)
STEPS = 4
# Ops below this share of a step are left out, in percent.
LEAST_SHARE = 0.2


def main() -> None:
    arguments = parse_arguments()
    lines = [
        "# Plimsoll by itself",
        "",
        f"- Machine: {cpu_model()}, {os.cpu_count()} cores, {memory_gib():.0f} GiB",
        f"- Date: {date.today().isoformat()}",
        f"- {arguments.threads} threads; medians of {arguments.rounds} rounds, with minimum and maximum in parentheses",
        f"- Command: `{command_line()}`",
        *(f"- {name}: {CASES[name].describe()}" for name in TIMED),
    ]
    for part in arguments.parts:
        print(f"measuring: {part}", file=sys.stderr)
        lines += ["", f"## {part.capitalize()}", "", *PARTS[part](arguments)]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures Plimsoll's start-up, scaling, long sequences and ops.")
    parser.add_argument("--plimsoll", required=True, metavar="PATH", help="the plimsoll binary, built for release")
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--threads", type=positive, default=2)
    known, every = names_of("part", PARTS), list(PARTS)
    parser.add_argument("--parts", type=known, default=every, metavar="A,B", help=", ".join(every))
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="also write the report to this file")
    return parser.parse_args()


def start_up(arguments: argparse.Namespace) -> list[str]:
    first_step_ms, whole_ms = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds + 1):
            name = f"run-{number}"
            command = [
                *(str(Path(arguments.plimsoll).resolve()), "train", "--max-steps", "1", "--name", name),
                *("--cache-dir", "cache", "--threads", str(arguments.threads)),
            ]
            start_s, clock_s = time.time(), time.monotonic()
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            whole_s = time.monotonic() - clock_s
            if done.returncode != 0:
                sys.exit(f"error: exit status {done.returncode} from plimsoll train\n{done.stderr[-2000:]}")
            events = map(json.loads, Path(folder, "runs", name, "journal.jsonl").read_text().splitlines())
            step_s = next(event["time_s"] for event in events if event["event"] == "step")
            # The first run fills the cache.
            if number > 0:
                first_step_ms.append((step_s - start_s) * 1e3)
                whole_ms.append(whole_s * 1e3)
    return [
        f"`plimsoll train --max-steps 1`, data cached: the first step ends {spread(first_step_ms)} ms after the "
        f"start of the process, the process after {spread(whole_ms)} ms."
    ]


def scaling(arguments: argparse.Namespace) -> list[str]:
    lines = [
        f"| case | 1 thread, tokens/s | {arguments.threads} threads, tokens/s | ratio |",
        "| --- | ---: | ---: | ---: |",
    ]
    outputs = []
    for name in TIMED:
        found = {1: [], arguments.threads: []}
        for round_index in range(arguments.rounds):
            for threads in sorted(found, reverse=round_index % 2 == 1):
                outputs.append(bench(name, threads, arguments))
                found[threads].append(CASES[name].tokens_per_step / outputs[-1]["measured"]["step_ms_p50"] * 1e3)
        one, all_threads = found[1], found[arguments.threads]
        ratio = statistics.median(all_threads) / statistics.median(one)
        lines.append(f"| {name} | {spread(one)} | {spread(all_threads)} | **{ratio:.2f}** |")
    return [*lines, "", others(outputs)]


def length(arguments: argparse.Namespace) -> list[str]:
    lines = [
        "| tokens | peak (MiB) | growth from the row above, MiB per thousand tokens |",
        "| ---: | ---: | ---: |",
    ]
    before = None
    for tokens in LENGTHS:
        case = replace(CASES["gpt2-124m"], positions=max(LENGTHS), seq_len=tokens, micro_batch=1)
        peak = plan_of(case, "cheap", arguments)["plan"]["peak_bytes"]
        growth = f"{(peak - before[1]) / MIB / (tokens - before[0]) * 1000:.1f}" if before else ""
        lines.append(f"| {tokens:,} | {mib(peak)} | {growth} |")
        before = (tokens, peak)
    return [*lines, "", "GPT-2 124M with 8,192 positions, one sequence, `--recompute cheap`."]


def profile(arguments: argparse.Namespace) -> list[str]:
    lines = []
    for name in TIMED:
        outputs = [bench(name, arguments.threads, arguments, "--profile") for _ in range(arguments.rounds)]
        profiles = [output["profile"] for output in outputs]
        for one in profiles:
            one["step_ms"] = sum(op["step_ms"] for op in one["ops"])
        shares = {key: [100 * p["shares"][key] for p in profiles] for key in ("products", "attention", "streaming")}
        rates = ("flops_per_s", "bytes_per_s")
        product, copy = (spread([p["ceilings"][rate] / 1e9 for p in profiles]) for rate in rates)
        lines += [
            f"{name}: products {spread(shares['products'])} % of a step, attention {spread(shares['attention'])} %, "
            f"the rest {spread(shares['streaming'])} %. A large product has {product} GFLOP/s, a large copy {copy} "
            f"GB/s. Ops below {LEAST_SHARE} % are left out.",
            "",
            "| part | op | ms | % of a large product | % of a large copy |",
            "| --- | --- | ---: | ---: | ---: |",
        ]
        for op in profiles[0]["ops"]:
            same = [o for p in profiles for o in p["ops"] if (o["part"], o["op"]) == (op["part"], op["op"])]
            share = statistics.median(100 * o["step_ms"] / p["step_ms"] for o, p in zip(same, profiles))
            if share < LEAST_SHARE:
                continue
            is_streaming = op["nature"] == "streaming"
            rate = rates[is_streaming]
            reached = spread([100 * o[rate] / p["ceilings"][rate] for o, p in zip(same, profiles)])
            cells = ["", reached] if is_streaming else [reached, ""]
            cells = [op["part"], op["op"], spread([o["step_ms"] for o in same]), *cells]
            lines.append(f"| {' | '.join(cells)} |")
        lines += ["", others(outputs), ""]
    return lines[:-1]


def bench(name: str, threads: int, arguments: argparse.Namespace, *more: str) -> dict:
    """Measures one of the timed cases."""
    case = CASES[name]
    command = [
        *(arguments.plimsoll, "bench", *case.flags(), "--recompute", case.recompute),
        *("--threads", str(threads), "--steps", str(STEPS), "--json", *more),
    ]
    output, usage = run(command, threads)
    return output | {"others_share": usage.others_share}


def others(outputs: list[dict]) -> str:
    """Load by other processes during these measurements; see compare_torch.py."""
    worst = max(output["others_share"] for output in outputs)
    return f"Other processes used at most {worst:.0%} of the cores{' BUSY' if worst > BUSY_SHARE else ''}."


PARTS = {"start-up": start_up, "scaling": scaling, "length": length, "profile": profile}

if __name__ == "__main__":
    main()
