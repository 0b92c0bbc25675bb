#!/usr/bin/env python3
"""Collects the licenses of everything that is linked into `plimsoll`, on any platform, in the file NOTICE.

usage:  python scripts/notice.py [--check]
needs:  Python, cargo, and the packages of Cargo.lock, which cargo downloads

Linked packages are the dependencies in `cargo metadata --locked` that are not for tests; scripts of pages are in BUNDLED. If a package
offers several licenses, the first one in ORDER is used; equal texts are printed once, with the names of their packages. For a package
without a license file the MIT text with its authors' names is used if that is its license; any other license is an error.
--check writes nothing and exits with 1 if NOTICE is not up to date.
"""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
NOTICE = REPOSITORY / "NOTICE"
ROOT = "plimsoll"
# Third-party sources in the tree, each with its license file next to it.
BUNDLED = {"uPlot 1.6.32": REPOSITORY / "crates/serve/page/vendor/LICENSE"}
# Licenses in order of preference, with words that only their texts contain.
ORDER = {
    "MIT": "Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated",
    "MIT-0": "Permission is hereby granted, free of charge, to any person obtaining a copy",
    "0BSD": "Permission to use, copy, modify, and/or distribute this software for any",
    "ISC": "Permission to use, copy, modify, and/or distribute this software",
    "BSD-2-Clause": "Redistribution and use in source and binary forms",
    "BSD-3-Clause": "Redistribution and use in source and binary forms",
    "Zlib": "This software is provided 'as-is'",
    "Unicode-3.0": "UNICODE LICENSE V3",
    "Apache-2.0": "Apache License Version 2.0, January 2004",
    "BSL-1.0": "Boost Software License",
    "CC0-1.0": "CC0 1.0 Universal",
    "CDLA-Permissive-2.0": "Community Data License Agreement - Permissive - Version 2.0",
}
FILES = ("LICENSE", "LICENCE", "COPYING", "UNLICENSE")
HEAD = """Plimsoll is under the license in the file LICENSE. What follows are the licenses of the libraries that are linked into it.
Made by `python scripts/notice.py`; do not edit.
"""


def main() -> None:
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    text = notice(linked())
    if not sys.argv[1:]:
        NOTICE.write_text(text)
    elif not NOTICE.exists() or NOTICE.read_text() != text:
        sys.exit("NOTICE does not match Cargo.lock\nhint: run `python scripts/notice.py`")


def linked() -> list[dict]:
    """Third-party packages that are linked into `plimsoll`, by name and version."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1"]
    metadata = json.loads(subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    needs = {node["id"]: node["deps"] for node in metadata["resolve"]["nodes"]}
    left, found = [next(i for i, package in packages.items() if package["name"] == ROOT)], set()
    while left:
        package = left.pop()
        if package not in found:
            found.add(package)
            left += [d["pkg"] for d in needs[package] if any(kind["kind"] != "dev" for kind in d["dep_kinds"])]
    others = [packages[i] for i in found if packages[i]["source"]]
    return sorted(others, key=lambda package: (package["name"], package["version"]))


def notice(packages: list[dict]) -> str:
    by_text, printed = defaultdict(list), {}
    for name, path in BUNDLED.items():
        text = path.read_text()
        same = " ".join(text.split())
        printed[same] = text.strip("\n")
        by_text[same].append(name)
    for package in packages:
        for text in texts(package):
            # Texts that differ only in line breaks are the same.
            same = " ".join(text.split())
            printed.setdefault(same, text.strip("\n"))
            by_text[same].append(f"{package['name']} {package['version']}")
    parts = [HEAD]
    for same, names in sorted(by_text.items(), key=lambda entry: entry[1]):
        parts.append(f"{'=' * 100}\n{', '.join(names)}\n{'=' * 100}\n\n{printed[same]}\n")
    return "\n".join(parts)


def texts(package: dict) -> list[str]:
    """The texts of a package's chosen licenses, and its notice files."""
    folder = Path(package["manifest_path"]).parent
    files = sorted(file for file in folder.iterdir() if file.name.upper().startswith(FILES))
    contents = [file.read_text(errors="replace").replace("\r\n", "\n") for file in files if file.is_file()]
    taken = []
    for license in chosen(package["license"]):
        there = [text for text in contents if ORDER[license] in " ".join(text.split())]
        if not there and license == "MIT":
            there = [mit_of(package)]
        if not there:
            sys.exit(f"{package['name']} {package['version']} has no text of the license {license} in {folder}")
        taken += there
    taken += [file.read_text() for file in sorted(folder.glob("NOTICE*"))] if "Apache-2.0" in chosen(package["license"]) else []
    return taken


def chosen(expression: str) -> list[str]:
    """One license for each choice in an SPDX expression: `(MIT OR Apache-2.0) AND Unicode-3.0`."""
    taken = []
    for part in expression.split(" AND "):
        offered = [license.strip("() ") for license in re.split(r" OR |/", part)]
        known = [license for license in ORDER if license in offered]
        if not known:
            sys.exit(f"none of the licenses `{expression}` is known to this script")
        taken.append(known[0])
    return taken


def mit_of(package: dict) -> str:
    """The repository's own license, which is MIT, with other authors."""
    title, _, rest = (REPOSITORY / "LICENSE").read_text().split("\n\n", 2)
    authors = ", ".join(re.sub(r" <.*>", "", author) for author in package["authors"]) or f"the authors of {package['name']}"
    return f"{title}\n\nCopyright (c) {authors}\n\n{rest}"


if __name__ == "__main__":
    main()
