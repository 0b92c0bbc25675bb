#!/usr/bin/env python3
"""Grades the tests: draws mutants of the computing crates, runs the tests on each, and counts those that the tests detect.

usage:  python scripts/mutants.py --work DIR [--draw 200] [--seed 1] [--again] [--also TEXT]... [--out bench/results/NAME.md]
            [--crates graph,plan,exec,data,train] [--own] [--leave-out TEXT]... [--opt-level 1] [--minutes N] [--jobs 2]
needs:  Linux, Python, and cargo-mutants (`cargo install cargo-mutants --locked`), which lists possible mutants

Mutants come from `cargo mutants --list`, shuffled with the seed and drawn from the crates in turn; --also adds all whose name
contains TEXT, which are listed separately and not counted. In DIR, outside the repository, all of them are put into a copy of the
tree at once, each behind a switch (`mutant_switches.py`), so that the tests are compiled once. A mutant that does not compile counts
as unviable. Every test then runs once by itself and records which switches it reaches. Each mutant runs with the tests that reach
it, those of its own crate first and fast ones first, until one fails that passes without the mutant, or exceeds ten times its
duration; tests of more than a few seconds run only after all mutants ran with the others. DIR stores the results; --again, after
adding tests, runs only mutants that no test detected before. For little time: --own builds and runs only the tests of --crates,
--leave-out skips tests whose name contains TEXT, and after --minutes no further mutant starts; those that did not start do not
count as drawn.

--out writes a table, then the survivors, one per line, with the reviewer's verdict: "equivalent: why" removes it from the ratio.
Verdicts in earlier files of the same folder are kept, by the mutant's name without line and column.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from datetime import date
from itertools import zip_longest
from pathlib import Path

import mutant_tests
from mutant_switches import UNITS, Mutant

REPOSITORY = Path(__file__).resolve().parents[1]
CRATES = ("graph", "plan", "exec", "data", "train")
NOT_REVIEWED = "not reviewed"
# All mutants first run with tests up to this duration; the survivors then run with the others.
QUICK_S = 20


def main() -> None:
    arguments = read_arguments()
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    mutants = draw(listed(work), arguments)
    tree, target = work / "tree", Path(os.environ.get("CARGO_TARGET_DIR", work / "target"))
    how = mutant_tests.Build(tree, target, arguments.opt_level, whole=not arguments.own)
    copy_tree(tree, besides={UNITS, *(m.file for m in mutants)}, tested=arguments.crates if arguments.own else None)
    known = Unviable(work / "unviable.json", mutants)
    binaries, unviable = mutant_tests.build_without_unviable(REPOSITORY, how, mutants, known.read())
    known.write(unviable)
    mutant_tests.limit_memory()
    outcomes = Outcomes(work / "outcomes.json", keep=arguments.again)
    tests = recorded([t for t in mutant_tests.tests_of(binaries) if not any(part in t.name for part in arguments.leave_out)],
                     work, arguments.jobs)
    ends = time.monotonic() + 60 * arguments.minutes

    def judge(mutant: Mutant, by: list) -> None:
        if time.monotonic() < ends:
            outcomes.add(mutant, mutant_tests.caught_by(mutant, by))

    viable = [m for m in mutants if m.number not in unviable]
    for by in ([t for t in tests if t.seconds <= QUICK_S], [t for t in tests if t.seconds > QUICK_S]):
        left = [m for m in viable if not outcomes.caught.get(m.name)]
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            list(pool.map(judge, left, [by] * len(left)))
    ended = [m for m in mutants if m.number in unviable or m.name in outcomes.caught]
    text = report(ended, unviable, outcomes.caught, arguments)
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--draw", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--also", action="append", default=[])
    parser.add_argument("--crates", type=lambda text: tuple(text.split(",")), default=CRATES)
    parser.add_argument("--opt-level", type=int, default=1)
    parser.add_argument("--own", action="store_true")
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--leave-out", action="append", default=[])
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def listed(work: Path) -> list[dict]:
    """The list of cargo-mutants for the crates; cached in a file, since it takes half a minute."""
    sources = [path for crate in CRATES for path in sorted((REPOSITORY / "crates" / crate / "src").rglob("*.rs"))]
    state = hashlib.blake2b(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    kept = work / f"offered-{state}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    packages = [word for crate in CRATES for word in ("-p", f"plimsoll-{crate}")]
    command = ["cargo", "mutants", "--list", "--json", *packages]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True)
    kept.write_text(done.stdout)
    return json.loads(done.stdout)


def draw(offered: list[dict], arguments: argparse.Namespace) -> list[Mutant]:
    """Draws mutants from each crate in turn, and adds those of --also; the number of a mutant's switch is its index in this
    list."""
    by_crate = []
    for crate in arguments.crates:
        there = sorted((m for m in offered if m["package"] == f"plimsoll-{crate}"), key=lambda m: m["name"])
        random.Random(f"{arguments.seed} {crate}").shuffle(there)
        by_crate.append(there)
    in_turn = [m for turn in zip_longest(*by_crate) for m in turn if m is not None]
    drawn, left = in_turn[: arguments.draw], in_turn[arguments.draw :]
    besides = [m for m in left if any(text in m["name"] for text in arguments.also)]
    return [
        Mutant(
            number=number,
            name=m["name"],
            crate=m["package"].removeprefix("plimsoll-"),
            file=m["file"],
            genre=m["genre"],
            replacement=m["replacement"],
            first=(m["span"]["start"]["line"], m["span"]["start"]["column"]),
            behind=(m["span"]["end"]["line"], m["span"]["end"]["column"]),
            is_drawn=number < len(drawn),
        )
        for number, m in enumerate(drawn + besides)
    ]


def copy_tree(tree: Path, besides: set[str], tested: tuple[str, ...] | None) -> None:
    """Updates the copy to the repository's files, except those that get switches; writes only files that differ. If only some
    crates are `tested`, the others have no tests."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split("\0")
    wanted = {f for f in files if f and (REPOSITORY / f).is_file()}

    def is_tested(file: str) -> bool:
        parts = Path(file).parts
        return tested is None or parts[0] != "crates" or parts[1] in tested

    wanted -= {file for file in wanted if not is_tested(file) and Path(file).parts[2] == "tests"}
    for file in wanted - besides:
        content, copy = (REPOSITORY / file).read_bytes(), tree / file
        if copy.name == "Cargo.toml" and not is_tested(file):
            content = untested(content.decode()).encode()
        if not copy.exists() or copy.read_bytes() != content:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
            copy.chmod((REPOSITORY / file).stat().st_mode)
    for stale in {str(p.relative_to(tree)) for p in tree.rglob("*.rs")} - wanted:
        (tree / stale).unlink()


