"""Builds the tests of a tree with switched mutants, finds which tests reach which mutants, and runs those. `mutants.py` uses it."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from mutant_switches import Mutant, switch_on

# Crates that the mutated ones depend on, or stand-ins for libraries: their tests cannot reach a mutant.
UNREACHED = ("units", "files", "telemetry", "fake-blas", "fake-cuda", "fake-disk", "fake-nvml")
# Tests run in groups by duration in seconds, fast ones first.
TIERS_S = (0.05, 0.5, 5.0, 1e9)
# A mutant counts as an endless loop if its tests take this many times longer, plus some seconds for a busy machine.
TIMES_BASELINE, GRACE_S = 10, 30
# Memory limit: a mutant may allocate any amount; no test needs this much.
ADDRESS_SPACE_BYTES = 8 << 30


@dataclass
class Test:
    binary: str
    folder: str
    crate: str
    name: str
    seconds: float = 0.0
    reached: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Build:
    """How tests are compiled: fast rather than optimized. External libraries keep their settings, and so does the binary, which only
    forwards."""

    tree: Path
    target: Path
    opt_level: int
    # Whether to build the tests of all crates (libraries first), or as the manifests say.
    whole: bool


def build(how: Build, lib_only: bool) -> tuple[list[dict], list[dict]]:
    """Compiles the tests. Returns cargo's messages about test binaries, and the compiler's errors."""
    tree, target = how.tree, how.target
    command = ["cargo", "test", "--workspace", "--no-run", "--locked", "--message-format=json"]
    command += ["--exclude", "plimsoll-fake-cuda"]
    command += (["--lib"] + ([] if lib_only else ["--test", "*"])) if how.whole else ["--tests"]
    for setting in (f"opt-level={how.opt_level}", "debug=false", "package.plimsoll.opt-level=0"):
        command += ["--config", f"profile.dev.{setting}"]
    environment = os.environ | {"CARGO_TARGET_DIR": str(target)}
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    errors = [m["message"] for m in messages if m["reason"] == "compiler-message" and m["message"]["level"] == "error"]
    errors = [e for e in errors if e["spans"]]
    if done.returncode != 0 and not errors:
        sys.exit(f"the tests do not compile even without mutants:\n{done.stderr[-4000:]}")
    binaries = [m for m in messages if m["reason"] == "compiler-artifact" and m["executable"] and m["profile"]["test"]]
    return binaries, errors


def build_without_unviable(
    repository: Path, how: Build, mutants: list[Mutant], known: dict[int, str]
) -> tuple[list[dict], dict[int, str]]:
    """Puts all mutants into the tree and removes those that do not compile, build by build; some may be `known`. Returns the test
    binaries, and the removed mutants with reasons."""
    unviable, lib_only = dict(known), how.whole
    while True:
        begun = time.monotonic()
        files = switch_on(repository, how.tree, mutants, set(unviable))
        unviable |= {number: why for file in files.values() for number, why in file.refused.items()}
        binaries, errors = build(how, lib_only)
        if not errors and not lib_only:
            return binaries, unviable
        lib_only = how.whole and bool(errors)
        for error in errors:
            spans = sorted(error["spans"], key=lambda s: not s["is_primary"])
            known = [s for span in spans for s in expanded_from(span) if s["file_name"] in files]
            guilty = next((g for s in known if (g := files[s["file_name"]].mutants_at(s["byte_start"], s["byte_end"]))), None)
            if guilty is None:
                sys.exit(f"there is no mutant at the compiler's error:\n{error['rendered']}")
            unviable |= {number: error["message"] for number in guilty}
        print(f"{len(unviable)} unviable so far, {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)


def expanded_from(span: dict) -> list[dict]:
    """The location of a compiler error, and the calls of macros that expanded to it."""
    called = span.get("expansion")
    return [span, *(expanded_from(called["span"]) if called else [])]


def tests_of(binaries: list[dict]) -> list[Test]:
    tests = []
    for binary in binaries:
        folder = Path(binary["manifest_path"]).parent
        if folder.name in UNREACHED:
            continue
        listed = subprocess.run([binary["executable"], "--list", "--format", "terse"], cwd=folder, env=surroundings(folder, {}),
                                capture_output=True, text=True, check=True).stdout
        ignored = subprocess.run([binary["executable"], "--list", "--ignored", "--format", "terse"], cwd=folder,
                                 env=surroundings(folder, {}), capture_output=True, text=True, check=True).stdout.split("\n")
        names = [line.removesuffix(": test") for line in listed.splitlines() if line.endswith(": test") and line not in ignored]
        tests += [Test(binary["executable"], str(folder), folder.name, name) for name in names]
    return tests


def surroundings(folder: Path | str, more: dict[str, str]) -> dict[str, str]:
    """Cargo's environment for tests, with additions."""
    return os.environ | {"CARGO_MANIFEST_DIR": str(folder)} | more


