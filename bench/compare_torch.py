#!/usr/bin/env python3
"""Compares Plimsoll with PyTorch: the same training step on the same CPU, alternating, in each precision and mode.

Each measurement is a process of its own. The sides alternate, and so does their order, so that a slow or busy phase of the
machine affects all. Reported are medians over the rounds and their ratios. Both sides clip the gradients' norm to 1, except in the cases
with a budget ("tight"), which update each parameter as soon as its gradient is complete.

    modes      eager and compile (torch.compile) compute in float32; autocast and compile-autocast in bfloat16 where PyTorch
               chooses it. Compilation happens in warm-up steps
    tokens/s   tokens per step divided by the process's median step time; the same for all sides. Sources and targets both count
    fastest    the ratio of Plimsoll's tokens/s to those of PyTorch's fastest mode, and of the fastest mode in the same precision
    peak RSS   from the kernel (wait4), not from the process
    beyond     PyTorch's peak minus what it holds after its import, including transformers and torch.compile's own code if used;
               so PyTorch is charged for the model and its training only, Plimsoll for its whole process
    others     the share of all cores that other processes used meanwhile. Medians do not correct for a busy machine: threads
               that wait for each other lose far more than this share. Do not quote speeds from a table that says BUSY

usage:  python bench/compare_torch.py --plimsoll target/release/plimsoll [--rounds 5] [--threads 2] [--steps 5]
            [--cases gpt2-124m,t5-small,…] [--precisions fp32,bf16] [--modes eager,autocast,compile,compile-autocast]
            [--blas PATH] [--out bench/results/NAME.md]
needs:  Linux, and a Python with torch, numpy and transformers (this one, or --python); the modes with
        torch.compile also need a C++ compiler

stdout is Markdown, which --out also writes to a file; stderr shows progress.
The PyTorch side is torch_step.py next to this file.
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
# If other processes use more than this share of the cores, speeds are not reliable.
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
    # Plimsoll's `--recompute`. `cheap` is norms and activations: little time, and a quarter to a third of the saved
    # bytes. The result does not depend on it.
    recompute: str = "cheap"
    # Plimsoll's budget by precision, within which it chooses what to recompute. Neither side clips gradients then:
    # clipping needs all gradients at a time, which is more than these budgets hold.
    memory: tuple[tuple[str, str], ...] = ()

    @property
    def tokens_per_step(self) -> int:
        return self.micro_batch * self.seq_len

    def flags(self) -> list[str]:
        """Flags for both sides."""
        return [
            *("--layers", str(self.layers)),
            *("--hidden", str(self.hidden)),
            *("--heads", str(self.heads)),
            *("--vocab-size", str(self.vocab_size)),
            *("--seq-len", str(self.seq_len)),
            *("--micro-batch", str(self.micro_batch)),
            *("--bias", str(self.bias).lower()),
        ]

    def torch_flags(self) -> list[str]:
        """Flags for PyTorch's side only."""
        return ["--positions", str(self.positions)]

    def describe(self) -> str:
        biases = "biases" if self.bias else "no biases"
        return (
            f"{self.layers} layers, {self.hidden} wide, {self.heads} heads, vocabulary {self.vocab_size}, "
            f"T {self.seq_len}, B {self.micro_batch}, {biases}, {own_settings(self)}"
        )


@dataclass(frozen=True)
class Preset:
    """A model that both sides know by name, and a batch. `target_len` is T5's."""

    model: str
    seq_len: int
    micro_batch: int
    target_len: int | None = None
    # As in `Case`.
    recompute: str = "cheap"
    memory: tuple[tuple[str, str], ...] = ()

    @property
    def tokens_per_step(self) -> int:
        return self.micro_batch * (self.seq_len + (self.target_len or 0))

    def flags(self) -> list[str]:
        """Flags for both sides."""
        counts = ["--seq-len", str(self.seq_len), "--micro-batch", str(self.micro_batch)]
        target = [] if self.target_len is None else ["--target-len", str(self.target_len)]
        return ["--model", self.model, *counts, *target]

    def torch_flags(self) -> list[str]:
        return []

    def describe(self) -> str:
        target = "" if self.target_len is None else f" -> {self.target_len}, tokens of both"
        return f"{self.model}, T {self.seq_len}{target}, B {self.micro_batch}, {own_settings(self)}"


def clip_flags(case: Case | Preset) -> list[str]:
    """The flag for both sides: gradients are clipped to a norm of 1, except within a budget."""
    return ["--grad-clip", "0" if case.memory else "1"]