def untested(manifest: str) -> str:
    """The manifest of a package without its own tests."""
    if "[lib]\n" in manifest:
        return manifest.replace("[lib]\n", "[lib]\ntest = false\n")
    return f'{manifest}\n[lib]\ntest = false\n\n[[bin]]\nname = "plimsoll"\npath = "src/main.rs"\ntest = false\n'


def recorded(tests: list, work: Path, jobs: int) -> list:
    """The tests that pass without a mutant, with the switches that each reaches and its duration. Cached for the same binaries."""
    path = work / "tests.json"
    binaries = {binary: os.stat(binary).st_mtime_ns for binary in sorted({t.binary for t in tests})}
    if path.exists() and (kept := json.loads(path.read_text()))["binaries"] == binaries:
        names = {(t.binary, t.name) for t in tests}
        return [t for t in (mutant_tests.Test(**known) for known in kept["tests"]) if (t.binary, t.name) in names]
    print(f"{len(tests)} tests, one by one", file=sys.stderr, flush=True)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        passes = list(pool.map(lambda t: mutant_tests.record(t, work), tests))
    for test, passed in zip(tests, passes):
        if not passed:
            print(f"skipped, because it fails without a mutant: {test.crate} {test.name}", file=sys.stderr)
    kept = [t for t, passed in zip(tests, passes) if passed]
    path.write_text(json.dumps({"binaries": binaries, "tests": [asdict(t) for t in kept]}, indent=1))
    return kept