@dataclass(frozen=True)
class Outcome:
    """Result of a group of tests: the first that failed or did not end, if any."""

    failed: str | None
    timed_out: bool
    seconds: float


def run_group(tests: list[Test], switch: dict[str, str], limit_s: float) -> Outcome:
    """Runs tests of one binary in one process, and stops at the first failure."""
    first = tests[0]
    command = [first.binary, "--exact", "--test-threads", "1", *(t.name for t in tests)]
    begun = time.monotonic()
    process = subprocess.Popen(command, cwd=first.folder, env=ENVIRONMENTS.setdefault(first.folder, surroundings(first.folder, {})) | switch,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace",
                               start_new_session=True)
    timed_out = threading.Event()
    timer = threading.Timer(limit_s, lambda: (timed_out.set(), kill(process)))
    timer.start()
    running, failed, ended = None, None, False
    for line in process.stdout:
        if named := re.match(r"test (\S+)(?: - should panic)? \.\.\.", line):
            running = named[1]
        if line.startswith("test ") and line.endswith("FAILED\n") or line == "FAILED\n":
            failed = running
            break
        ended = ended or line.startswith("test result: ok")
    timer.cancel()
    kill(process)
    process.wait()
    if failed is None and not ended:
        failed = running or first.name
    return Outcome(failed, timed_out.is_set(), time.monotonic() - begun)


ENVIRONMENTS: dict[str, dict[str, str]] = {}


def kill(process: subprocess.Popen) -> None:
    """Kills a process and the processes of its session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))


def record(test: Test, scratch: Path) -> bool:
    """Runs a test by itself and records the switches that it reaches and its duration. Returns whether it passes."""
    reached = scratch / f"reached-{threading.get_ident()}"
    reached.unlink(missing_ok=True)
    outcome = run_group([test], {"MUTANT": "record", "MUTANT_REACHED": str(reached)}, 1800.0)
    test.seconds = outcome.seconds
    test.reached = sorted({int(n) for n in reached.read_text().split()}) if reached.exists() else []
    # Recording allocates and writes a file, which a test may forbid.
    return outcome.failed is None or run_group([test], {}, 1800.0).failed is None


def caught_by(mutant: Mutant, tests: list[Test]) -> str | None:
    """The first test that fails with a mutant and passes without it: tests of its crate first, fast ones first."""
    own = mutant.crate
    reaching = [t for t in tests if mutant.number in t.reached]
    tier = {id(t): next(i for i, s in enumerate(TIERS_S) if t.seconds <= s) for t in reaching}

    def order(test: Test):
        return (test.crate != own, tier[id(test)], test.binary)

    for _, group in groupby(sorted(reaching, key=order), key=order):
        group = list(group)
        while group:
            limit_s = TIMES_BASELINE * sum(t.seconds for t in group) + GRACE_S
            outcome = run_group(group, {"MUTANT": str(mutant.number)}, limit_s)
            if outcome.failed is None:
                break
            suspect = next(t for t in group if t.name == outcome.failed)
            # A busy machine can make a test fail: run it without the mutant.
            if run_group([suspect], {}, limit_s).failed is None:
                return f"{suspect.crate}: {suspect.name}" + (" (did not end)" if outcome.timed_out else "")
            group.remove(suspect)
    return None
