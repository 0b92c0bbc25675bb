#!/usr/bin/env python3
"""Runs the tests behind bench/results/reliability.md and writes its table.

    python3 bench/reliability.py             all rows at full scale (hours), then writes the table
    python3 bench/reliability.py --only disk full scale, this row only; the other rows keep their figures
    python3 bench/reliability.py --quick     the part of each row that `cargo test` runs by default; writes nothing

A row's test prints what it tried, as a line `evidence: TEXT`. A row whose test fails ends the script with code 1, and
nothing is written.
"""

import argparse
import datetime
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "bench" / "results" / "reliability.md"
HEAD = "| row | fault | tried | result | measured | seconds | command |"


@dataclass(frozen=True)
class Row:
    """A fault, the test that makes it at full scale, and the tests of `cargo test` that make some of it."""

    name: str
    fault: str
    result: str
    target: str
    quick: tuple[str, ...]
    full: str | None = None
    # Whether the passed tests are what is counted, instead of the lines that they print.
    counts_tests: bool = False
    # For rows that are no Rust tests.
    script: str | None = None

    def command(self, is_quick: bool) -> str:
        if self.script is not None:
            return self.script
        names = self.quick if is_quick or self.full is None else (self.full,)
        ignored = "" if names == self.quick else "--ignored "
        return f"cargo test --workspace {self.target} -- {ignored}--nocapture {' '.join(names)}"


ROWS = [
    Row(
        "power",
        "power cut: every state in which a disk may be after each file operation of runs with a branch, and of the "
        "sessions that resume them",
        "no reported checkpoint is lost, and no loss that one relies on",
        "--test runs",
        ("no_power_cut",),
        "evidence_of_power_cuts",
    ),
    Row(
        "replan",
        "power cut while a run changes its plan twice for other budgets; resume by another plan",
        "no reported checkpoint is lost; equal losses, to the bit",
        "--test control",
        ("no_power_cut",),
        "evidence_of_power_cuts_while_plans_change",
    ),
    Row(
        "disk",
        "each file operation of a run and of its resume fails with ENOSPC, EIO, EROFS, EDQUOT and EMFILE: alone, with the "
        "next one, or with all later ones; what a failed sync was to write is lost at a power cut after each promise",
        "the run finishes and reports what is not on disk, or ends with the file's name; what it reported as saved is "
        "there, and resumes to equal losses and weights",
        "--test runs",
        ("a_disk_that_refuses",),
        "evidence_of_disk_faults",
    ),
    Row(
        "kill",
        "SIGKILL at random moments",
        "each run ends with the weights of a run that was never stopped",
        "--test cli",
        ("killed_at_twenty_random_moments",),
        "evidence_of_kills",
    ),
    Row(
        "resume",
        "stop at every step; resume with other threads, recomputation and offload, in six kinds of models and data",
        "equal losses and weights, to the bit",
        "--test runs",
        ("a_resumed_run", "a_run_resumed"),
        "evidence_of_resumes",
    ),
    Row(
        "memory",
        "a refused heap allocation, which ends the process",
        "the resumed run has equal losses and weights",
        "--test aborts",
        ("a_run_aborted",),
        "evidence_of_aborts",
    ),
    Row(
        "nan",
        "NaN, infinity and minus infinity planted in each float tensor that a step reads: weights, optimizer state, "
        "activations, gradients",
        "NaN ends the run in its step, or the step skips its update in fp16; infinity too, unless a function makes it "
        "finite; no checkpoint contains either",
        "--test runs",
        ("nan_and_infinity",),
        "evidence_of_values_that_are_not_finite",
    ),
    Row(
        "templates",
        "hostile chat templates",
        "each ends within 2 s, 64 MiB and a stack of 2 MiB",
        "--test hostile_templates",
        ("any_template",),
    ),
    Row(
        "fuzz",
        "mutated and random input of the parsers of untrusted bytes",
        "each input is read or refused, without a panic, in 2 GiB of address space",
        "",
        (),
        script="python3 bench/fuzz.py --seconds 3600",
    ),
    Row(
        "sinks",
        "a sink that hangs: pipes and terminals that are not read, web servers and mail servers that do not answer, disks of "
        "trackers, clients of `plimsoll serve`",
        "no step waits, and a run that is asked to stop ends",
        "--test cli --test servers --test trackers --test server",
        (
            "unread::",
            "sending_never_blocks",
            "a_server_that_hangs",
            "a_hanging_disk",
            "a_client_that_does_not_read",
        ),
        counts_tests=True,
    ),
    Row(
        "grace",
        "SIGTERM and SIGUSR1 during a step that is longer than `--grace`; SIGTERM while servers hang",
        "the run ends within five seconds, and resumes to equal losses and weights",
        "--test cli --test runs",
        ("within_its_grace_period", "servers_that_hang", "drops_its_step", "an_evaluation_that_a_stop_prevents"),
        counts_tests=True,
    ),
    Row(
        "simulation",
        "failing disks, power cuts, signals, orders, clocks that jump, heat, lost sensors, memory that other programs take, and "
        "failing GPUs together, drawn from a seed",
        "each run ends or continues by itself, with the losses and weights of an undisturbed run; plans hold the bytes that "
        "they say; no reported checkpoint is lost",
        "--test simulation",
        ("a_run_survives",),
        "evidence_of_simulation",
    ),
    Row(
        "budget",
        "a control group whose memory limit shrinks and grows at random, also below the smallest plan",
        "the run shrinks, waits, grows and ends with the losses of an undisturbed run, to the bit; each step holds the bytes "
        "of its plan",
        "",
        (),
        script="python3 bench/moving_budget.py target/debug/plimsoll",
    ),
    Row(
        "soak",
        "hours of training in one process, with evaluations, checkpoints, samples of the machine and logs",
        "resident memory, descriptors and threads do not grow",
        "",
        (),
        script="python3 bench/soak.py --seconds 7200",
    ),
    Row(
        "cost",
        "checkpoints at the default interval",
        "at most 2 % of the time of a run",
        "",
        (),
        script="python3 bench/checkpoint_cost.py",
    ),
]