def own_flags(case: Case | Preset, precision: str) -> list[str]:
    """Flags for Plimsoll only."""
    if not case.memory:
        return ["--recompute", case.recompute]
    return ["--vram", dict(case.memory)[precision]]


def own_settings(case: Case | Preset) -> str:
    within = [f"{precision} within {memory}" for precision, memory in case.memory]
    return f"{', '.join(within)}, without clipping" if within else f"--recompute {case.recompute}, with clipping"


CHAR = Case(6, 384, 6, 65, positions=256, seq_len=256, micro_batch=12, bias=False)
GPT2 = Case(12, 768, 12, 50257, positions=1024, seq_len=256, micro_batch=4, bias=True)
SMOLLM2 = Preset("smollm2-135m", seq_len=256, micro_batch=4)
T5 = Preset("t5-small", seq_len=256, target_len=64, micro_batch=8)
CASES = {
    "char-6x384": CHAR,
    "char-6x384-blocks": replace(CHAR, recompute="blocks"),
    "gpt2-124m": GPT2,
    "gpt2-124m-blocks": replace(GPT2, recompute="blocks"),
    "gpt2-124m-tight": replace(GPT2, memory=(("fp32", "1720MiB"), ("bf16", "1660MiB"))),
    "gpt2-124m-1x1024": replace(GPT2, seq_len=1024, micro_batch=1),
    "gpt2-124m-1x4096": replace(GPT2, positions=4096, seq_len=4096, micro_batch=1),
    "smollm2-135m": SMOLLM2,
    "smollm2-135m-tight": replace(SMOLLM2, memory=(("fp32", "1960MiB"), ("bf16", "1710MiB"))),
    "smollm2-135m-blocks": replace(SMOLLM2, recompute="blocks"),
    "t5-small": T5,
    "t5-small-tight": replace(T5, memory=(("fp32", "940MiB"), ("bf16", "900MiB"))),
    "t5-small-blocks": replace(T5, recompute="blocks"),
}
# Precision of each PyTorch mode.
MODES = {"eager": "fp32", "autocast": "bf16", "compile": "fp32", "compile-autocast": "bf16"}
PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class Usage:
    """The kernel's counters for one process. `others_share` is of all cores, 0 to 1; `cpu_s` is the process's own."""

    peak_rss_bytes: int
    others_share: float
    cpu_s: float


@dataclass(frozen=True)
class Sample:
    """Result of one process. Only PyTorch has `import_rss_bytes` and `torch_version`, only Plimsoll `blas`."""

    tokens_per_s: float
    peak_rss_bytes: int
    others_share: float
    import_rss_bytes: int = 0
    torch_version: str = ""
    blas: str = ""


def main() -> None:
    arguments = parse_arguments()
    measured = {name: measure(name, arguments) for name in arguments.cases}
    text = report(arguments, measured)
    publish(text, arguments.out)


