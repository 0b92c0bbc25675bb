#!/usr/bin/env python3
"""Measures which part of a run's time its checkpoints take, at the default interval.

    python3 bench/checkpoint_cost.py --binary target/release/plimsoll --steps 1000

Reads the times that the run reports in its journal: a checkpoint is written between two steps, so no step contains it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/debug/plimsoll", help="the program")
    parser.add_argument("--steps", type=int, default=1000, help="steps of the run")
    parser.add_argument("--seq-len", type=int, default=64, help="short sequences make short steps, so checkpoints cost more")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("".join(f"line {i} has {i * i} in it\n" for i in range(20_000)))
        flags = f"--max-steps {args.steps} --model nano --seq-len {args.seq_len} --global-batch 8 --eval-every 0"
        flags += f" --sample-tokens 0 --vram 1 --data {text} --cache-dir {folder}/cache --runs-dir {folder}/runs --name cost"
        run = subprocess.run([args.binary, "train", *flags.split()], capture_output=True, text=True, check=False)
        if run.returncode != 0:
            sys.exit(run.stderr)
        journal = (Path(folder) / "runs/cost/journal.jsonl").read_text()
    events = [json.loads(line) for line in journal.splitlines()]
    steps = sum(event["step_ms"] for event in events if event["event"] == "step")
    # The last checkpoint is that of the end, at any interval.
    saves = [event["milliseconds"] for event in events if event["event"] == "checkpoint_saved"][:-1]
    part = 100 * sum(saves) / (steps + sum(saves))
    print(
        f"evidence: {len(saves)} checkpoints in {args.steps} steps of {steps / args.steps:.1f} ms: {sum(saves):.0f} ms, "
        f"{part:.2f} % of the time"
    )
    if part > 2:
        sys.exit("checkpoints take more than 2 % of the time")


if __name__ == "__main__":
    main()
