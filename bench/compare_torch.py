#!/usr/bin/env python3
"""Compares Plimsoll with PyTorch: the same training step on the same CPU, in turn, in each precision and mode.

Each measurement is a process of its own. The sides alternate, and who goes first alternates too, so that a machine
that slows down or is busy for a while slows all. What is quoted are medians over the rounds and their ratios.

    modes      eager and compile (torch.compile) compute in float32; autocast and compile-autocast in bfloat16 where
               PyTorch says so. What is compiled is compiled in steps that don't count
    tokens/s   tokens in a step over the process's median step time; the same arithmetic for all. Those of sources and
               targets both count
    fastest    the ratio of Plimsoll's tokens/s to those of the fastest of PyTorch's modes, and of the modes in the same
               precision
    peak RSS   what the kernel counted for the process (wait4), not what the process says of itself
    beyond     PyTorch's peak less what it holds once it is imported, transformers and torch.compile's own code included
    its import where they are used; so PyTorch is charged for the model and its training alone, Plimsoll for its whole
               process
    others     the share of all cores that other processes used while the process ran. Medians do not mend a busy
               machine: threads that wait for each other lose far more than their share. Quote no speed from a table
               that says BUSY

usage:  python bench/compare_torch.py --plimsoll target/release/plimsoll [--rounds 5] [--threads 2] [--steps 5]
            [--cases gpt2-124m,t5-small,…] [--precisions fp32,bf16] [--modes eager,autocast,compile,compile-autocast]
            [--blas PATH] [--out bench/results/NAME.md]
needs:  Linux, and a Python with torch, numpy and transformers (this one, or the one given by --python); the modes with
        torch.compile also need a C++ compiler

stdout is Markdown, which --out also writes to a file; stderr tells how far it is.
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
    # What Plimsoll may use, by precision; within it, it chooses by itself what to recompute. In neither case does either
    # side clip gradients, so that Plimsoll may update each parameter as soon as its gradient is complete.
    memory: tuple[tuple[str, str], ...] = ()

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

    def torch_flags(self) -> list[str]:
        """The flags that only PyTorch's side needs."""
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
    # As those of a `Case`.
    recompute: str = "cheap"
    memory: tuple[tuple[str, str], ...] = ()

    @property
    def tokens_per_step(self) -> int:
        return self.micro_batch * (self.seq_len + (self.target_len or 0))

    def flags(self) -> list[str]:
        """The flags that both sides understand."""
        counts = ["--seq-len", str(self.seq_len), "--micro-batch", str(self.micro_batch)]
        target = [] if self.target_len is None else ["--target-len", str(self.target_len)]
        return ["--model", self.model, *counts, *target]

    def torch_flags(self) -> list[str]:
        return []

    def describe(self) -> str:
        target = "" if self.target_len is None else f" -> {self.target_len}, tokens of both"
        return f"{self.model}, T {self.seq_len}{target}, B {self.micro_batch}, {own_settings(self)}"


def own_flags(case: Case | Preset, precision: str) -> list[str]:
    """The flags that only Plimsoll needs."""
    if not case.memory:
        return ["--recompute", case.recompute]
    return ["--vram", dict(case.memory)[precision], "--grad-clip", "0"]


def own_settings(case: Case | Preset) -> str:
    within = [f"{precision} within {memory}" for precision, memory in case.memory]
    return f"{', '.join(within)}, not clipped" if within else f"--recompute {case.recompute}"


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
# What PyTorch computes in, by its mode.
MODES = {"eager": "fp32", "autocast": "bf16", "compile": "fp32", "compile-autocast": "bf16"}
PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class Usage:
    """What the kernel counted while one process ran. `others_share` is of all cores, 0 to 1; `cpu_s` is the process's own."""

    peak_rss_bytes: int
    others_share: float
    cpu_s: float


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
    measured = {name: measure(name, arguments) for name in arguments.cases}
    text = report(arguments, measured)
    publish(text, arguments.out)