def publish(text: str, out: Path | None) -> None:
    """Prints a report, and writes it to `out` if given."""
    print(text, end="")
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares Plimsoll's training step with PyTorch's on this CPU.")
    parser.add_argument("--plimsoll", required=True, metavar="PATH", help="the plimsoll binary, built for release")
    parser.add_argument("--rounds", type=positive, default=5, help="processes per side and case")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--steps", type=positive, default=5, help="measured steps per process")
    default, known = ["gpt2-124m", "smollm2-135m", "t5-small"], names_of("case", CASES)
    parser.add_argument("--cases", type=known, default=default, metavar="A,B", help=f"cases: {', '.join(CASES)}")
    precisions, modes = names_of("precision", PRECISIONS), names_of("mode", MODES)
    parser.add_argument("--precisions", type=precisions, default=[*PRECISIONS], help="Plimsoll's precisions; default: fp32,bf16")
    parser.add_argument("--modes", type=modes, default=[*MODES], help=f"PyTorch's modes; default: {','.join(MODES)}")
    parser.add_argument("--python", default=sys.executable, help="Python with torch; default: this one")
    parser.add_argument("--blas", default="off", metavar="PATH", help="BLAS for Plimsoll; default: off")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="also write the tables to this file")
    return parser.parse_args()


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def names_of(what: str, known: Iterable[str]) -> Callable[[str], list[str]]:
    """A parser of comma-separated names, each one of `known`."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"no {what} {name!r}; known: {', '.join(known)}")
        return names

    return read


@dataclass(frozen=True)
class Measured:
    """Samples of a case: Plimsoll's by precision, PyTorch's by mode, each in the order of the rounds."""

    plimsoll: dict[str, list[Sample]]
    torch: dict[str, list[Sample]]

    def samples(self) -> list[Sample]:
        return [sample for side in (self.plimsoll, self.torch) for samples in side.values() for sample in samples]


def measure(name: str, arguments: argparse.Namespace) -> Measured:
    """One sample per side and round."""
    case = CASES[name]
    measured = Measured({name: [] for name in arguments.precisions}, {name: [] for name in arguments.modes})
    sides = [(run_plimsoll, side, samples) for side, samples in measured.plimsoll.items()]
    sides += [(run_torch, side, samples) for side, samples in measured.torch.items()]
    for round_index in range(arguments.rounds):
        order = sides if round_index % 2 == 0 else sides[::-1]
        for run, side, samples in order:
            sample = run(case, side, arguments)
            samples.append(sample)
            print(
                f"{name} round {round_index + 1}/{arguments.rounds} {run.__name__.removeprefix('run_')} {side}: "
                f"{sample.tokens_per_s:.1f} tokens/s, peak RSS {mib(sample.peak_rss_bytes)} MiB, "
                f"other processes used {sample.others_share:.0%} of the cores",
                file=sys.stderr,
            )
    return measured


def run_plimsoll(case: Case | Preset, precision: str, arguments: argparse.Namespace) -> Sample:
    counts = ["--steps", str(arguments.steps), "--threads", str(arguments.threads)]
    command = [arguments.plimsoll, "bench", "--device", "cpu", *case.flags(), *own_flags(case, precision), *counts]
    command += [*clip_flags(case), "--precision", precision, "--blas", arguments.blas, "--json"]
    output, usage = run(command, arguments.threads)
    plan, measured = output["plan"], output["measured"]
    tokens = plan["micro_batch"] * plan["accumulation"] * (plan["seq_len"] + (plan["target_len"] or 0))
    if tokens != case.tokens_per_step or plan["micro_batch"] != case.micro_batch:
        sys.exit(
            f"error: plimsoll ran micro-batch {plan['micro_batch']} and {tokens} tokens per step, "
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


def run_torch(case: Case | Preset, mode: str, arguments: argparse.Namespace) -> Sample:
    counts = ["--steps", str(arguments.steps), "--threads", str(arguments.threads)]
    command = [arguments.python, str(TORCH_STEP), *case.flags(), *case.torch_flags(), *clip_flags(case), "--mode", mode, *counts]
    output, usage = run(command, arguments.threads)
    if output["tokens_per_step"] != case.tokens_per_step:
        sys.exit(f"error: PyTorch counted {output['tokens_per_step']} tokens, the case has {case.tokens_per_step}")
    return Sample(
        output["tokens_per_s"],
        usage.peak_rss_bytes,
        usage.others_share,
        output["rss_after_import_bytes"],
        output["torch"],
    )


def run(command: list[str], threads: int) -> tuple[dict, Usage]:
    """Runs a command. Returns the JSON of its stdout, and the kernel's counters."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    # Files, not pipes: wait4 must reap the child, and a full pipe would block the child.
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
            sys.exit(f"error: stdout is not JSON ({error}) from: {shlex.join(command)}")
    cpu_s = usage.ru_utime + usage.ru_stime
    others_s = busy_s - cpu_s
    # The two clocks tick at different moments, so the difference may be slightly below 0.
    others_share = max(0.0, others_s / (wall_s * os.cpu_count()))
    # Linux counts ru_maxrss in KiB.
    return output, Usage(usage.ru_maxrss * 1024, others_share, cpu_s)


