#!/usr/bin/env python3
"""The road from `--vram` to the offset of every byte: the files that a budget passes through, in order.

usage:  python scripts/road.py
needs:  Python alone

Each stop is a file that defines a function, and the file of an earlier or the next stop that calls it; the script looks
both up in the code, so a road that no longer exists is an error. stdout is the road, and the files that read a budget
but are not on it: those that ask for more plans (hints, curves), and those that show them. Exit status: 0, or 1 if a stop is
missing, a file comes twice, or there are more than 14.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

LONGEST = 14
ROOT = Path(__file__).resolve().parent.parent / "crates"


@dataclass(frozen=True)
class Stop:
    # The end of the file's path.
    file: str
    # The function that it defines.
    defines: str
    # The end of the path of a file that calls it, and the call.
    caller: str
    call: str


ROAD = [
    Stop("plimsoll/src/cli/budget.rs", "fn of_card(", "plimsoll/src/cli/device.rs", "of_card("),
    Stop("plimsoll/src/cli/device.rs", "fn of_card(", "plimsoll/src/cli/plan.rs", "Device::"),
    Stop("plimsoll/src/cli/request.rs", "fn request(", "plimsoll/src/cli/plan.rs", ".request("),
    Stop("plimsoll/src/cli/plan.rs", "fn plan(", "plimsoll/src/cli/plan.rs", ".plan("),
    Stop("plan/src/search/mod.rs", "pub fn search(", "plimsoll/src/cli/plan.rs", "search(&request)"),
    Stop("plan/src/search/heap.rs", "fn cheapest(", "plan/src/search/mod.rs", ".cheapest()"),
    Stop("plan/src/layout.rs", "fn within(", "plan/src/search/heap.rs", "Layout::within("),
    Stop("plan/src/budget.rs", "fn holds(", "plan/src/layout.rs", "budget.holds("),
    Stop("plan/src/lifetimes.rs", "fn lifetimes(", "plan/src/layout.rs", "lifetimes("),
    Stop("pack.rs", "pub fn pack(", "plan/src/layout.rs", "pack(&self.problem"),
]


def main() -> None:
    sources = [path for path in sorted(ROOT.glob("*/src/**/*.rs")) if "tests" not in path.name and "tests" not in path.parts]
    code = {path.relative_to(ROOT).as_posix(): code_of(path) for path in sources}
    problems, stops = [], []
    for stop in ROAD:
        defining = [name for name, text in code.items() if name.endswith(stop.file) and stop.defines in text]
        calling = [name for name, text in code.items() if name.endswith(stop.caller) and stop.call in text]
        if len(defining) != 1:
            problems.append(f"`{stop.defines}` should be in one file that ends with {stop.file}, but is in {len(defining)}")
        if not calling:
            problems.append(f"{stop.caller} does not call `{stop.call}`")
        stops += defining
    if len(set(stops)) < len(stops):
        problems.append("the road comes back to a file that it left")
    if len(stops) > LONGEST:
        problems.append(f"the road has {len(stops)} files, but should have {LONGEST} at most")
    for number, stop in enumerate(stops, 1):
        print(f"{number:2} {stop}")
    reads = re.compile(r"\bbudget\b|\bBudget\b")
    others = [name for name, text in code.items() if name.startswith("plan/") and reads.search(text) and name not in stops]
    print(f"{len(stops)} files. Files of `plan` that read a budget besides: {', '.join(others)}")
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)


def code_of(path: Path) -> str:
    """A file without comments and without its tests."""
    text = path.read_text().split("#[cfg(test)]\nmod tests {")[0]
    return "\n".join(line.split("//")[0] for line in text.splitlines())


if __name__ == "__main__":
    main()
