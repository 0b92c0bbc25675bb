#!/usr/bin/env python3
"""Compares Plimsoll with PyTorch on an NVIDIA card: the same model, batch and precision, alternating.

Each measurement is a process of its own; the sides alternate. Both clip the gradients' norm to 1. Reported are medians over the
rounds.

    tokens/s   tokens per optimizer step divided by the process's median step time, after warm-up
    card       maximum used memory of the card in `nvidia-smi` during the process, minus what was used before
    modes      eager, compile (torch.compile), and both with cuDNN's attention (eager-cudnn, compile-cudnn), which is the fastest of
               PyTorch's on Hopper. The default is all four there, and the first two on other cards
    largest    with a budget, PyTorch's largest micro-batch that does not run out of memory: halves the whole batch until it fits,
               first without and then with gradient checkpointing. Plimsoll plans for the budget by itself (`--vram`)

usage:  python bench/compare_card.py --plimsoll target/release/plimsoll [--rounds 3] [--cases gpt2,gpt2-xl@12,…]
            [--python PYTHON] [--modes eager,compile-cudnn,…] [--out bench/results/NAME.md]
needs:  an NVIDIA card with its driver, and a Python with torch and transformers (this one, or --python)

stdout is a Markdown table, which --out also writes to a file; stderr shows progress.
The PyTorch side is torch_card_step.py next to this file.
"""

import argparse
import json
import statistics
import subprocess
import sys
import threading
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from compare_torch import names_of

TORCH_STEP = Path(__file__).resolve().with_name("torch_card_step.py")
GIB = 2**30
# Of PyTorch's side; see the head of this file.
MODES = ["eager", "compile", "eager-cudnn", "compile-cudnn"]
# Seconds between readings of the card's memory.
LOOK_S = 0.1


@dataclass(frozen=True)
class Case:
    """A model and the batch of an optimizer step, in bf16; `budget_gib` limits the memory used on the card."""

    model: str
    batch: int
    seq_len: int = 1024
    budget_gib: float | None = None


CASES = {
    "gpt2": Case("gpt2", 32),
    "gpt2-medium": Case("gpt2-medium", 16),
    "llama-3.2-1b": Case("llama-3.2-1b", 4),
    "gpt2-medium@8": Case("gpt2-medium", 32, budget_gib=8),
    "gpt2-large@12": Case("gpt2-large", 16, budget_gib=12),
    "gpt2-xl@16": Case("gpt2-xl", 16, budget_gib=16),
    "llama-3.2-1b@12": Case("llama-3.2-1b", 16, budget_gib=12),
}


@dataclass(frozen=True)
class Sample:
    """Result of a process; without a speed if it ran out of memory."""

    tokens_per_s: float | None
    card_bytes: int
    how: str
    torch: str = ""
    card: str = ""


def of_card(field: str) -> str:
    """A field of the first card by `nvidia-smi`."""
    query = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    return subprocess.run(query, check=True, capture_output=True, text=True).stdout.split()[0]


def used_bytes() -> int:
    return int(of_card("memory.used")) * 2**20


def default_modes() -> list[str]:
    return MODES if of_card("compute_cap").startswith("9.") else MODES[:2]


def run(command: list[str]) -> tuple[dict | None, str, int]:
    """A process's JSON output, its stderr, and its maximum memory on the card."""
    before, most, ended = used_bytes(), 0, threading.Event()

    def look() -> None:
        nonlocal most
        while not ended.wait(LOOK_S):
            most = max(most, used_bytes())

    watcher = threading.Thread(target=look)
    watcher.start()
    done = subprocess.run(command, capture_output=True, text=True)
    ended.set()
    watcher.join()
    # Libraries may print messages before the JSON.
    start = done.stdout.find("{")
    found = json.loads(done.stdout[start:]) if start >= 0 else None
    return found, done.stderr, max(0, most - before)


def run_plimsoll(case: Case, a: argparse.Namespace) -> Sample:
    command = [a.plimsoll, "bench", "--device", "cuda", "--model", case.model, "--precision", "bf16", "--json"]
    command += ["--seq-len", str(case.seq_len), "--global-batch", str(case.batch), "--steps", str(a.steps)]
    command += ["--micro-batch", "auto", "--warmup", "3"]
    command += [] if case.budget_gib is None else ["--vram", str(case.budget_gib)]
    output, errors, card = run(command)
    if output is None:
        sys.exit(f"error: plimsoll printed nothing:\n{errors}")
    plan = output["plan"]
    how = f"micro-batch {plan['micro_batch']}, {plan['host_bytes'] / GIB:.1f} GiB on the host"
    return Sample(output["measured"]["tokens_per_s"], card, how)