class Unviable:
    """Mutants that do not compile, with reasons, by number; stored in a file that is valid for these mutants only."""

    def __init__(self, path: Path, mutants: list[Mutant]):
        self.path, self.names = path, [m.name for m in mutants]

    def read(self) -> dict[int, str]:
        known = json.loads(self.path.read_text()) if self.path.exists() else {}
        return {int(number): why for number, why in known["why"].items()} if known.get("names") == self.names else {}

    def write(self, why: dict[int, str]) -> None:
        self.path.write_text(json.dumps({"names": self.names, "why": why}))


class Outcomes:
    """The test that detected each mutant, by name, stored in a file; `None` for a survivor."""

    def __init__(self, path: Path, keep: bool):
        self.path, self.lock = path, threading.Lock()
        self.caught = json.loads(path.read_text()) if keep and path.exists() else {}

    def add(self, mutant: Mutant, caught: str | None) -> None:
        with self.lock:
            self.caught[mutant.name] = caught
            self.path.write_text(json.dumps(self.caught, indent=1))
        print(f"{'caught by ' + caught if caught else 'SURVIVED'}: {mutant.name}", file=sys.stderr, flush=True)


def report(ended: list[Mutant], unviable: dict[int, str], caught: dict[str, str | None], arguments) -> str:
    said = verdicts(arguments.out.parent) if arguments.out else {}
    drawn = [m for m in ended if m.is_drawn]
    survived = [m for m in drawn if m.number not in unviable and not caught[m.name]]
    besides = [m for m in ended if not m.is_drawn and m.number not in unviable]
    equivalent = {m.number for m in survived if said.get(m.key, "").startswith("equivalent")}

    def row(name: str, crates: tuple[str, ...]) -> str:
        of = [m for m in drawn if m.crate in crates]
        bad = sum(m.number in unviable for m in of)
        alive = sum(m in survived for m in of)
        same = sum(m.number in equivalent for m in of)
        noticed = len(of) - bad - alive
        ratio = f"{noticed / (noticed + alive - same):.1%}" if noticed + alive > same else "-"
        return f"| {name} | {len(of)} | {bad} | {noticed} | {alive} | {same} | {ratio} |"

    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=REPOSITORY, capture_output=True, text=True).stdout.strip()
    lines = [
        "# Mutants and the tests that detect them",
        "",
        f"- Machine: {cpu_model()}, {os.cpu_count()} cores",
        f"- Date: {date.today()}",
        f"- Commit: {commit}",
        f"- {len(drawn)} mutants, by `scripts/mutants.py {' '.join(sys.argv[1:])}`",
        "- ratio: share of caught mutants among those that compile and are not equivalent",
        "",
        "| crate | drawn | unviable | caught | survived | equivalent survivors | ratio |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(row(crate, (crate,)) for crate in arguments.crates),
        row("all", arguments.crates),
        "",
        "## Survived",
        "",
        *(f"- `{m.name}`: {said.get(m.key, NOT_REVIEWED)}" for m in survived),
    ]
    if besides:
        lines += ["", "## From --also", ""]
        lines += [f"- `{m.name}`: {f'caught by {how}' if (how := caught[m.name]) else said.get(m.key, NOT_REVIEWED)}" for m in besides]
    return "\n".join(lines) + "\n"


def verdicts(folder: Path) -> dict[str, str]:
    """Reviewers' verdicts in files of earlier runs, by the mutants' names without line and column."""
    said = {}
    for path in sorted(folder.glob("*mutants*.md")):
        for file, rest, verdict in re.findall(r"^- `([^:`]+):\d+:\d+:([^`]+)`: (.+)$", path.read_text(), re.MULTILINE):
            if verdict != NOT_REVIEWED and not verdict.startswith("caught by"):
                said[f"{file}:{rest}"] = verdict
    return said


def cpu_model() -> str:
    names = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return names[0] if names else "unknown processor"


if __name__ == "__main__":
    main()
