#!/usr/bin/env python3
"""Compares Plimsoll with PyTorch: the same training step on the same CPU, in turn, in float32.

Each measurement is a process of its own. The sides alternate, and who goes first alternates too, so that a machine
that slows down or is busy for a while slows both. What is quoted are medians over the rounds and their ratios.

    tokens/s   tokens in a step over the process's median step time; the same arithmetic for both
    peak RSS   what the kernel counted for the process (wait4), not what the process says of itself
    RSS ratio  Plimsoll's peak over PyTorch's peak less what PyTorch holds right after `import torch`;
               so PyTorch is charged for the model and its training alone, Plimsoll for its whole process
    others     the share of all cores that other processes used while the process ran. Medians do not mend a busy
               machine: threads that wait for each other lose far more than their share. Quote no speed from a table
               that says BUSY

usage:  python bench/compare_torch.py --plimsoll target/release/plimsoll [--rounds 5] [--threads 2] [--steps 5]
            [--cases char-6x384,gpt2-124m,…] [--blas PATH] [--out bench/results/NAME.md]
needs:  Linux, and a Python with torch and numpy (this one, or the one given by --python)

stdout is a Markdown table, which --out also writes to a file; stderr tells how far it is.
The PyTorch side is torch_step.py beside this file.
"""

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
TORCH_STEP = Path(__file__).resolve().with_name("torch_step.py")
MIB = 1024 * 1024
# Above this share of the cores, what others use makes speeds worthless.
BUSY_SHARE = 0.10


@dataclass(frozen=True)
class Case:
    """A model and a batch. `positions` is the length of the table of position embeddings."""

    layers: int
    hidden: int
    heads: int
    vocab_size: int
    positions: int
    seq_len: int
    micro_batch: int
    bias: bool
    # What Plimsoll recomputes instead of keeping it. Cheap are norms and activations: next to no time, and a quarter
    # to a third of what is kept. The result is the same to the bit whatever it is.
    recompute: str = "cheap"

    @property
    def tokens_per_step(self) -> int:
        return self.micro_batch * self.seq_len

    def flags(self) -> list[str]:
        """The flags that both sides understand."""
        return [
            *("--layers", str(self.layers)),
            *("--hidden", str(self.hidden)),
            *("--heads", str(self.heads)),
            *("--vocab-size", str(self.vocab_size)),
            *("--seq-len", str(self.seq_len)),
            *("--micro-batch", str(self.micro_batch)),
            *("--bias", str(self.bias).lower()),
        ]

    def describe(self) -> str:
        biases = "biases" if self.bias else "no biases"
        return (
            f"{self.layers} layers, {self.hidden} wide, {self.heads} heads, vocabulary {self.vocab_size}, "
            f"T {self.seq_len}, B {self.micro_batch}, {biases}"
        )


CHAR = Case(6, 384, 6, 65, positions=256, seq_len=256, micro_batch=12, bias=False)
GPT2 = Case(12, 768, 12, 50257, positions=1024, seq_len=256, micro_batch=4, bias=True)
CASES = {
    "char-6x384": CHAR,
    "char-6x384-blocks": replace(CHAR, recompute="blocks"),
    "gpt2-124m": GPT2,
    "gpt2-124m-blocks": replace(GPT2, recompute="blocks"),
    "gpt2-124m-1x1024": replace(GPT2, seq_len=1024, micro_batch=1),
    "gpt2-124m-1x4096": replace(GPT2, positions=4096, seq_len=4096, micro_batch=1),
}


@dataclass(frozen=True)
class Usage:
    """What the kernel counted while one process ran. `others_share` is of all cores, 0 to 1."""

    peak_rss_bytes: int
    others_share: float


@dataclass(frozen=True)
class Sample:
    """What one process measured. Only PyTorch has `import_rss_bytes` and `torch_version`, only Plimsoll `blas`."""

    tokens_per_s: float
    peak_rss_bytes: int
    others_share: float
    import_rss_bytes: int = 0
    torch_version: str = ""
    blas: str = ""


