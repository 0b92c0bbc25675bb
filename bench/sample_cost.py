#!/usr/bin/env python3
"""Measures the cost of sampling: CPU time of `plimsoll gpus --watch` per sample. A run's sampling thread does the same work.

It compares two runs of different lengths, so that the start does not count. With `--nvml` and `--cards` the cards are a stand-in's
(`crates/fake-nvml`), whose calls cost less than a driver's; otherwise this machine's.

usage: sample_cost.py --plimsoll PATH [--nvml LIBRARY --cards 4] [--samples 2000]
"""
import argparse
import os
import subprocess

EVERY_S = 0.01


def processor_time(command, environment, samples):
    """CPU seconds of this many samples, including the start."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    for _ in range(samples):
        if not process.stdout.readline():
            raise SystemExit("plimsoll ended early")
    process.terminate()
    _, _, used = os.wait4(process.pid, 0)
    process.stdout.close()
    return used.ru_utime + used.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plimsoll", required=True)
    parser.add_argument("--nvml", help="library of the NVML stand-in")
    parser.add_argument("--cards", type=int, default=4)
    parser.add_argument("--samples", type=int, default=2000)
    a = parser.parse_args()
    environment = dict(os.environ)
    if a.nvml:
        cards = [f"NVIDIA GeForce RTX 4090,GPU-{n},24564,400,2000,busy=90,holder={os.getpid()}/2000" for n in range(a.cards)]
        environment |= {"PLIMSOLL_NVML": a.nvml, "PLIMSOLL_FAKE_GPUS": ";".join(cards)}
    command = [a.plimsoll, "gpus", "--watch", "--json", "--sample-every", str(EVERY_S)]
    short, long = (processor_time(command, environment, samples) for samples in (100, 100 + a.samples))
    each = (long - short) / a.samples
    print(f"{each * 1e6:.0f} us of CPU time per sample, {100 * each:.3f} % of a core at one sample per second")


if __name__ == "__main__":
    main()
