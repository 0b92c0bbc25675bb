#!/usr/bin/env python3
"""Writes the table of docs/src/models.md: the families, what each took, and how far its results are from transformers'.

    python3 scripts/families.py --plimsoll PROGRAM     measures the differences and writes the table
    python3 scripts/families.py --check                exits with 1 if a family or its lines differ from the table

A family's lines are those of its file in crates/graph/src/models/families, which some families share. The difference is the
largest of all logits, or of all numbers of an encoder's vectors, in both directions, printed by check_transformers.py: weights that transformers saved in five forms and
PROGRAM reads, and weights that PROGRAM trained and transformers reads.

needs:  with --plimsoll: torch, transformers, safetensors
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FAMILIES = ROOT / "crates/graph/src/models/families"
PAGE = ROOT / "docs/src/models.md"
# The model_type and the name in check_transformers.py, where they differ.
GOLDEN = {"gemma3_text": "gemma3"}
HEAD = ["| `model_type` | class | file | lines | largest difference |", "| --- | --- | --- | --- | --- |"]


def families() -> dict[str, list[str]]:
    """For each model_type: its class, its file, and the file's lines."""
    found = {}
    for path in sorted(FAMILIES.glob("*.rs")):
        text = path.read_text()
        for match in re.finditer(r'model_type: "(\w+)",\s*class: "(\w+)"', text):
            lines = str(len(text.splitlines()))
            found[match[1]] = [f"`{match[1]}`", f"`{match[2]}`", f"`{path.name}`", lines]
    return found


def rows() -> dict[str, list[str]]:
    """The cells of the page's table, by model_type."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].strip("`"): row for row in cells if len(row) == 5 and row[0] != "`model_type`"}


def difference(program: str, model_type: str) -> str:
    command = [sys.executable, ROOT / "scripts/check_transformers.py", "--plimsoll", program]
    command += ["--family", GOLDEN.get(model_type, model_type)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [float(number) for number in re.findall(r"max abs difference: (\S+)", run.stdout)]
    if run.returncode != 0 or not found:
        sys.exit(f"{model_type}: {run.stdout}{run.stderr}")
    return f"{max(found):.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plimsoll", metavar="PROGRAM")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.check:
        table = {model_type: row[:4] for model_type, row in rows().items()}
        if table != families():
            sys.exit(f"{PAGE} is not up to date: run scripts/families.py --plimsoll PROGRAM")
        return
    if args.plimsoll is None:
        parser.error("--plimsoll PROGRAM or --check")
    lines = [*HEAD]
    for model_type, cells in families().items():
        lines.append("| " + " | ".join([*cells, difference(args.plimsoll, model_type)]) + " |")
        print(lines[-1], flush=True)
    text = PAGE.read_text()
    before, after = text.split(HEAD[0])
    # The page has another table further down.
    rest = after.split("\n\n", 1)[1]
    PAGE.write_text(before + "\n".join(lines) + "\n\n" + rest)


if __name__ == "__main__":
    main()