def main() -> None:
    arguments = parse_arguments()
    rows, torch_version, blas = [], "", ""
    for name in arguments.cases:
        plimsoll, torch = measure(name, arguments)
        rows.append(table_row(name, plimsoll, torch))
        torch_version, blas = torch[0].torch_version, plimsoll[0].blas
    text = report(arguments, rows, torch_version, blas)
    print(text, end="")
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares Plimsoll's training step with PyTorch's on this CPU.")
    parser.add_argument("--plimsoll", required=True, metavar="PATH", help="the plimsoll binary, built for release")
    parser.add_argument("--rounds", type=positive, default=5, help="processes of each side per case")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--steps", type=positive, default=5, help="measured steps in each process")
    default, known = ["char-6x384", "gpt2-124m"], names_of("case", CASES)
    parser.add_argument("--cases", type=known, default=default, metavar="A,B", help=f"of {', '.join(CASES)}")
    parser.add_argument("--python", default=sys.executable, help="the Python that has torch; default: this one")
    parser.add_argument("--blas", default="off", metavar="PATH", help="the BLAS that Plimsoll uses; default: off")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="write the table here too")
    return parser.parse_args()


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def names_of(what: str, known: Iterable[str]) -> Callable[[str], list[str]]:
    """What reads names with commas between them, of those that there are."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"no {what} {name!r}; there are {', '.join(known)}")
        return names

    return read


def measure(name: str, arguments: argparse.Namespace) -> tuple[list[Sample], list[Sample]]:
    """Samples of Plimsoll and of PyTorch, one of each a round."""
    case = CASES[name]
    sides = [(run_plimsoll, []), (run_torch, [])]
    for round_index in range(arguments.rounds):
        order = sides if round_index % 2 == 0 else sides[::-1]
        for run, samples in order:
            sample = run(case, arguments)
            samples.append(sample)
            print(
                f"{name} round {round_index + 1}/{arguments.rounds} {run.__name__.removeprefix('run_'):8}: "
                f"{sample.tokens_per_s:.1f} tokens/s, peak RSS {mib(sample.peak_rss_bytes)} MiB, "
                f"others used {sample.others_share:.0%} of the cores",
                file=sys.stderr,
            )
    return sides[0][1], sides[1][1]


def run_plimsoll(case: Case, arguments: argparse.Namespace) -> Sample:
    counts = ["--steps", str(arguments.steps), "--threads", str(arguments.threads)]
    command = [arguments.plimsoll, "bench", *case.flags(), "--recompute", case.recompute, *counts]
    command += ["--blas", arguments.blas, "--json"]
    output, usage = run(command, arguments.threads)
    plan, measured = output["plan"], output["measured"]
    tokens = plan["micro_batch"] * plan["accumulation"] * plan["seq_len"]
    if tokens != case.tokens_per_step or plan["micro_batch"] != case.micro_batch:
        sys.exit(
            f"error: plimsoll ran micro-batch {plan['micro_batch']} and {tokens} tokens a step, "
            f"the case asks for {case.micro_batch} and {case.tokens_per_step}"
        )
    own_bytes = measured["peak_rss_bytes"]
    if own_bytes is not None and abs(own_bytes - usage.peak_rss_bytes) > 0.02 * usage.peak_rss_bytes:
        print(
            f"warning: plimsoll reports a peak RSS of {mib(own_bytes)} MiB, "
            f"the kernel counted {mib(usage.peak_rss_bytes)} MiB",
            file=sys.stderr,
        )
    return Sample(
        tokens / measured["step_ms_p50"] * 1e3, usage.peak_rss_bytes, usage.others_share, blas=measured["blas"] or ""
    )


def run_torch(case: Case, arguments: argparse.Namespace) -> Sample:
    counts = ["--steps", str(arguments.steps), "--threads", str(arguments.threads)]
    command = [arguments.python, str(TORCH_STEP), *case.flags(), "--positions", str(case.positions), *counts]
    output, usage = run(command, arguments.threads)
    return Sample(
        output["tokens_per_step"] / output["step_ms_p50"] * 1e3,
        usage.peak_rss_bytes,
        usage.others_share,
        output["rss_after_import_bytes"],
        output["torch"],
    )


def run(command: list[str], threads: int) -> tuple[dict, Usage]:
    """Runs a command to its end. Gives the JSON of its stdout, and what the kernel counted."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    # Files, not pipes: wait4 must be the one to reap the child, and a full pipe would block it for ever.
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        busy_before_s, start_s = busy_cores_s(), time.monotonic()
        try:
            child = subprocess.Popen(command, stdout=stdout, stderr=stderr, env=environment)
        except OSError as error:
            sys.exit(f"error: cannot start {command[0]}: {error.strerror}")
        _, status, usage = os.wait4(child.pid, 0)
        busy_s, wall_s = busy_cores_s() - busy_before_s, time.monotonic() - start_s
        child.returncode = os.waitstatus_to_exitcode(status)
        stdout.seek(0)
        stderr.seek(0)
        if child.returncode != 0:
            talk = stderr.read()[-2000:]
            sys.exit(f"error: exit status {child.returncode} from: {shlex.join(command)}\n{talk}")
        try:
            output = json.load(stdout)
        except json.JSONDecodeError as error:
            sys.exit(f"error: stdout is no JSON ({error}) from: {shlex.join(command)}")
    others_s = busy_s - usage.ru_utime - usage.ru_stime
    # The two clocks tick at different moments, so the difference may fall just below 0.
    others_share = max(0.0, others_s / (wall_s * os.cpu_count()))
    # Linux counts ru_maxrss in KiB.
    return output, Usage(usage.ru_maxrss * 1024, others_share)


