#!/usr/bin/env python3
"""Makes the picture of the README: the terminal in the middle of a real `plimsoll train`, as an SVG.

usage:  python scripts/picture.py --plimsoll target/release/plimsoll --out docs/src/train.svg [--at 0.7]
needs:  pip install pyte (a terminal emulator, which reads what the program writes)

The program runs with its defaults in a terminal of 80 columns, and its screen is drawn when it shows that so much of the
run is done. Nothing on the screen is changed.
"""

import argparse
import fcntl
import os
import pty
import re
import select
import struct
import tempfile
import termios
from html import escape
from pathlib import Path

import pyte

COLUMNS, ROWS = 80, 36
CELL_WIDTH, CELL_HEIGHT, MARGIN = 8.43, 18, 14
PALETTE = {"default": "#d8dee9", "cyan": "#7fd4e6", "red": "#e06c75", "brown": "#e5c07b", "green": "#98c379"}
DIM = "#5b6473"


def screen_of_a_run(program, at):
    """The rows of the terminal when `at` of the run is done: each a list of characters with their looks."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    with tempfile.TemporaryDirectory() as folder:
        child, terminal = pty.fork()
        if child == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execv(program, [program, "train", "--runs-dir", folder])
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        try:
            while True:
                select.select([terminal], [], [])
                stream.feed(os.read(terminal, 4096))
                done = re.search(r"[━╸─] +(\d+) %  ", "\n".join(screen.display))
                # A part of the bar may be written yet.
                if done and int(done[1]) >= 100 * at and any("tok/s" in row for row in screen.display):
                    return [[screen.buffer[y][x] for x in range(COLUMNS)] for y in range(ROWS)]
        except OSError as end:
            raise SystemExit("the run ended before that") from end
        finally:
            os.kill(child, 2)
            os.kill(child, 9)
            os.waitpid(child, 0)


def color(cell, row):
    # The rest of a bar is dim, which the emulator does not tell.
    if cell.data == "─" and "━" in row:
        return DIM
    return PALETTE.get(cell.fg, PALETTE["default"])


def drawn(rows):
    while rows and not "".join(cell.data for cell in rows[-1]).strip():
        rows.pop()
    width, height = COLUMNS * CELL_WIDTH + 2 * MARGIN, len(rows) * CELL_HEIGHT + 2 * MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}" '
        'role="img" font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace" font-size="14">',
        "<title>plimsoll train in a terminal: the plan, and the run as it goes</title>",
        f'<rect width="100%" height="100%" rx="8" fill="#1b1f27"/>',
    ]
    for y, cells in enumerate(rows):
        text = "".join(cell.data for cell in cells)
        x = 0
        while x < COLUMNS:
            end = x
            looks = (color(cells[x], text), cells[x].bold)
            while end < COLUMNS and (color(cells[end], text), cells[end].bold) == looks:
                end += 1
            piece = text[x:end].rstrip()
            if piece:
                left = len(piece) - len(piece.lstrip())
                piece, start = piece.lstrip(), x + left
                weight = ' font-weight="bold"' if looks[1] else ""
                out.append(
                    f'<text x="{MARGIN + start * CELL_WIDTH:.1f}" y="{MARGIN + (y + 0.75) * CELL_HEIGHT:.1f}" '
                    f'textLength="{len(piece) * CELL_WIDTH:.1f}" lengthAdjust="spacingAndGlyphs" xml:space="preserve" '
                    f'fill="{looks[0]}"{weight}>{escape(piece)}</text>'
                )
            x = end
    out.append("</svg>")
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plimsoll", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--at", type=float, default=0.7)
    given = parser.parse_args()
    given.out.write_text(drawn(screen_of_a_run(str(given.plimsoll.resolve()), given.at)))


if __name__ == "__main__":
    main()