def run_torch(case: Case, mode: str, micro_batch: int, recompute: bool, a: argparse.Namespace) -> Sample:
    command = [a.python, str(TORCH_STEP), "--model", case.model, "--seq-len", str(case.seq_len), "--steps", str(a.steps)]
    command += ["--micro-batch", str(micro_batch), "--accumulation", str(case.batch // micro_batch)]
    command += ["--compile"] if mode.startswith("compile") else []
    command += ["--cudnn-attention"] if mode.endswith("cudnn") else []
    command += ["--recompute"] if recompute else []
    command += [] if case.budget_gib is None else ["--budget-gib", str(case.budget_gib)]
    output, errors, card = run(command)
    if output is None:
        sys.exit(f"error: torch_card_step.py printed nothing:\n{errors}")
    how = f"micro-batch {micro_batch}" + (", checkpointing" if recompute else "")
    return Sample(output["tokens_per_s"], card, how, output["torch"], output["card"])


def largest(case: Case, a: argparse.Namespace) -> tuple[int, bool] | None:
    """PyTorch's largest micro-batch in a budget, and whether it needs checkpointing; None if nothing fits."""
    if case.budget_gib is None:
        return case.batch, False
    quick = argparse.Namespace(**{**vars(a), "steps": 1})
    if not run_torch(case, "eager", 1, True, quick).tokens_per_s:
        return None
    micro_batch = case.batch
    while micro_batch >= 1:
        for recompute in (False, True):
            if run_torch(case, "eager", micro_batch, recompute, quick).tokens_per_s:
                return micro_batch, recompute
        micro_batch //= 2
    return None


def measure(name: str, a: argparse.Namespace) -> tuple[str, str, str]:
    """Rows of the table, PyTorch's version, and the card's name."""
    case = CASES[name]
    fits = largest(case, a)
    samples: dict[str, list[Sample]] = {}
    for round_index in range(a.rounds):
        for side in ["plimsoll", *(a.modes if fits else [])]:
            sample = run_plimsoll(case, a) if side == "plimsoll" else run_torch(case, side, *fits, a)
            samples.setdefault(side, []).append(sample)
            speed = f"{sample.tokens_per_s:.0f} tokens/s" if sample.tokens_per_s else "out of memory"
            print(f"{name} round {round_index + 1} {side}: {speed}, {sample.card_bytes / GIB:.1f} GiB", file=sys.stderr)
    own = median(samples["plimsoll"])
    rows = []
    for side, of_side in samples.items():
        speed, card = median(of_side), max(sample.card_bytes for sample in of_side) / GIB
        ratio = f"{own / speed:.2f}" if speed and own else "-"
        shown = f"{speed:,.0f}" if speed else "out of memory"
        rows.append(f"| {name} | {side} | {of_side[0].how} | {shown} | {ratio} | {card:.1f} |")
    if not fits:
        rows.append(f"| {name} | PyTorch | micro-batch 1, checkpointing | out of memory | - | - |")
    of_torch = next((s[0] for side, s in samples.items() if side != "plimsoll"), Sample(None, 0, ""))
    return "\n".join(rows), of_torch.torch, of_torch.card


def median(samples: list[Sample]) -> float | None:
    speeds = [sample.tokens_per_s for sample in samples if sample.tokens_per_s]
    return statistics.median(speeds) if len(speeds) == len(samples) else None


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares Plimsoll's training step with PyTorch's on a card.")
    parser.add_argument("--plimsoll", required=True, metavar="PATH", help="the plimsoll binary, built for release")
    parser.add_argument("--rounds", type=int, default=3, help="processes per side and case")
    parser.add_argument("--steps", type=int, default=8, help="measured steps per process")
    cases, modes = names_of("case", CASES), names_of("mode", MODES)
    parser.add_argument("--cases", type=cases, default=list(CASES), metavar="A,B", help=f"cases: {', '.join(CASES)}")
    parser.add_argument("--modes", type=modes, metavar="A,B", help=f"PyTorch's modes: {', '.join(MODES)}")
    parser.add_argument("--python", default=sys.executable, help="Python with torch; default: this one")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="also write the table to this file")
    a = parser.parse_args()
    a.modes = a.modes or default_modes()
    found = [measure(name, a) for name in a.cases]
    torch = next((version for _, version, _ in found if version), "none")
    card = next((card for _, _, card in found if card), "unknown")
    lines = [
        "# Plimsoll and PyTorch on a card",
        "",
        f"- Card: {card}; PyTorch {torch}, models of transformers, autocast to bf16, gradients clipped, fused AdamW",
        f"- Date: {date.today()}",
        f"- {a.rounds} rounds by `python bench/compare_card.py {' '.join(sys.argv[1:])}`",
        "- `name@N`: with a budget of N GiB of the card's memory, everything included; batches: "
        + ", ".join(f"{name}: {CASES[name].batch} x {CASES[name].seq_len}" for name in a.cases),
        "",
        "| case | side | how | tokens/s | Plimsoll : PyTorch | card, GiB |",
        "| --- | --- | --- | ---: | ---: | ---: |",
        *(row for row, _, _ in found),
        "",
    ]
    text = "\n".join(lines)
    print(text, end="")
    if a.out:
        a.out.write_text(text)


if __name__ == "__main__":
    main()