def publish(text: str, out: Path | None) -> None:
    """Prints a report, and writes it to a file where one is asked for."""
    print(text, end="")
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares Plimsoll's training step with PyTorch's on this CPU.")
    parser.add_argument("--plimsoll", required=True, metavar="PATH", help="the plimsoll binary, built for release")
    parser.add_argument("--rounds", type=positive, default=5, help="processes of each side per case")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--steps", type=positive, default=5, help="measured steps in each process")
    default, known = ["gpt2-124m", "smollm2-135m", "t5-small"], names_of("case", CASES)
    parser.add_argument("--cases", type=known, default=default, metavar="A,B", help=f"of {', '.join(CASES)}")
    precisions, modes = names_of("precision", PRECISIONS), names_of("mode", MODES)
    parser.add_argument("--precisions", type=precisions, default=[*PRECISIONS], help="of Plimsoll; default: fp32,bf16")
    parser.add_argument("--modes", type=modes, default=[*MODES], help=f"of PyTorch; default: {','.join(MODES)}")
    parser.add_argument("--python", default=sys.executable, help="the Python that has torch; default: this one")
    parser.add_argument("--blas", default="off", metavar="PATH", help="the BLAS that Plimsoll uses; default: off")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="write the tables here too")
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


@dataclass(frozen=True)
class Measured:
    """Samples of a case: of Plimsoll by precision, of PyTorch by mode, each in the order of the rounds."""

    plimsoll: dict[str, list[Sample]]
    torch: dict[str, list[Sample]]

    def samples(self) -> list[Sample]:
        return [sample for side in (self.plimsoll, self.torch) for samples in side.values() for sample in samples]


def measure(name: str, arguments: argparse.Namespace) -> Measured:
    """A sample of each side a round."""
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
                f"others used {sample.others_share:.0%} of the cores",
                file=sys.stderr,
            )
    return measured


def run_plimsoll(case: Case | Preset, precision: str, arguments: argparse.Namespace) -> Sample:
    counts = ["--steps", str(arguments.steps), "--threads", str(arguments.threads)]
    command = [arguments.plimsoll, "bench", "--device", "cpu", *case.flags(), *own_flags(case, precision), *counts]
    command += ["--precision", precision, "--blas", arguments.blas, "--json"]
    output, usage = run(command, arguments.threads)
    plan, measured = output["plan"], output["measured"]
    tokens = plan["micro_batch"] * plan["accumulation"] * (plan["seq_len"] + (plan["target_len"] or 0))
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


def run_torch(case: Case | Preset, mode: str, arguments: argparse.Namespace) -> Sample:
    counts = ["--steps", str(arguments.steps), "--threads", str(arguments.threads)]
    command = [arguments.python, str(TORCH_STEP), *case.flags(), *case.torch_flags(), "--mode", mode, *counts]
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
    cpu_s = usage.ru_utime + usage.ru_stime
    others_s = busy_s - cpu_s
    # The two clocks tick at different moments, so the difference may fall just below 0.
    others_share = max(0.0, others_s / (wall_s * os.cpu_count()))
    # Linux counts ru_maxrss in KiB.
    return output, Usage(usage.ru_maxrss * 1024, others_share, cpu_s)


def busy_cores_s() -> float:
    """Seconds that all cores together have been busy since boot, those stolen by the host included."""
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
    """PyTorch's peaks beyond its import, each with Plimsoll's over it; last that of the precision's fastest mode."""
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
    """Of those modes that were measured, the one with the most tokens/s."""
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
        "## Tokens in a second",
        "",
        *header(speed),
        *(speed_row(*row) for row in rows),
        "",
        "## Memory, MiB",
        "",
        *header(memory),
        *(memory_row(*row) for row in rows),
        "",
        "Medians over the rounds, with the least and the most in brackets. Fastest: Plimsoll's tokens/s over those of "
        "the fastest of PyTorch's modes, which is named, and of those in the row's precision; more is better. Memory: "
        "the ratios in brackets are Plimsoll's peak over what PyTorch's process holds at its peak beyond its import; "
        "less is better. "
        "Others: the most of the cores that other processes used during a measurement of the case; over "
        f"{BUSY_SHARE:.0%} the speeds are not to be quoted.",
    ]
    return "\n".join(lines) + "\n"


def header(columns: list[str]) -> list[str]:
    """The first two lines of a table whose rows begin with the case and the precision."""
    return [f"| case | precision | {' | '.join(columns)} |", f"| --- | --- |{' ---: |' * len(columns)}"]


def half_arithmetic() -> str:
    """What the processor has for bfloat16, by Linux's names."""
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
    """What was typed, with paths inside the repository made relative to it."""
    words = [word.replace(f"{REPOSITORY}/", "") for word in sys.argv]
    return shlex.join(["python", *words])


if __name__ == "__main__":
    main()
