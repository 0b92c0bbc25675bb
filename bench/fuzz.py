#!/usr/bin/env python3
"""Runs the property tests of every parser of untrusted bytes with many more cases than `cargo test` does.

    python3 bench/fuzz.py --seconds 3600

Each test runs in a process with a limit on its memory, with fresh random cases, again and again until the time is over. A
failure ends the script with code 1, and prints the smallest case that proptest found. The last line is the number of
cases. Formats of `data/tests/fuzz.rs` are not included: PLIMSOLL_FUZZ_SECONDS runs them for longer.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MEMORY_MAX = 2 << 30

# By test binary: the crate and the target, and the tests, each with its cases per unit of PROPTEST_CASES.
TESTS = {
    ("arena", "plimsoll_arena"): {"csv::never_panics": 1},
    ("data", "plimsoll_data"): {
        "any_line_is_read_or_refused": 1,
        "any_text_is_read_or_refused": 1,
        "any_changed_byte_is_refused": 1,
        "random_bytes_are_refused": 1,
        "damaged_files_never_panic_and_never_pass_as_other_text": 1,
        "rows::tests::any_bytes_are_read_or_refused": 1,
        "any_levels_are_counted_or_refused": 1,
        "table::header::tests::any_bytes_are_read_or_refused": 1,
        "damaged_files_are_read_or_refused": 1,
        "parsing_never_panics_and_display_parses_back": 1,
    },
    ("fake-cuda", "hostile"): {"any_text_is_handled": 2, "any_words_are_handled": 2, "a_changed_kernel_is_handled": 2},
    ("graph", "configs"): {"any_values_are_accepted_or_rejected_by_key": 1, "any_text_is_accepted_or_rejected": 1},
    ("orders", "orders"): {"complete_orders_are_read_from_any_text": 1},
    ("registry", "plimsoll_registry"): {
        "any_output_is_parsed": 1,
        "an_output_in_two_pieces_gives_the_same_progress": 1,
        "parsing_never_panics": 1,
    },
    ("secrets", "plimsoll_secrets"): {"any_text_is_read_without_panic": 1},
    ("supervise", "plimsoll_supervise"): {
        "any_text_is_parsed_or_rejected": 1,
        "any_bytes_are_a_frame_or_an_error": 1,
        "any_text_is_split_into_lines": 1,
        "the_last_bytes_are_kept": 1,
    },
    ("torch-memory", "plimsoll_torch_memory"): {
        "no_bytes_cause_a_panic": 16,
        "no_mutation_of_a_pickle_causes_a_panic": 16,
        "no_recording_causes_a_panic": 2,
    },
    ("train", "plimsoll_train"): {"flipped_bits_are_detected_without_panics": 1},
    ("trainers", "plimsoll_trainers"): {
        "no_text_ends_the_program": 1,
        "any_bytes_are_handled": 1,
        "any_damaged_file_is_handled": 1,
        "any_text_is_read_or_rejected": 1,
        "any_value_is_read_or_rejected": 1,
        "any_text_and_arguments_are_rewritten_or_rejected": 1,
    },
    ("units", "plimsoll_units"): {
        "bytes::tests::parsing_never_panics": 1,
        "count::tests::parsing_never_panics": 1,
        "duration::tests::parsing_never_panics": 1,
    },
    ("watch", "follow"): {"any_files_of_a_run_are_followed": 0.25},
}


@dataclass
class Fuzzed:
    """A test, and what it ran."""

    crate: str
    binary: Path
    test: str
    factor: float
    seconds: float = 0.0
    cases: int = 0
    # PROPTEST_CASES of the next round.
    next: int = 100

    def run(self, seconds: float) -> None:
        """Runs a round of about this time. Exits if the test fails."""
        if self.cases:
            rate = self.cases / self.factor / max(self.seconds, 0.01)
            self.next = max(20, min(int(rate * seconds), 50 * self.next))
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))  # noqa: E731
        start = time.monotonic()
        environment = os.environ | {"PROPTEST_CASES": str(self.next)}
        command = [self.binary, "--exact", self.test]
        run = subprocess.run(
            command, cwd=ROOT / "crates" / self.crate, env=environment, preexec_fn=limit, capture_output=True, text=True, check=False
        )
        self.seconds += time.monotonic() - start
        if run.returncode != 0 or "1 passed" not in run.stdout:
            sys.exit(f"{self.binary.name} {self.test}:\n{run.stdout}{run.stderr}")
        self.cases += int(self.next * self.factor)


def built() -> list[Fuzzed]:
    """Builds the tests and finds each by its name. Exits if one is missing."""
    targets = sorted({target for _, target in TESTS if not target.startswith("plimsoll_")})
    build = ["cargo", "test", "--workspace", "--lib", *(word for name in targets for word in ("--test", name))]
    build += ["--no-run", "--message-format=json"]
    lines = subprocess.run(build, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    found = {}
    for line in lines:
        message = json.loads(line)
        if message.get("executable") and message["profile"]["test"]:
            crate = Path(message["manifest_path"]).parent.name
            found[crate, message["target"]["name"]] = Path(message["executable"])
    fuzzed = []
    for (crate, target), tests in TESTS.items():
        binary = found[crate, target]
        listed = subprocess.run([binary, "--list"], capture_output=True, text=True, check=True).stdout.splitlines()
        names = [line.removesuffix(": test") for line in listed if line.endswith(": test")]
        for test, factor in tests.items():
            full = [name for name in names if name == test or name.endswith(f"::{test}")]
            if len(full) != 1:
                sys.exit(f"{crate} {target}: {len(full)} tests are named {test}")
            fuzzed.append(Fuzzed(crate, binary, full[0], factor))
    return fuzzed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long to run, without the build")
    args = parser.parse_args()
    fuzzed = built()
    start, rounds = time.monotonic(), 0
    while rounds == 0 or time.monotonic() - start < args.seconds:
        left = args.seconds - (time.monotonic() - start)
        # The first round measures the tests; later ones double.
        each = max(0.2, min(0.5 * 2**rounds, left / len(fuzzed)))
        for test in fuzzed:
            test.run(each)
        rounds += 1
    for test in fuzzed:
        print(f"{test.crate} {test.test}: {test.cases} cases, {test.seconds / max(test.cases, 1) * 1e6:.1f} us each")
    total = sum(test.cases for test in fuzzed)
    print(f"evidence: {total} cases of {len(fuzzed)} parsers' tests, each within {MEMORY_MAX >> 30} GiB")


if __name__ == "__main__":
    main()
