"""Assembles the committed PTX for each card with old and new assemblers, and writes figures of every kernel.

    python scripts/assemble.py --venvs DIR            bench/results/kernels.csv
    python scripts/assemble.py --venvs DIR --check    exits with 1 if the committed table is not up to date
    python scripts/assemble.py --venvs DIR --only attention_tensor_grad_64     prints the rows of one source, and writes nothing

A driver compiles the PTX with an assembler of its own release, so figures differ from driver to driver. DIR gets a virtual environment
for each release of `ptxas` below, from wheels that need neither a card nor a driver. Rows of releases with equal figures are one row,
in which the releases are separated by spaces. `scripts/kernels.py` generates the PTX; a test in crates/exec/src/cuda/modules.rs reads
the table.
"""

import argparse
import csv
import io
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count
from pathlib import Path

from kernels import BF16_TARGET, ENTRY, HALVES, KERNELS, REPOSITORY

FIGURES = REPOSITORY / "bench/results/kernels.csv"
# Releases of CUDA: the oldest whose driver runs the kernels on all but the newest cards, the last of the previous major version, and
# a current one.
WHEELS = {
    "11.8": "nvidia-cuda-nvcc-cu11==11.8.89",
    "12.9": "nvidia-cuda-nvcc-cu12==12.9.86",
    "13.5": "nvidia-cuda-nvcc==13.5.37",
}
# Cards whose machine code the figures are for, with limits of an SM from the CUDA programming guide's technical
# specifications: threads, blocks, bytes of shared memory, and bytes reserved per block.
CARDS = {
    75: {"threads": 1024, "blocks": 16, "shared": 64 << 10, "reserved": 0},
    80: {"threads": 2048, "blocks": 32, "shared": 164 << 10, "reserved": 1 << 10},
    86: {"threads": 1536, "blocks": 16, "shared": 100 << 10, "reserved": 1 << 10},
    89: {"threads": 1536, "blocks": 24, "shared": 100 << 10, "reserved": 1 << 10},
    90: {"threads": 2048, "blocks": 32, "shared": 228 << 10, "reserved": 1 << 10},
    120: {"threads": 1536, "blocks": 24, "shared": 100 << 10, "reserved": 1 << 10},
}
# The first release that knows a card, if the first of `WHEELS` does not.
FIRST_RELEASE = {120: "12.9"}
# The first release for PTX 8.4, of the kernels for numbers of 8 bits.
FIRST_WITH_FP8 = "12.9"
REGISTERS_OF_AN_SM = 65536
# Registers are allocated to warps in multiples of this.
REGISTER_PIECE = 256

# Dynamic shared memory with which kernels are launched, for attention with heads of 64 and of 128 channels; a test in
# src/cuda/ops/attention_tensor.rs compares it. Kernels with asynchronous copies have a second stage, for the larger
# heads if a multiprocessor has room.
ROOMY = {80, 90}
DYNAMIC = {
    "attention_tensor_64": lambda _: 16384 + 768,
    "attention_tensor_grad_queries_64": lambda card: 2 * (16384 + 1280) if card >= 80 else 16384 + 896,
    "attention_tensor_grad_keys_64": lambda card: 2 * (16384 + 1280) if card >= 80 else 16384 + 768,
    "attention_tensor_256": lambda _: 49152 + 768,
    "attention_tensor_grad_queries_256": lambda card: 2 * (32768 + 896) if card in ROOMY else 49152 + 896,
    "attention_tensor_grad_keys_256": lambda card: 2 * (32768 + 768) if card in ROOMY else 49152 + 768,
}
# Most threads of a launch, of kernels that are compiled for more: `threads_of_row` of src/cuda/ops/shape.rs, and launches of sums.
# Other kernels are launched with as many as they are compiled for, if tensors are large: 1,024 for the loss of a row of a large
# vocabulary, 512 for the gradient of a norm over 4,096 channels.
LAUNCHED = {
    r"(layer|rms)_norm(_offset)?_(f32|f16|bf16)": 256,
    r"(paired_)?head_loss_sum": 256,
    r"head_log_probs_sum": 256,
}


# Sources whose kernels get the registers of two blocks on cards with 100 KiB of shared memory, as `for_two_blocks` of
# src/cuda/modules.rs does.
OF_TWO_BLOCKS = {"attention_tensor_256", "attention_tensor_grad_64", "attention_tensor_grad_256"}
LITTLE_SHARED = {86, 89, 120}


@dataclass(frozen=True)
class Figures:
    """The assembler's figures of a kernel for a card."""

    registers: int
    spills: int
    stack: int
    shared: int


def assembler(release: str, venvs: Path) -> Path:
    """The release's `ptxas`, installed if necessary."""
    venv = venvs / release

    def find() -> Path | None:
        return next(iter(venv.glob("lib/python*/site-packages/nvidia/*/bin/ptxas")), None)

    if find() is None:
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([venv / "bin/python", "-m", "pip", "install", "--quiet", "--no-deps", WHEELS[release]], check=True)
    if (found := find()) is None:
        sys.exit(f"error: {WHEELS[release]} has no ptxas")
    found.chmod(0o755)
    return found


