#!/usr/bin/env python3
"""Makes the picture of the README: the terminal during a real `plimsoll train`, as an SVG.

usage:  python scripts/picture.py --plimsoll target/release/plimsoll --out docs/src/train.svg [--at 0.7]
needs:  pip install pyte (a terminal emulator, which reads what the program writes)

The program runs with its defaults in a terminal of 80 columns; the screen is drawn when `--at` of the run is done. The screen is not
edited.
"""

import argparse
import os
import re
import tempfile
from pathlib import Path

from terminal_svg import GROUND, TEXT, Terminal, svg

COLUMNS, ROWS = 80, 36
PALETTE = {"default": TEXT, "cyan": "#7fd4e6", "red": "#e06c75", "brown": "#e5c07b", "green": "#98c379"}
DIM = "#5b6473"


def screen_of_a_run(program, at):
    """The rows of the terminal when `at` of the run is done."""

    def is_done(lines):
        done = re.search(r"[━╸─] +(\d+) %  ", "\n".join(lines))
        # The line of the bar may be incomplete.
        return done and int(done[1]) >= 100 * at and any("tok/s" in line for line in lines)

    with tempfile.TemporaryDirectory() as folder:
        terminal = Terminal([program, "train", "--runs-dir", folder], dict(os.environ), COLUMNS, ROWS)
        try:
            return terminal.when(is_done)
        finally:
            terminal.end()


def look(cell, row):
    # The rest of a bar is dim, which the emulator does not report.
    letter = DIM if cell.data == "─" and "━" in row else PALETTE.get(cell.fg, TEXT)
    return letter, GROUND, cell.bold


def drawn(rows):
    while rows and not "".join(cell.data for cell in rows[-1]).strip():
        rows.pop()
    return svg(rows, look, "plimsoll train in a terminal: the plan, and the run as it goes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plimsoll", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--at", type=float, default=0.7)
    given = parser.parse_args()
    given.out.write_text(drawn(screen_of_a_run(str(given.plimsoll.resolve()), given.at)))


if __name__ == "__main__":
    main()
