"""Runs a program in a terminal and draws its screen as an SVG. Shared by the scripts that make pictures; not a script itself.

needs:  pip install pyte (a terminal emulator, which reads what the program writes)
"""

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from html import escape

import pyte

CELL_WIDTH, CELL_HEIGHT, MARGIN = 8.43, 18, 14
GROUND, TEXT = "#1b1f27", "#d8dee9"


class Terminal:
    """A program running in a terminal of this size, until `end`."""

    def __init__(self, words, variables, columns, rows):
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.child, self.side = pty.fork()
        if self.child == 0:
            os.execve(words[0], words, variables | {"TERM": "xterm-256color"})
        fcntl.ioctl(self.side, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        # Output from before the terminal has its size is drawn again.
        os.kill(self.child, signal.SIGWINCH)

    def when(self, is_shown, within_s=600):
        """The rows as soon as `is_shown` is true for the lines: each a list of characters with their styles."""
        began = time.monotonic()
        try:
            while time.monotonic() - began < within_s:
                if select.select([self.side], [], [], 1)[0]:
                    self.stream.feed(os.read(self.side, 65536))
                if is_shown(self.screen.display):
                    screen = self.screen
                    return [[screen.buffer[y][x] for x in range(screen.columns)] for y in range(screen.lines)]
        except OSError as end:
            raise SystemExit("the program ended before that") from end
        raise SystemExit("the program did not show the expected screen in time")

    def end(self):
        os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)


def svg(rows, look, title):
    """The picture; `look` returns foreground, background and boldness for a cell and its row's text."""
    columns = len(rows[0])
    width, height = columns * CELL_WIDTH + 2 * MARGIN, len(rows) * CELL_HEIGHT + 2 * MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}" '
        'role="img" font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace" font-size="14">',
        f"<title>{escape(title)}</title>",
        f'<rect width="100%" height="100%" rx="8" fill="{GROUND}"/>',
    ]
    for y, cells in enumerate(rows):
        text = "".join(cell.data for cell in cells)
        looks = [look(cell, text) for cell in cells]
        x = 0
        while x < columns:
            end = x
            while end < columns and looks[end] == looks[x]:
                end += 1
            letter, ground, bold = looks[x]
            if ground != GROUND:
                out.append(
                    f'<rect x="{MARGIN + x * CELL_WIDTH:.1f}" y="{MARGIN + y * CELL_HEIGHT}" '
                    f'width="{(end - x) * CELL_WIDTH:.1f}" height="{CELL_HEIGHT}" fill="{ground}"/>'
                )
            piece = "".join(cell.data for cell in cells[x:end])
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
