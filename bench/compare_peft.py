#!/usr/bin/env python3
"""Compares Plimsoll with PEFT and bitsandbytes: the same step of LoRA and QLoRA on the same CPU, alternating.

The model has the sizes of SmolLM2-360M and random weights, adapters of rank 16 on all linear layers, gradients are clipped. Each
measurement is a process of its own; the sides alternate, and so does their order. Reported are medians over the rounds and their
ratios, as compare_torch.py defines them.

usage:  python bench/compare_peft.py --plimsoll target/release/plimsoll [--rounds 5] [--threads 2] [--steps 5] [--seq-len 256]
            [--micro-batch 4] [--methods lora,qlora] [--out bench/results/NAME.md]
needs:  Linux, and a Python with torch, transformers, peft and bitsandbytes (this one, or --python)
"""

import argparse
import statistics
import sys
from datetime import date
from pathlib import Path

from compare_torch import cpu_model, memory_gib, mib, names_of, positive, publish, run

STEP = Path(__file__).resolve().with_name("peft_step.py")
METHODS = ["lora", "qlora"]


def sample_of_plimsoll(method: str, a: argparse.Namespace) -> dict:
    command = [a.plimsoll, "bench", "--device", "cpu", "--model", "smollm2-360m", "--method", method, "--lora-rank", "16"]
    command += ["--precision", "bf16", "--seq-len", str(a.seq_len), "--micro-batch", str(a.micro_batch)]
    command += ["--global-batch", str(a.micro_batch), "--steps", str(a.steps), "--threads", str(a.threads), "--json"]
    output, usage = run(command + ["--vram", a.vram] if a.vram else command, a.threads)
    tokens = a.micro_batch * a.seq_len
    return {
        "speed": tokens / output["measured"]["step_ms_p50"] * 1e3,
        "memory": usage.peak_rss_bytes,
        "others": usage.others_share,
    }


def sample_of_peft(method: str, a: argparse.Namespace) -> dict:
    sizes = ["--seq-len", str(a.seq_len), "--micro-batch", str(a.micro_batch)]
    counts = ["--steps", str(a.steps), "--threads", str(a.threads)]
    output, usage = run([a.python, str(STEP), "--method", method, *sizes, *counts], a.threads)
    return {
        "speed": output["tokens_per_s"],
        "memory": usage.peak_rss_bytes - output["rss_after_import_bytes"],
        "others": usage.others_share,
        "versions": output["versions"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares steps of LoRA and QLoRA with PEFT's on this CPU.")
    parser.add_argument("--plimsoll", required=True, metavar="PATH", help="the plimsoll binary, built for release")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--steps", type=positive, default=5)
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--seq-len", type=positive, default=256)
    parser.add_argument("--micro-batch", type=positive, default=4)
    parser.add_argument("--vram", default="", metavar="SIZE", help="Plimsoll's budget; all free memory by default")
    parser.add_argument("--methods", type=names_of("method", METHODS), default=METHODS)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()

    rows, versions, busiest = [], "", 0.0
    for method in a.methods:
        samples = {"plimsoll": [], "peft": []}
        sides = [("plimsoll", sample_of_plimsoll), ("peft", sample_of_peft)]
        for number in range(a.rounds):
            for name, take in sides if number % 2 == 0 else sides[::-1]:
                sample = take(method, a)
                samples[name].append(sample)
                versions, busiest = sample.get("versions", versions), max(busiest, sample["others"])
                print(f"{method} round {number + 1} {name}: {sample['speed']:.1f} tokens/s", file=sys.stderr)
        median = {(name, key): statistics.median(s[key] for s in samples[name]) for name in samples for key in ("speed", "memory")}
        own, other = median["plimsoll", "speed"], median["peft", "speed"]
        own_bytes, other_bytes = median["plimsoll", "memory"], median["peft", "memory"]
        rows.append(
            f"| {method} | {own:.1f} | {other:.1f} | **{own / other:.2f}** | {mib(own_bytes)} | {mib(other_bytes)} "
            f"| **{own_bytes / other_bytes:.2f}** |"
        )
    publish(
        f"# LoRA and QLoRA next to PEFT, {date.today()}\n\n"
        f"SmolLM2-360M, rank 16 on all linear layers, T {a.seq_len}, B {a.micro_batch}, bf16, on {cpu_model()}, {a.threads} threads, "
        f"{memory_gib():.0f} GiB; {versions}. Medians of {a.rounds} alternating rounds of {a.steps} steps; other processes used at most "
        f"{busiest:.0%} of the cores. Memory in MiB: Plimsoll's whole process, and PEFT's beyond its import.\n\n"
        f"`python {' '.join(sys.argv[:1])} --plimsoll target/release/plimsoll --rounds {a.rounds} --steps {a.steps} "
        f"--seq-len {a.seq_len} --micro-batch {a.micro_batch}{f' --vram {a.vram}' if a.vram else ''}`\n\n"
        "| method | Plimsoll tokens/s | PEFT tokens/s | ratio | Plimsoll memory | PEFT memory | ratio |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n" + "\n".join(rows) + "\n",
        a.out,
    )


if __name__ == "__main__":
    main()
