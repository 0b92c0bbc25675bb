#!/usr/bin/env python3
"""Compares Plimsoll's loader of pairs with Hugging Face's `tokenizers` and PyTorch's DataLoader, alternating.

Each measurement is a process of its own; the sides alternate, and so does their order. Reported are medians over the rounds,
with minimum and maximum, and their ratios.

    raw      from a .tsv of pairs to the padded batches of one epoch, including tokenizing
    cached   the same from tokens computed before the measurement

usage:  python bench/compare_loader.py --plimsoll target/release/plimsoll --data PAIRS.tsv --tokenizer tokenizer.json
            [--rounds 5] [--global-batch 64] [--out bench/results/NAME.md]
needs:  a Python with torch and tokenizers (this one, or --python)

stdout is a Markdown table, which --out also writes to a file; stderr shows progress. The DataLoader has two workers and pins
no memory; it is torch_loader.py next to this file.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TORCH_LOADER = Path(__file__).resolve().with_name("torch_loader.py")
PARTS = ("cached", "raw")
THREADS = 2


def main() -> None:
    arguments = parse_arguments()
    ours = {part: [] for part in PARTS}
    peers = {part: [] for part in PARTS}
    with tempfile.TemporaryDirectory() as cache:
        for round_index in range(arguments.rounds):
            sides = [lambda: run_plimsoll(arguments, cache, ours), lambda: run_torch(arguments, peers)]
            for side in sides if round_index % 2 == 0 else sides[::-1]:
                side()
            speeds = ", ".join(f"{part} {ours[part][-1]:.0f} and {peers[part][-1]:.0f}" for part in PARTS)
            print(f"round {round_index + 1}/{arguments.rounds}, samples/s: {speeds}", file=sys.stderr)
    text = report(arguments, ours, peers)
    print(text, end="")
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares Plimsoll's loader of pairs with PyTorch's DataLoader.")
    parser.add_argument("--plimsoll", required=True, metavar="PATH", help="the plimsoll binary, built for release")
    parser.add_argument("--data", required=True, metavar="PAIRS.tsv")
    parser.add_argument("--tokenizer", required=True, metavar="FILE.json")
    parser.add_argument("--rounds", type=int, default=5, help="processes per side")
    parser.add_argument("--global-batch", type=int, default=64)
    parser.add_argument("--python", default=sys.executable, help="Python with torch; default: this one")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="also write the table to this file")
    return parser.parse_args()


def run_plimsoll(arguments: argparse.Namespace, cache: str, found: dict[str, list[float]]) -> None:
    flags = ["--source-column", "1", "--target-column", "2", "--threads", str(THREADS), "--cache-dir", cache, "--json"]
    output = run([arguments.plimsoll, "bench", "--data-only", *shared(arguments), *flags])
    for part in PARTS:
        found[part].append(output[part]["samples_per_s"])


def run_torch(arguments: argparse.Namespace, found: dict[str, list[float]]) -> None:
    for part in PARTS:
        flags = ["--workers", str(THREADS), "--part", part]
        output = run([arguments.python, str(TORCH_LOADER), *shared(arguments), *flags])
        found[part].append(output["samples_per_s"])


def shared(arguments: argparse.Namespace) -> list[str]:
    batch = str(arguments.global_batch)
    return ["--data", arguments.data, "--tokenizer", arguments.tokenizer, "--global-batch", batch]


def run(command: list[str]) -> dict:
    """Runs a command and returns the JSON of its stdout."""
    # The two workers are processes; threads of their own would only compete.
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    except OSError as error:
        sys.exit(f"error: cannot start {command[0]}: {error.strerror}")
    if done.returncode != 0:
        sys.exit(f"error: exit status {done.returncode} from: {shlex.join(command)}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def report(arguments: argparse.Namespace, ours: dict[str, list[float]], peers: dict[str, list[float]]) -> str:
    lines = [
        "# Plimsoll and PyTorch's DataLoader: from pairs of texts to padded batches",
        "",
        f"- {THREADS} threads of Plimsoll, {THREADS} workers of the DataLoader; {arguments.rounds} rounds in turn",
        f"- Batches of {arguments.global_batch} pairs of {Path(arguments.data).name}, one epoch",
        "",
        "| from | Plimsoll samples/s | DataLoader samples/s | ratio |",
        "| --- | ---: | ---: | ---: |",
    ]
    for part in PARTS:
        ratio = statistics.median(ours[part]) / statistics.median(peers[part])
        lines.append(f"| {part} | {spread(ours[part])} | {spread(peers[part])} | **{ratio:.2f}** |")
    return "\n".join(lines) + "\n"


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


if __name__ == "__main__":
    main()
