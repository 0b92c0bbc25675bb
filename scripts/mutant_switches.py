"""Puts many mutants into a copy of the sources at once, each behind a switch that an environment variable selects.

    fn f(a: u32) -> u32 { a + 1 }
    fn f(a: u32) -> u32 { if ::plimsoll_units::mutant(7) { return 0; } (if ::plimsoll_units::mutant(8) { a - 1 } else { a + 1 }) }

One build then covers all of them (mutant schemata: Untch, Offutt and Harrold 1993). `mutants.py` uses it.
"""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from rust_expressions import NoExpression, Source

UNITS = "crates/units/src/lib.rs"
# Added to the copy's `units` crate. `MUTANT` is the number of the mutant to turn on, or `record`, which turns none on
# and writes the number of each mutant reached to the file `MUTANT_REACHED`.
SWITCH = """
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
static CHOSEN: AtomicI64 = AtomicI64::new(-3);
static REACHED: [AtomicBool; 4096] = [const { AtomicBool::new(false) }; 4096];

#[doc(hidden)]
#[inline(always)]
pub fn mutant(number: i64) -> bool {
    let chosen = CHOSEN.load(Relaxed);
    chosen == number || (chosen < -1 && is_chosen(number))
}

#[cold]
fn is_chosen(number: i64) -> bool {
    if CHOSEN.load(Relaxed) == -3 {
        let chosen = std::env::var("MUTANT").unwrap_or_default();
        CHOSEN.store(if chosen == "record" { -2 } else { chosen.parse().unwrap_or(-1) }, Relaxed);
    }
    if CHOSEN.load(Relaxed) == -2 && !REACHED[number as usize].swap(true, Relaxed) {
        use std::io::Write;
        let path = std::env::var_os("MUTANT_REACHED").unwrap();
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        file.write_all(format!("{number}\\n").as_bytes()).unwrap();
    }
    CHOSEN.load(Relaxed) == number
}
"""


@dataclass(frozen=True)
class Mutant:
    number: int
    name: str
    crate: str
    file: str
    genre: str
    replacement: str
    # (line, column) of the first character and of the one after the last, both from 1.
    first: tuple[int, int]
    behind: tuple[int, int]
    # Whether it is in the sample that is counted.
    is_drawn: bool

    @property
    def key(self) -> str:
        """Its name without line and column, which other edits of the file change."""
        file, _, _, rest = self.name.split(":", 3)
        return f"{file}:{rest}"


@dataclass(frozen=True)
class Edit:
    """Replaces `[start, end)` by `before`, `[kept, kept_end)` with the nested edits applied, and `after`."""

    start: int
    end: int
    kept: int
    kept_end: int
    before: str
    after: str
    number: int


def edit_of(mutant: Mutant, source: Source) -> Edit:
    """The edit that puts a mutant behind its switch. Raises `NoExpression` if that is not possible."""
    text, number = source.text, mutant.number
    start, end = position(text, mutant.first), position(text, mutant.behind)
    on, new = f"::plimsoll_units::mutant({number})", mutant.replacement
    if mutant.genre == "FnValue":
        return Edit(start, start, start, start, f"if {on} {{ return {new}; }} ", "", number)
    if mutant.genre == "BinaryOperator":
        first, last = source.operands(start)
        return choice(first, last, on, text[first:start] + new + text[end:last], number)
    if mutant.genre == "UnaryOperator":
        first, last = source.operand(start)
        return choice(first, last, on, new + text[end:last], number)
    if mutant.genre == "MatchArmGuard":
        return choice(start, end, on, new, number)
    if mutant.genre == "MatchArm":
        arrow, guard = source.arrow(start)
        if guard is None:
            return Edit(arrow, arrow, arrow, arrow, f"if !{on} ", "", number)
        return Edit(guard, arrow, guard, arrow, f"!{on} && (", ") ", number)
    if mutant.genre == "StructField":
        name, first, last, base = source.field(start)
        if first == last:
            return Edit(first, last, first, last, f": (if {on} {{ ({base}).{name} }} else {{ {name} }})", "", number)
        return choice(first, last, on, f"({base}).{name}", number)
    raise NoExpression(f"{mutant.genre} is not known")


def choice(first: int, last: int, on: str, new: str, number: int) -> Edit:
    return Edit(first, last, first, last, f"(if {on} {{ {new} }} else {{ ", " })", number)


def position(text: str, at: tuple[int, int]) -> int:
    line, column = at
    start = 0
    for _ in range(line - 1):
        start = text.index("\n", start) + 1
    return start + column - 1


class Switched:
    """A file with its mutants behind switches, and the mutant to which each character belongs."""

    def __init__(self, text: str, mutants: list[Mutant]):
        self.pieces, self.refused = [], {}
        source, edits = Source(text), []
        for mutant in mutants:
            try:
                edits.append(edit_of(mutant, source))
            except NoExpression as error:
                self.refused[mutant.number] = str(error)
        edits.sort(key=lambda e: (e.start, -e.end, e.number))
        self.render(text, 0, len(text), edits)
        self.text = "".join(piece for piece, _ in self.pieces)

    def render(self, text: str, at: int, end: int, edits: list[Edit]) -> None:
        while edits:
            edit, edits = edits[0], edits[1:]
            inner = [e for e in edits if edit.kept <= e.start and e.end <= edit.kept_end and edit.kept < edit.kept_end]
            edits = [e for e in edits if e not in inner]
            self.pieces.append((text[at : edit.start], None))
            self.pieces.append((edit.before, edit.number))
            self.render(text, edit.kept, edit.kept_end, inner)
            self.pieces.append((edit.after, edit.number))
            at = edit.end
        self.pieces.append((text[at:end], None))

    def mutants_at(self, first_byte: int, last_byte: int) -> set[int]:
        """The mutants whose text overlaps a range of bytes; else the last one before it, whose `return` may have another type than the
        end of the body."""
        found, before, at = set(), set(), 0
        for piece, number in self.pieces:
            end = at + len(piece.encode())
            if number is not None and at < max(last_byte, first_byte + 1) and first_byte < end:
                found.add(number)
            if number is not None and at < first_byte:
                before = {number}
            at = end
        return found or before


def switch_on(repository: Path, tree: Path, mutants: list[Mutant], without: set[int]) -> dict[str, Switched]:
    """Writes the files with mutants into a copy of the repository, with all mutants except `without` behind switches. Leaves
    up-to-date files untouched, so that they are not recompiled. Returns the files by path."""
    by_file = defaultdict(list)
    for mutant in mutants:
        by_file[mutant.file].append(mutant)
    files = {}
    for file, there in by_file.items():
        files[file] = Switched((repository / file).read_text(), [m for m in there if m.number not in without])
        write(tree / file, files[file].text)
    write(tree / UNITS, (repository / UNITS).read_text() + SWITCH)
    return files


def write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