def measure(row: Row, is_quick: bool) -> str:
    """Runs a row's test. Returns its line of the table. Exits if the test fails or prints no evidence."""
    command = row.command(is_quick)
    print(f"{row.name}: {command}", file=sys.stderr, flush=True)
    start = time.monotonic()
    run = subprocess.run(command.split(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seconds = time.monotonic() - start
    tried = re.findall(r"evidence: (.*)", run.stdout)
    if row.counts_tests:
        passed = sum(int(number) for number in re.findall(r"(\d+) passed", run.stdout))
        tried = [f"{passed} tests"]
    if run.returncode != 0 or not tried:
        print(run.stdout)
        reason = "failed" if run.returncode != 0 else "printed no line `evidence: ...`"
        sys.exit(f"{row.name}: `{command}` {reason}")
    tried = "; ".join(grouped(text) for text in tried)
    print(f"{row.name}: {tried} ({seconds:.0f} s)", file=sys.stderr, flush=True)
    date = f"{datetime.date.today().isoformat()}, {machine()}"
    return f"| {row.name} | {row.fault} | {tried} | {row.result} | {date} | {seconds:.0f} | `{command}` |"


def grouped(text: str) -> str:
    """Adds separators to numbers of four digits and more."""
    return re.sub(r"\d{4,}", lambda number: f"{int(number[0]):,}", text)


def machine() -> str:
    model = ""
    if Path("/proc/cpuinfo").exists():
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        model = f" of {found[1].strip()}" if found else ""
    return f"{os.cpu_count()} cores{model}"


def table(lines: dict[str, str]) -> str:
    rows = [lines[row.name] for row in ROWS if row.name in lines]
    return "\n".join(
        [
            "# What a run survives",
            "",
            "Written by `python3 bench/reliability.py`, with tests of the test profile. Seconds include the time to build a test.",
            "`cargo test` runs a part of each row that is a Rust test.",
            "",
            HEAD,
            "| --- | --- | --- | --- | --- | --- | --- |",
            *rows,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run the default tests only, and write nothing")
    parser.add_argument("--only", action="append", choices=[row.name for row in ROWS], help="one row; repeatable")
    args = parser.parse_args()
    known = {row.name for row in ROWS}
    lines = {}
    if args.only and TABLE.exists():
        cells = [(line, line.split("|")[1].strip()) for line in TABLE.read_text().splitlines() if line.count("|") == 8]
        lines = {name: line for line, name in cells if name in known}
    for row in ROWS:
        is_chosen = row.name in args.only if args.only else not (args.quick and row.script)
        if is_chosen:
            lines[row.name] = measure(row, args.quick)
    if not args.quick:
        TABLE.write_text(table(lines))
        print(f"wrote {TABLE.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