def busy_cores_s() -> float:
    """Seconds that all cores together have been busy since boot, those stolen by the host included."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def table_row(name: str, plimsoll: list[Sample], torch: list[Sample]) -> str:
    speed = median(plimsoll, "tokens_per_s") / median(torch, "tokens_per_s")
    plimsoll_rss, torch_rss = median(plimsoll, "peak_rss_bytes"), median(torch, "peak_rss_bytes")
    import_rss = median(torch, "import_rss_bytes")
    cells = [
        name,
        spread([sample.tokens_per_s for sample in plimsoll]),
        spread([sample.tokens_per_s for sample in torch]),
        f"**{speed:.2f}**",
        spread([sample.peak_rss_bytes / MIB for sample in plimsoll]),
        spread([sample.peak_rss_bytes / MIB for sample in torch]),
        mib(import_rss),
        f"**{plimsoll_rss / (torch_rss - import_rss):.2f}**",
        others(plimsoll + torch),
    ]
    return f"| {' | '.join(cells)} |"


def report(arguments: argparse.Namespace, rows: list[str], torch_version: str, blas: str) -> str:
    lines = [
        "# Plimsoll and PyTorch: one training step on the CPU",
        "",
        f"- Machine: {cpu_model()}, {os.cpu_count()} cores, {memory_gib():.0f} GiB, {platform.machine()}",
        f"- Date: {date.today().isoformat()}",
        f"- PyTorch {torch_version}: eager, fused AdamW, float32",
        f"- Matrix products of Plimsoll: {blas or 'built in'}",
        f"- {arguments.threads} threads; {arguments.rounds} rounds in turn, {arguments.steps} measured steps in each",
        f"- Command: `{command_line()}`",
        *(f"- {name}: {CASES[name].describe()}, --recompute {CASES[name].recompute}" for name in arguments.cases),
        "",
        "| case | Plimsoll tokens/s | PyTorch tokens/s | speed ratio | Plimsoll peak RSS (MiB) "
        "| PyTorch peak RSS (MiB) | PyTorch import RSS (MiB) | RSS ratio | others |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *rows,
        "",
        "Medians over the rounds, with the least and the most in brackets. Speed ratio: Plimsoll / PyTorch, more is "
        "better. RSS ratio: Plimsoll peak / (PyTorch peak - PyTorch import), less is better. Others: the most of the "
        f"cores that other processes used during a measurement; over {BUSY_SHARE:.0%} the speeds are not to be quoted.",
    ]
    return "\n".join(lines) + "\n"


def median(samples: list[Sample], field: str) -> float:
    return statistics.median(getattr(sample, field) for sample in samples)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def others(samples: list[Sample]) -> str:
    worst = max(sample.others_share for sample in samples)
    return f"{worst:.0%}" + (" BUSY" if worst > BUSY_SHARE else "")


def mib(size_bytes: float) -> str:
    return f"{size_bytes / MIB:.1f}"


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def memory_gib() -> float:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1024**3


def command_line() -> str:
    """What was typed, with paths inside the repository made relative to it."""
    words = [word.replace(f"{REPOSITORY}/", "") for word in sys.argv]
    return shlex.join(["python", *words])


if __name__ == "__main__":
    main()
