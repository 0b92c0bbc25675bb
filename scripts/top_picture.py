#!/usr/bin/env python3
"""Makes the picture of `plimsoll top`: the terminal in the middle of a real `plimsoll train`, as an SVG.

usage:  python scripts/top_picture.py --plimsoll target/release/plimsoll --nvml libnvml.so --out docs/src/top.svg
needs:  pip install pyte (a terminal emulator, which reads what the program writes)

`plimsoll train` runs with its defaults, on the processor. The cards are those of a stand-in for NVIDIA's driver (`--nvml`:
`cargo build -p plimsoll-fake-nvml` leaves it below `target/debug/build/plimsoll-fake-nvml-*/out`), which says that the run has
memory of one, and that somebody else has some too. Nothing on the screen is changed.
"""

import argparse
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import tempfile
import termios
import time
from html import escape
from pathlib import Path

import pyte
from picture import CELL_HEIGHT, CELL_WIDTH, MARGIN

COLUMNS, ROWS = 110, 38
GROUND, TEXT = "#1b1f27", "#d8dee9"
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

# Values over time of the first card, then of the second. {run} and {other} are numbers of processes.
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
    """The rows of the terminal when `at` of the run is done: each a list of characters with their looks."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    with tempfile.TemporaryDirectory() as folder:
        runs = ["--runs-dir", f"{folder}/runs"]
        # Where names of runs are kept, so that those of whoever makes the picture are not in it.
        own = {**os.environ, "XDG_STATE_HOME": f"{folder}/state", "TERM": "xterm-256color"}
        # Somebody else on the card.
        other = subprocess.Popen(["sleep", "600"])
        train = subprocess.Popen(
            [program, "train", "--eval-every", "50", *runs], env=own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        script = Path(folder, "script")
        script.write_text(VALUES.format(run=train.pid, other=other.pid))
        child, terminal = pty.fork()
        if child == 0:
            own |= {"PLIMSOLL_NVML": nvml, "PLIMSOLL_FAKE_GPUS": MACHINE, "PLIMSOLL_FAKE_NVML_SCRIPT": str(script)}
            # What is seen before the terminal has its size is drawn again.
            os.execve(program, [program, "top", "--palette", "color", *runs], own)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.kill(child, signal.SIGWINCH)
        try:
            began = time.monotonic()
            while time.monotonic() - began < 600:
                if select.select([terminal], [], [], 1)[0]:
                    stream.feed(os.read(terminal, 65536))
                steps = re.search(r" running +(\d+)/(\d+) ", "\n".join(screen.display))
                if steps and int(steps[1]) >= at * int(steps[2]):
                    return [[screen.buffer[y][x] for x in range(COLUMNS)] for y in range(ROWS)]
            raise SystemExit("the run did not come that far")
        except OSError as end:
            raise SystemExit("the screen ended before that") from end
        finally:
            for process in (child, train.pid, other.pid):
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            os.waitpid(child, 0)
            train.wait()
            other.wait()


# What the emulator makes of the first sixteen colors where a program asks for them by number.
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


def looks(cell):
    """The colors of letter and ground, and whether it is bold."""
    letter, ground = color(cell.fg, TEXT), color(cell.bg, GROUND)
    return (ground, letter, cell.bold) if cell.reverse else (letter, ground, cell.bold)


def drawn(rows):
    width, height = COLUMNS * CELL_WIDTH + 2 * MARGIN, ROWS * CELL_HEIGHT + 2 * MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}" '
        'role="img" font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace" font-size="14">',
        "<title>plimsoll top in a terminal: cards, their memory and processes, and a run as it trains</title>",
        f'<rect width="100%" height="100%" rx="8" fill="{GROUND}"/>',
    ]
    for y, cells in enumerate(rows):
        x = 0
        while x < COLUMNS:
            end, look = x, looks(cells[x])
            while end < COLUMNS and looks(cells[end]) == look:
                end += 1
            letter, ground, bold = look
            piece = "".join(cell.data for cell in cells[x:end])
            if ground != GROUND:
                out.append(
                    f'<rect x="{MARGIN + x * CELL_WIDTH:.1f}" y="{MARGIN + y * CELL_HEIGHT}" '
                    f'width="{(end - x) * CELL_WIDTH:.1f}" height="{CELL_HEIGHT}" fill="{ground}"/>'
                )
            start = x + len(piece) - len(piece.lstrip())
            piece = piece.strip()
            if piece:
                weight = ' font-weight="bold"' if bold else ""
                out.append(
                    f'<text x="{MARGIN + start * CELL_WIDTH:.1f}" y="{MARGIN + (y + 0.75) * CELL_HEIGHT:.1f}" '
                    f'textLength="{len(piece) * CELL_WIDTH:.1f}" lengthAdjust="spacingAndGlyphs" xml:space="preserve" '
                    f'fill="{letter}"{weight}>{escape(piece)}</text>'
                )
            x = end
    out.append("</svg>")
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plimsoll", required=True, type=Path)
    parser.add_argument("--nvml", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--at", type=float, default=0.6)
    given = parser.parse_args()
    program, nvml = str(given.plimsoll.resolve()), str(given.nvml.resolve())
    given.out.write_text(drawn(screen_of_a_run(program, nvml, given.at)))


if __name__ == "__main__":
    main()