def busy_cores_s() -> float:
    """Busy seconds of all cores since boot, including steal time."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def speed_row(name: str, precision: str, measured: Measured) -> str:
    own = measured.plimsoll[precision]
    cells = [name, precision, spread([sample.tokens_per_s for sample in own])]
    cells += [spread([sample.tokens_per_s for sample in samples]) for samples in measured.torch.values()]
    cells += [ratio_to_fastest(own, measured, [*MODES]), ratio_to_fastest(own, measured, modes_in(precision))]
    return f"| {' | '.join([*cells, others(measured.samples())])} |"


def memory_row(name: str, precision: str, measured: Measured) -> str:
    """PyTorch's peaks beyond its import, each with the ratio of Plimsoll's; last that of the fastest mode in this precision."""
    own = median(measured.plimsoll[precision], "peak_rss_bytes")
    beyond = {mode: memory_beyond_import(samples) for mode, samples in measured.torch.items()}
    fastest = fastest_of(measured, modes_in(precision))
    cells = [name, precision, spread([sample.peak_rss_bytes / MIB for sample in measured.plimsoll[precision]])]
    cells += [f"{mib(size)} ({own / size:.2f})" for size in beyond.values()]
    cells += [f"{own / beyond[fastest]:.2f} ({fastest})" if fastest else "-"]
    return f"| {' | '.join(cells)} |"


def modes_in(precision: str) -> list[str]:
    return [mode for mode, of_mode in MODES.items() if of_mode == precision]


def fastest_of(measured: Measured, modes: list[str]) -> str | None:
    """The measured mode with the most tokens/s."""
    there = [mode for mode in modes if mode in measured.torch]
    return max(there, key=lambda mode: median(measured.torch[mode], "tokens_per_s"), default=None)


def ratio_to_fastest(own: list[Sample], measured: Measured, modes: list[str]) -> str:
    fastest = fastest_of(measured, modes)
    if fastest is None:
        return "-"
    ratio = median(own, "tokens_per_s") / median(measured.torch[fastest], "tokens_per_s")
    return f"**{ratio:.2f}** ({fastest})"


def memory_beyond_import(samples: list[Sample]) -> float:
    return median(samples, "peak_rss_bytes") - median(samples, "import_rss_bytes")


def report(arguments: argparse.Namespace, measured: dict[str, Measured]) -> str:
    samples = [sample for of_case in measured.values() for sample in of_case.samples()]
    torch_version = next((sample.torch_version for sample in samples if sample.torch_version), "none")
    blas = next((sample.blas for sample in samples if sample.blas), "built in")
    rows = [(name, precision, of_case) for name, of_case in measured.items() for precision in arguments.precisions]
    modes = [f"PyTorch {mode}" for mode in arguments.modes]
    speed = ["Plimsoll tokens/s", *modes, ": fastest", ": fastest in its precision", "others"]
    memory = ["Plimsoll peak RSS", *(f"{mode}, beyond its import" for mode in modes), ": fastest in its precision"]
    lines = [
        "# Plimsoll and PyTorch: one training step on the CPU",
        "",
        f"- Machine: {cpu_model()}, {os.cpu_count()} cores, {memory_gib():.0f} GiB, {platform.machine()}",
        f"- Arithmetic in bfloat16: {half_arithmetic()}",
        f"- Date: {date.today().isoformat()}",
        f"- PyTorch {torch_version}: fused AdamW; {', '.join(f'{mode} in {MODES[mode]}' for mode in arguments.modes)}",
        f"- Matrix products of Plimsoll: {blas}",
        f"- {arguments.threads} threads; {arguments.rounds} rounds in turn, {arguments.steps} measured steps in each",
        f"- Command: `{command_line()}`",
        *(f"- {name}: {CASES[name].describe()}" for name in arguments.cases),
        "",
        "## Tokens per second",
        "",
        *header(speed),
        *(speed_row(*row) for row in rows),
        "",
        "## Memory, MiB",
        "",
        *header(memory),
        *(memory_row(*row) for row in rows),
        "",
        "Medians over the rounds, with minimum and maximum in parentheses. Fastest: Plimsoll's tokens/s relative to "
        "the fastest of PyTorch's modes, which is named, and of those in the row's precision; higher is better. Memory: "
        "the ratios in parentheses are Plimsoll's peak relative to PyTorch's peak beyond its import; "
        "lower is better. "
        "Others: maximum share of the cores that other processes used during a measurement; do not quote speeds above "
        f"{BUSY_SHARE:.0%}.",
    ]
    return "\n".join(lines) + "\n"


def header(columns: list[str]) -> list[str]:
    """Header of a table whose first columns are case and precision."""
    return [f"| case | precision | {' | '.join(columns)} |", f"| --- | --- |{' ---: |' * len(columns)}"]


def half_arithmetic() -> str:
    """The processor's instructions for bfloat16, by Linux's names."""
    known = ("amx_bf16", "avx512_bf16", "avx_ne_convert")
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            found = [flag for flag in known if flag in line.split()]
            return ", ".join(found) or "none"
    return "unknown"


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
    """The command line, with paths inside the repository relative to it."""
    words = [word.replace(f"{REPOSITORY}/", "") for word in sys.argv]
    return shlex.join(["python", *words])


if __name__ == "__main__":
    main()
