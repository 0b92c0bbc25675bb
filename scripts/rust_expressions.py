"""Finds the extent of a Rust expression: the operands of an operator, the pattern of a match arm.

Not a Rust parser: tokens, matching brackets, and operator precedence suffice to put a switch around an expression, and the compiler
checks the result. Positions are character indices in the text. `mutants.py` uses it.
"""

import re
from bisect import bisect_left
from dataclasses import dataclass

TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<text>[bc]?r(?P<hashes>\#*)".*?"(?P=hashes)|[bc]?"(?:\\.|[^"\\])*"|b?'(?:\\(?:u\{[^}]*\}|x..|.)|[^'\\])')
    |(?P<lifetime>'\w+)
    |(?P<number>0[xob][\da-fA-F_]+\w*|\d[\d_]*(?:\.\d[\d_]*|\.(?![.\w]))?(?:[eE][+-]?[\d_]+)?\w*)
    |(?P<word>(?:r\#)?[^\W\d]\w*)
    |(?P<mark><<=|>>=|\.\.\.|\.\.=|::|->|=>|==|!=|<=|>=|&&|\|\||[-+*/%^&|]=|<<|>>|\.\.|[^\w\s])""",
    re.VERBOSE | re.DOTALL,
)
LEVELS = (
    "= += -= *= /= %= ^= &= |= <<= >>=",
    ".. ..=",
    "||",
    "&&",
    "== != < > <= >=",
    "|",
    "^",
    "&",
    "<< >>",
    "+ -",
    "* / %",
)
PRECEDENCE = {mark: level for level, marks in enumerate(LEVELS) for mark in marks.split()}
ASSIGNMENT = 0
BEFORE_EXPRESSIONS = {"return", "break", "if", "while", "match", "in", "let", "else"}
HEADS = {"if", "while", "match", "in"}
WITH_BLOCK = {"if", "match", "unsafe", "loop", "while", "for"}
PREFIXES = {"-", "*", "!", "&", "&&", "mut", "move", "ref", ".."}
OPENS_CLOSURE = {",", "=", "=>", "move", "return", "&", "("}
CLOSERS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class Item:
    """A token; for a bracketed group, its opening bracket and the end of the group."""

    kind: str
    text: str
    start: int
    end: int


class Source:
    """A file's text and tokens, with the closing bracket of each opening one."""

    def __init__(self, text: str):
        self.text = text
        matches = (m for m in TOKEN.finditer(text) if m.lastgroup != "space")
        self.tokens = [Item(m.lastgroup, m.group(), m.start(), m.end()) for m in matches]
        self.starts = [token.start for token in self.tokens]
        self.closes, self.parent = {}, {}
        open_groups = []
        for index, token in enumerate(self.tokens):
            if token.kind == "mark" and token.text in CLOSERS.values():
                self.closes[open_groups.pop()] = index
            self.parent[index] = open_groups[-1] if open_groups else None
            if token.kind == "mark" and token.text in CLOSERS:
                open_groups.append(index)

    def around(self, position: int) -> tuple[list[Item], int]:
        """The items of the group that contains the token at `position`, and its index among them."""
        index = bisect_left(self.starts, position)
        assert self.starts[index] == position, f"no token begins at {position}"
        group = self.parent[index]
        at, end = (0, len(self.tokens)) if group is None else (group + 1, self.closes[group])
        items, wanted = [], None
        while at < end:
            token = self.tokens[at]
            if at == index:
                wanted = len(items)
            last = self.closes.get(at, at)
            kind = "group" if last != at else token.kind
            items.append(Item(kind, token.text, token.start, self.tokens[last].end))
            at = last + 1
        assert wanted is not None
        return items, wanted

    def operands(self, position: int) -> tuple[int, int]:
        """Start and end of the expression of the binary operator at `position`."""
        items, at = self.around(position)
        first, in_head = segment(items, at)
        walk = Walk(items, first, in_head)
        if at not in walk.operators:
            raise NoExpression(f"`{items[at].text}` at character {position} has no operands")
        level = PRECEDENCE[items[at].text]
        weaker = [i + 1 for i in walk.operators if i < at and PRECEDENCE[items[i].text] < level]
        left = max([first, *weaker, *(i for i in walk.bodies if i <= at)])
        ends = [i for i in walk.operators if i > at and ASSIGNMENT < level >= PRECEDENCE[items[i].text]]
        return items[left].start, items[min([*ends, walk.end]) - 1].end

    def operand(self, position: int) -> tuple[int, int]:
        """Start and end of the expression of the prefix operator at `position`."""
        items, at = self.around(position)
        walk = Walk(items, at, segment(items, at)[1])
        return items[at].start, items[min([*walk.operators, *walk.casts, walk.end]) - 1].end

    def arrow(self, position: int) -> tuple[int, int | None]:
        """For the match arm at `position`: the position of its `=>`, and of its guard if it has one."""
        items, at = self.around(position)
        guard = None
        while items[at].text != "=>":
            if items[at].text == "if" and guard is None:
                guard = items[at + 1].start
            at += 1
        return items[at].start, guard

    def field(self, position: int) -> tuple[str, int, int, str]:
        """For the field of a struct expression at `position`: its name, start and end of its value (equal for the shorthand), and the
        text of the base that provides the other fields."""
        items, at = self.around(position)
        comma = next(i for i in range(at, len(items)) if items[i].text == ",")
        base = next(i for i in range(comma, len(items)) if items[i].text == "..")
        value = (items[at].end, items[at].end) if comma == at + 1 else (items[at + 2].start, items[comma - 1].end)
        return items[at].text, *value, self.text[items[base].end : items[-1].end]


class NoExpression(Exception):
    """The text is not an expression that this script understands."""


class Walk:
    """Walks over the expression that starts with item `at`: collects its binary operators (`operators`), casts (`casts`), starts of
    closure bodies (`bodies`), and the item after it (`end`)."""

    def __init__(self, items: list[Item], at: int, in_head: bool):
        self.items, self.in_head = items, in_head
        self.operators, self.casts, self.bodies = [], [], []
        wants_operand = True
        while at is not None and at < len(items):
            self.end = at
            if wants_operand:
                at, wants_operand = self.operand(at)
            else:
                at, wants_operand = self.behind_operand(at)
            self.end = self.end if at is None else at

    def operand(self, at: int) -> tuple[int | None, bool]:
        item = self.items[at]
        if item.text in PREFIXES:
            return at + 1, True
        if item.text in ("|", "||"):
            body = at + 1 if item.text == "||" else find(self.items, "|", at + 1) + 1
            if body < len(self.items) and self.items[body].text == "->":
                body = find(self.items, "{", body)
            self.bodies.append(body)
            return body, True
        if item.text in WITH_BLOCK:
            at = find(self.items, "{", at) + 1
            while at < len(self.items) and self.items[at].text == "else":
                at = find(self.items, "{", at) + 1
            return at, False
        if item.text == "<":
            return behind_angles(self.items, at), False
        return (None, False) if item.text in (";", ",", "=>") else (at + 1, False)

    def behind_operand(self, at: int) -> tuple[int | None, bool]:
        item, before = self.items[at], self.items[at - 1]
        following = self.items[at + 1].text if at + 1 < len(self.items) else ""
        if item.text == "::" and following == "<":
            return behind_angles(self.items, at + 1), False
        if item.text in (".", "::") or (item.text == "!" and before.kind == "word"):
            return at + 2, False
        if item.text in ("?", "(", "["):
            return at + 1, False
        if item.text == "{" and before.text[0].isupper() and not self.in_head:
            return at + 1, False
        if item.text == "as":
            self.casts.append(at)
            return behind_type(self.items, at + 1), False
        if item.text in PRECEDENCE:
            self.operators.append(at)
            return at + 1, True
        return None, False


def segment(items: list[Item], at: int) -> tuple[int, bool]:
    """The first item of the expression that contains item `at`, and whether it is the head of an `if` or similar, where a brace opens
    a block."""
    first = at
    while first > 0:
        before = items[first - 1]
        if before.text in (";", "=>") or before.text in BEFORE_EXPRESSIONS:
            break
        if before.text in (",", ":"):
            first = behind_parameters(items, first)
            break
        if PRECEDENCE.get(before.text) == ASSIGNMENT:
            break
        if before.text == "{" and items[first].text not in (".", "?", "==", "!=", "<", ">", "<=", ">=", "&&", "||", "+", "/"):
            break
        first -= 1
    return first, is_head(items, first)


def is_head(items: list[Item], first: int) -> bool:
    for item in reversed(items[:first]):
        if item.text in (";", ",", "=>", "{"):
            return False
        if item.text in HEADS:
            return True
    return False


def behind_parameters(items: list[Item], first: int) -> int:
    """Start of the body, if the comma or colon before item `first` is in a closure's parameters; else `first`."""
    bars = [i for i in range(first) if items[i].text == "|"]
    if bars and (bars[-1] == 0 or items[bars[-1] - 1].text in OPENS_CLOSURE):
        return find(items, "|", first) + 1
    return first


def behind_angles(items: list[Item], at: int) -> int:
    depth = 0
    while True:
        depth += {"<": 1, ">": -1, ">>": -2}.get(items[at].text, 0)
        at += 1
        if depth <= 0:
            return at


def behind_type(items: list[Item], at: int) -> int:
    while items[at].text in ("&", "*", "const", "mut", "dyn") or items[at].kind == "lifetime":
        at += 1
    at += 1
    while at < len(items) and items[at].text in ("::", "<"):
        at = behind_angles(items, at) if items[at].text == "<" else at + 2
    return at


def find(items: list[Item], text: str, at: int) -> int:
    for index in range(at, len(items)):
        if items[index].text == text:
            return index
    raise NoExpression(f"no `{text}` after character {items[at - 1].end}")
