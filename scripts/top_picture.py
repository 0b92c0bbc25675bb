#!/usr/bin/env python3
"""Makes the picture of `plimsoll top`: the terminal during a real `plimsoll train`, as an SVG.

usage:  python scripts/top_picture.py --plimsoll target/release/plimsoll --nvml libnvml.so --out docs/src/top.svg
needs:  pip install pyte (a terminal emulator, which reads what the program writes)

`plimsoll train` runs with its defaults, on the CPU. The cards are those of an NVML stand-in (`--nvml`:
`cargo build -p plimsoll-fake-nvml` puts it below `target/debug/build/plimsoll-fake-nvml-*/out`), which reports that the run and
another user's process have memory of one card. The screen is not edited.
"""

import argparse
import os
import re
import subprocess
import tempfile
from pathlib import Path

from terminal_svg import GROUND, TEXT, Terminal, svg

COLUMNS, ROWS = 110, 38
PALETTE = {
    "default": TEXT,
    "black": "#1b1f27",
    "cyan": "#7fd4e6",
    "red": "#e06c75",
    "brown": "#e5c07b",
    "green": "#98c379",
    "magenta": "#c678dd",
    "brightblack": "#7b8494",
}

MACHINE = "NVIDIA GeForce RTX 4090,GPU-a,24564,400,0;NVIDIA GeForce RTX 3060,GPU-b,12288,350,0"

# Readings over time, of the first card and then of the second. {run} and {other} are pids.
VALUES = """\
clock real 1
0..40 0 temperature 55..79
0 0 memory_temperature 88
0 0 slowdown 90
0 0 shutdown 95
0..10 0 power 180..348
0 0 power_limit 450
0 0 sm_clock 2520
0 0 memory_clock 10501
0 0 throttling 4
0 0 performance_state 2
0..40 0 fan 40..64
0 0 busy 97
0 0 used 6632
0 0 process {run} 212
0 0 process {other} 6420
0 1 temperature 41
0 1 slowdown 93
0 1 shutdown 98
0 1 power 21
0 1 power_limit 170
0 1 sm_clock 210
0 1 throttling 1
0 1 fan 0
0 1 busy 0
"""


def screen_of_a_run(program, nvml, at):
    """The rows of the terminal when `at` of the run is done."""

    def is_done(lines):
        steps = re.search(r" running +(\d+)/(\d+) ", "\n".join(lines))
        return steps and int(steps[1]) >= at * int(steps[2])

    with tempfile.TemporaryDirectory() as folder:
        runs = ["--runs-dir", f"{folder}/runs"]
        # State folder, so that the user's own runs are not in the picture.
        own = {**os.environ, "XDG_STATE_HOME": f"{folder}/state"}
        # A process of another user on the card.
        other = subprocess.Popen(["sleep", "600"])
        train = subprocess.Popen(
            [program, "train", "--eval-every", "50", *runs], env=own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        script = Path(folder, "script")
        script.write_text(VALUES.format(run=train.pid, other=other.pid))
        own |= {"PLIMSOLL_NVML": nvml, "PLIMSOLL_FAKE_GPUS": MACHINE, "PLIMSOLL_FAKE_NVML_SCRIPT": str(script)}
        terminal = Terminal([program, "top", "--palette", "color", *runs], own, COLUMNS, ROWS)
        try:
            return terminal.when(is_done)
        finally:
            terminal.end()
            for process in (train, other):
                process.kill()
                process.wait()


# The emulator's names of the first sixteen colors if a program selects them by number.
NUMBERED = {
    "000000": "black",
    "cd0000": "red",
    "00cd00": "green",
    "cdcd00": "brown",
    "cd00cd": "magenta",
    "00cdcd": "cyan",
    "7f7f7f": "brightblack",
}


def color(name, usual):
    name = NUMBERED.get(name, name)
    if name == "default":
        return usual
    return PALETTE.get(name, f"#{name}" if re.fullmatch("[0-9a-f]{6}", name) else usual)


def look(cell, _):
    """Foreground, background, and whether the cell is bold."""
    letter, ground = color(cell.fg, TEXT), color(cell.bg, GROUND)
    return (ground, letter, cell.bold) if cell.reverse else (letter, ground, cell.bold)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plimsoll", required=True, type=Path)
    parser.add_argument("--nvml", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--at", type=float, default=0.6)
    given = parser.parse_args()
    program, nvml = str(given.plimsoll.resolve()), str(given.nvml.resolve())
    title = "plimsoll top in a terminal: GPUs, their memory and processes, and a training run"
    given.out.write_text(svg(screen_of_a_run(program, nvml, given.at), look, title))


if __name__ == "__main__":
    main()
