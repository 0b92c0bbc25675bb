#!/usr/bin/env python3
"""Trains a small model for a long time and checks that the process does not grow.

    python3 bench/soak.py --binary target/release/plimsoll --seconds 7200

The run evaluates, saves checkpoints and samples the machine. After a warm-up of a tenth of the time, its resident memory,
file descriptors and threads are read from /proc every few seconds. A growth of the memory by more than 2 MiB from the first
to the last quarter of the readings, or of the usual number of descriptors or threads, ends the script with code 1.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GROWTH_MAX_KIB = 2048


def reading(pid: int) -> tuple[int, int, int]:
    """Resident KiB, file descriptors and threads of a process."""
    process = Path("/proc") / str(pid)
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    descriptors = sum(1 for _ in (process / "fd").iterdir())
    return int(status["VmRSS"].split()[0]), descriptors, int(status["Threads"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/debug/plimsoll", help="the program")
    parser.add_argument("--seconds", type=float, default=7200.0, help="how long to train")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("".join(f"line {i} has {i * i} in it\n" for i in range(20_000)))
        flags = f"--duration {args.seconds:.0f}s --model nano --seq-len 64 --global-batch 8 --micro-batch 4 --threads 1"
        flags += " --eval-every 500 --checkpoint-every 500 --sample-every 1s --sample-tokens 0 --vram 0.2"
        flags += f" --data {text} --cache-dir {folder}/cache --runs-dir {folder}/runs --name soak --log-to jsonl"
        command = [args.binary, "train", *flags.split()]
        # `--duration` counts training time.
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            start, readings = time.monotonic(), []
            while run.poll() is None:
                if time.monotonic() - start > args.seconds / 10:
                    try:
                        readings.append(reading(run.pid))
                    except (FileNotFoundError, ProcessLookupError, KeyError):
                        break
                time.sleep(max(0.2, args.seconds / 2000))
            code = run.wait()
        seconds = time.monotonic() - start
        journal = (Path(folder) / "runs/soak/journal.jsonl").read_text()
        steps = journal.count('"event":"step"')
    if code != 0 or len(readings) < 8:
        sys.exit(f"the run ended with code {code} after {seconds:.0f} s and {len(readings)} readings")
    # The end of a run writes its report.
    readings = readings[:-2]
    part = len(readings) // 4
    first, last = readings[:part], readings[-part:]
    # Medians, since a checkpoint opens files for a moment.
    memory = [statistics.median(kib for kib, _, _ in some) for some in (first, last)]
    usual = [[int(statistics.median(values)) for values in list(zip(*some))[1:]] for some in (first, last)]
    print(
        f"evidence: {seconds:.0f} s, {steps} steps: {memory[0] / 1024:.1f} MiB resident at first and {memory[1] / 1024:.1f} MiB "
        f"at last, {usual[0][0]} and {usual[1][0]} descriptors, {usual[0][1]} and {usual[1][1]} threads"
    )
    if memory[1] - memory[0] > GROWTH_MAX_KIB or any(b > a for a, b in zip(*usual)):
        sys.exit("the process grew")


if __name__ == "__main__":
    main()