def texts(source: Path, card: int) -> list[str]:
    """The PTX of a source as the card gets it, and that for f16 if src/cuda/modules.rs derives it."""
    text, target = source.read_text(), int(source.parent.name.removeprefix("sm_"))
    if source.stem in OF_TWO_BLOCKS and card in LITTLE_SHARED:
        text = re.sub(r"\.minnctapersm [34]\b", ".minnctapersm 2", text)
    return [text, text.replace("bf16", "f16")] if source.stem in HALVES and target >= BF16_TARGET else [text]


def source_of(stem: str, card: int) -> Path:
    """The PTX of a source that the card gets."""
    paths = [KERNELS / f"ptx/sm_{target}/{stem}.ptx" for target in (89, 80) if target <= card] or [KERNELS / f"ptx/sm_75/{stem}.ptx"]
    return next((path for path in paths if path.exists()), paths[-1])


def assembled(ptxas: Path, ptx: str, card: int) -> dict[str, Figures]:
    """The figures of each kernel. Exits if the assembler refuses the text."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [ptxas, "--verbose", f"--gpu-name=sm_{card}", "--output-file=/dev/null", file.name]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"error: {ptxas} refuses the PTX for sm_{card}: {done.stderr[:2000]}")
    return parse_log(done.stdout + done.stderr)


def parse_log(log: str) -> dict[str, Figures]:
    """The assembler's figures for each kernel."""
    kernels = {}
    for part in log.split("Compiling entry function '")[1:]:

        def number(pattern: str, part: str = part) -> int:
            found = re.search(pattern, part)
            return int(found[1]) if found else 0

        spills = number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads")
        registers, stack = number(r"Used (\d+) registers"), number(r"(\d+) bytes stack frame")
        kernels[part.split("'")[0]] = Figures(registers, spills, stack, number(r"(\d+) bytes smem"))
    return kernels


def occupancy(card: dict[str, int], registers: int, shared: int, threads: int) -> float:
    """The share of an SM's threads that can be resident with blocks of this many threads.

    Source: CUDA programming guide, "Calculate occupancy": threads, blocks, registers and shared memory each limit it.
    """
    warps = -(-threads // 32)
    pieces = -(-registers * 32 // REGISTER_PIECE) * REGISTER_PIECE
    blocks = min(
        card["threads"] // (32 * warps),
        card["blocks"],
        REGISTERS_OF_AN_SM // (pieces * warps),
        card["shared"] // (shared + card["reserved"]) if shared + card["reserved"] else card["blocks"],
    )
    return blocks * 32 * warps / card["threads"]


def threads_of(ptx: str, kernel: str) -> int:
    """The number of threads with which a kernel is launched on large tensors."""
    entry = next(entry[0] for entry in ENTRY.finditer(ptx) if entry[1] == kernel)
    found = re.search(r"\.maxntid (\d+)", entry)
    if not found:
        sys.exit(f"error: {kernel} declares no maximum number of threads")
    launched = next((threads for name, threads in LAUNCHED.items() if re.fullmatch(name, kernel)), 1024)
    return min(int(found[1]), launched)


def rows_of(stem: str, assemblers: dict[str, Path]) -> list[list[str]]:
    """The table's rows of a source."""
    rows = []
    for card, limits in CARDS.items():
        source = source_of(stem, card)
        for ptx in texts(source, card) if source.exists() else []:
            first = FIRST_WITH_FP8 if source.parent.name == "sm_89" else FIRST_RELEASE.get(card, "")
            known = [release for release in assemblers if release >= first]
            found = {release: assembled(assemblers[release], ptx, card) for release in known}
            for kernel in sorted(found[known[0]]):
                threads = threads_of(ptx, kernel)
                dynamic = DYNAMIC.get(re.sub(r"_b?f16$", "", kernel), lambda _: 0)(card)
                releases: dict[Figures, list[str]] = {}
                for release in known:
                    releases.setdefault(found[release][kernel], []).append(release)
                for of, alike in releases.items():
                    part = occupancy(limits, of.registers, of.shared + dynamic, threads)
                    figures = map(str, (threads, of.registers, of.spills, of.stack, of.shared + dynamic))
                    rows.append([kernel, f"sm_{card}", " ".join(alike), *figures, f"{part:.2f}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venvs", type=Path, required=True, help="folder of the assemblers' virtual environments")
    parser.add_argument("--check", action="store_true", help="compare with the committed table, and write nothing")
    parser.add_argument("--only", metavar="SOURCE", help="print the rows of one source, and write nothing")
    arguments = parser.parse_args()
    venvs = arguments.venvs.resolve()
    assemblers = {release: assembler(release, venvs) for release in WHEELS}
    stems = [arguments.only] if arguments.only else sorted({path.stem for path in KERNELS.glob("ptx/*/*.ptx")})
    with ThreadPoolExecutor(cpu_count()) as pool:
        rows = [row for of_stem in pool.map(lambda stem: rows_of(stem, assemblers), stems) for row in of_stem]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow("kernel target releases threads registers spill_bytes stack_bytes shared_bytes occupancy".split())
    writer.writerows(rows)
    if arguments.only:
        print(text.getvalue(), end="")
    elif not arguments.check:
        FIGURES.write_text(text.getvalue())
    elif FIGURES.read_text() != text.getvalue():
        sys.exit(f"not up to date: {FIGURES.name}")


if __name__ == "__main__":
    main()
