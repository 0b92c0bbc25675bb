#!/usr/bin/env python3
"""Trains in a control group whose memory limit shrinks and grows at random, with a budget that follows it, and compares the losses
with those of an undisturbed run.

    python bench/moving_budget.py target/release/plimsoll [--seconds 600] [--seed 1] [--vram 200MiB..1GiB] [--micro-batch 24]

Needs Linux and the right to make control groups (root, or a delegated group), version 1 or 2. Prints the changes and the comparison;
exits with 1 if a loss differs, a step held other bytes than planned, or the run did not end as asked.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
CONFIG = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_layer": 6,
    "n_embd": 256,
    "n_head": 4,
    "n_positions": 256,
    "n_ctx": 256,
    "vocab_size": 256,
}
FLAGS = "--model model --data text.txt --tokenizer bytes --seq-len 256 --global-batch 24 --scheduler constant --warmup-steps 0"
FLAGS += " --eval-every 0 --checkpoint-every 0 --sample-tokens 0 --cache-dir cache --device cpu"
# Outside of its plan a process needs this much at most.
PROCESS = 96 * MIB
# The limit falls no faster than this above the use, so that the kernel kills nothing.
SPARE = 8 * MIB


class Group:
    """A control group with a memory limit."""

    def __init__(self, limit):
        v1 = pathlib.Path("/sys/fs/cgroup/memory")
        root = v1 if v1.is_dir() else pathlib.Path("/sys/fs/cgroup")
        self.path = root / f"plimsoll-moving-{os.getpid()}"
        self.path.mkdir()
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if v1.is_dir() else ("memory.high", "memory.current")
        self.limit_file, self.used_file = (self.path / name for name in names)
        self.set_to(limit)

    def set_to(self, limit):
        """Sets the limit, or as much of it as the kernel accepts now."""
        while True:
            try:
                self.limit_file.write_text(str(limit))
                return limit
            except OSError:  # Version 1 refuses a limit below the use.
                limit = int(self.used_file.read_text()) + SPARE

    def enter(self):
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self):
        self.path.rmdir()


def events(folder):
    lines = (folder / "journal.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def losses(all_events):
    return {event["step"]: event["loss"] for event in all_events if event["event"] == "step"}


def size(text):
    number, unit = text[:-3], text[-3:]
    return int(float(number) * {"MiB": MIB, "GiB": 1024 * MIB}[unit])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plimsoll")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vram", default="200MiB..1GiB")
    parser.add_argument("--micro-batch", default="24")
    arguments = parser.parse_args()
    plimsoll = pathlib.Path(arguments.plimsoll).resolve()
    chance = random.Random(arguments.seed)
    least, most = map(size, arguments.vram.split(".."))
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "model").mkdir()
        (folder / "model/config.json").write_text(json.dumps(CONFIG))
        words = [f"{chance.randrange(1000)} is {chance.choice(['less', 'more', 'other'])} than {i}" for i in range(60_000)]
        (folder / "text.txt").write_text("\n".join(words))

        def train(name, more, group=None):
            command = [str(plimsoll), "train", *FLAGS.split(), "--micro-batch", arguments.micro_batch, "--name", name, *more]
            enter = group.enter if group else None
            return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, preexec_fn=enter)

        high = most + PROCESS
        group = Group(high)
        moved = train("moved", ["--vram", arguments.vram, "--max-steps", "1000000", "--sample-every", "0.5s"], group)
        journal = folder / "runs/moved/journal.jsonl"
        while moved.poll() is None and not (journal.exists() and '"step"' in journal.read_text()):
            time.sleep(0.2)
        end, limits = time.monotonic() + arguments.seconds, []
        while time.monotonic() < end and moved.poll() is None:
            # Now and then less than the least.
            target = chance.choice([chance.randrange(least // 2, least), *(chance.randrange(least, most) for _ in range(4)), most])
            limits.append(target)
            until = min(end, time.monotonic() + chance.uniform(5, 60))
            while time.monotonic() < until and moved.poll() is None:
                group.set_to(target + PROCESS)
                time.sleep(0.5)
        group.set_to(high)
        moved.send_signal(signal.SIGINT)
        said = moved.communicate(timeout=120)[1]
        group.remove()
        if not journal.exists():
            print(said, f"exit code {moved.returncode}")
            return 1
        all_events = events(folder / "runs/moved")
        disturbed = losses(all_events)
        whole = train("whole", ["--vram", arguments.vram.split("..")[1], "--max-steps", str(len(disturbed))])
        undisturbed_said = whole.communicate()[1]
        undisturbed = losses(events(folder / "runs/whole"))

        planned, wrong_bytes, times = None, 0, []
        for event in all_events:
            if event["event"] == "run_started":
                planned = event["planned_bytes"]
            elif event["event"] == "step":
                wrong_bytes += event["memory_bytes"] != -(-planned // 4096) * 4096
                times.append(event["time_s"] if "time_s" in event else 0)
        kinds = [event["event"] for event in all_events]
        waits = sum(event["event"] == "memory_pressure" and event["waits"] for event in all_events)
        plans = [event["planned_bytes"] for event in all_events if event["event"] == "run_started"]
        unequal = [step for step in undisturbed if undisturbed[step] != disturbed.get(step)]
        print(f"limits set: {len(limits)}, from {min(limits) // MIB} to {max(limits) // MIB} MiB for the plan")
        print(f"plans: {len(plans)}, of {min(plans) // MIB} to {max(plans) // MIB} MiB; waits: {waits}; refused: {kinds.count('order_refused')}")
        print(f"steps: {len(disturbed)}; with other bytes than planned: {wrong_bytes}; with another loss than undisturbed: {len(unequal)}")
        print(
            f"evidence: {len(limits)} limits in {arguments.seconds:.0f} s, {len(plans)} plans of {min(plans) // MIB} to "
            f"{max(plans) // MIB} MiB, {waits} waits, {len(disturbed)} steps with equal losses"
        )
        ended = moved.returncode == 130 and whole.returncode == 0 and sorted(disturbed) == sorted(undisturbed)
        if not ended:
            print(said[-2000:], undisturbed_said[-2000:], f"exit codes {moved.returncode} and {whole.returncode}")
        return 0 if ended and not unequal and not wrong_bytes and len(plans) > 1 else 1


if __name__ == "__main__":
    sys.exit(main())
