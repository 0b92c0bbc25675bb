"""Compiles crates/exec/kernels/*.cu to the committed PTX. `scripts/assemble.py` writes figures of the result.

    python scripts/kernels.py --venv DIR            PTX of every target
    python scripts/kernels.py --venv DIR --check    exits with 1 if the committed files are not up to date

DIR is a virtual environment outside the repository; it is created if missing. The compiler is NVRTC from the wheel named below, which
needs neither a card nor a driver. Its PTX has the `.version` of its own release, which older drivers refuse; the kernels need only
the version of their target, so the script writes that one.
"""

import argparse
import ctypes
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
KERNELS = REPOSITORY / "crates/exec/kernels"
PLANTED = REPOSITORY / "crates/fake-cuda/tests/planted"

WHEEL = "nvidia-cuda-nvrtc-cu12==12.9.86"
LIBRARY = "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"

# Number of compilations of a source, if the PTX differs from the committed one, before it counts as changed.
TRIES = 16

# Targets: compute capability, and the oldest PTX version with everything that its kernels use.
TARGETS = {75: "6.5", 80: "7.0", 89: "8.4"}
# Targets with kernels for numbers of 8 bits only.
OF_FP8 = 89
# Sources whose kernels for f16 equal those for bf16 except for the type's name, from this target on.
HALVES = {"attention_tensor_64", "attention_tensor_256", "attention_tensor_grad_64", "attention_tensor_grad_256", "expert_product", "product"}
BF16_TARGET = 80
# Short prefixes of registers whose prefixes have two letters.
REGISTERS = {"rd": "d", "rs": "s", "fd": "e"}
ENTRY = re.compile(r"^\.visible \.entry (\w+)\(.*?^\}\n", flags=re.S | re.M)

# Bugs that crates/fake-cuda must find: source, macro, and the kernel that is kept.
BUGS = [
    ("layer_norm", "NO_BARRIER", "layer_norm_bf16"),
    ("layer_norm", "MISALIGNED", "layer_norm_bf16"),
    ("layer_norm", "OUT_OF_BOUNDS", "layer_norm_bf16"),
    ("layer_norm", "DIVERGENT", "layer_norm_bf16"),
    ("product", "NO_WAIT", "product_nt_bf16_64"),
    ("product", "NO_BARRIER", "product_nt_bf16_64"),
    ("product", "BANK_CONFLICTS", "product_nt_bf16_64"),
]
BUGS_TARGET = 80


class CompileError(Exception):
    """NVRTC's log for a source that it refuses."""


class Compiler:
    """NVRTC, from a wheel."""

    def __init__(self, venv: Path) -> None:
        if not (venv / "bin/python").exists():
            subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        found = self._find(venv)
        if found is None:
            subprocess.run([venv / "bin/python", "-m", "pip", "install", "--quiet", WHEEL], check=True)
            found = self._find(venv)
        if found is None:
            sys.exit(f"error: {WHEEL} has no {LIBRARY}")
        self._library = ctypes.CDLL(str(found))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    @staticmethod
    def _find(venv: Path) -> Path | None:
        return next(iter(venv.glob(f"lib/python*/site-packages/{LIBRARY}")), None)

    def _text(self, program: ctypes.c_void_p, what: str) -> str:
        size = ctypes.c_size_t()
        getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        getattr(self._library, f"nvrtcGet{what}")(program, text)
        return text.value.decode()

    def compile(self, source: Path, options: list[str]) -> tuple[str, str]:
        """PTX and log for a source. Raises CompileError."""
        paths = sorted(KERNELS.glob("*.cuh"))
        program = ctypes.c_void_p()
        headers = (ctypes.c_char_p * len(paths))(*(path.read_bytes() for path in paths))
        names = (ctypes.c_char_p * len(paths))(*(path.name.encode() for path in paths))
        text, name = source.read_bytes(), source.name.encode()
        if self._library.nvrtcCreateProgram(ctypes.byref(program), text, name, len(paths), headers, names):
            raise CompileError(f"{source.name}: NVRTC does not accept the source")
        encoded = [option.encode() for option in options]
        code = self._library.nvrtcCompileProgram(program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))
        log = self._text(program, "ProgramLog")
        ptx = "" if code else self._text(program, "PTX")
        self._library.nvrtcDestroyProgram(ctypes.byref(program))
        if code:
            raise CompileError(f"{source.name}: {self._library.nvrtcGetErrorString(code).decode()}\n{log}")
        return ptx, log


def committed_form(ptx: str, target: int) -> str:
    """PTX in the committed form: an older version, line information in its oldest form, without comments and build names."""
    lines = []
    for line in ptx.replace("\0", "").splitlines():
        line = line.split("//")[0].rstrip()
        line = re.sub(r"^\.version .*", f".version {TARGETS[target]}", line)
        # Line information about inlined functions needs a newer version than plain lines.
        line = re.sub(r"^(\s*\.loc\s+\d+\s+\d+\s+\d+),.*", r"\1", line)
        # Name sources without the current folder.
        line = re.sub(r'^(\s*\.file\s+\d+\s+")[^"]*/', r"\1", line)
        lines.append(line)
    text = "\n".join(lines)
    # Names of inlined functions, which are no longer referenced.
    text = re.sub(r"\n\s*\.section\s+\.debug_str\s*\{.*?\n\s*\}", "", text, flags=re.S)
    # A tenth of the text is unnecessary white space.
    text = re.sub(r"[ \t]+", " ", text).replace(", ", ",").replace("\n ", "\n")
    text = with_short_names(without_repeated_lines(text))
    return re.sub(r"\n{2,}", "\n", text).strip() + "\n"


def without_repeated_lines(ptx: str) -> str:
    """PTX without line information that repeats the previous one or is not followed by an instruction."""
    lines, said, pending = [], None, None
    for line in ptx.splitlines():
        if line.startswith(".loc "):
            pending = " ".join(line.split()[:3]) + " 0"
            continue
        if line.startswith(".visible .entry"):
            said, pending = None, None
        elif line.startswith("$"):
            # A jump to this label may come from another line.
            said, pending = None, pending or said
        elif pending and line.endswith(";") and not line.startswith("."):
            if pending != said:
                lines.append(pending)
            said, pending = pending, None
        lines.append(line)
    return "\n".join(lines)


def with_short_names(ptx: str) -> str:
    """PTX with short names: a fifth of the text was names with redundant prefixes.

    Parameters, labels and registers are local to their entry; shared memory of functions is numbered by file.
    """
    ptx = re.sub(r"\b\w+_param_(\d+)", r"a\1", ptx)
    ptx = re.sub(r"\$L__BB\d+_(\d+)", r"$\1", ptx)
    ptx = re.sub(r"%(rd|rs|fd|f|r|p)(?=[\d<])", lambda name: REGISTERS.get(name[1], name[1]), ptx)
    for number, name in enumerate(dict.fromkeys(re.findall(r"\b_ZZ\w+", ptx))):
        ptx = re.sub(rf"\b{name}\b", re.sub(r".*E\d+", "", name) + f"_{number}", ptx)
    return ptx


def options(target: int, macros: list[str], lines: bool) -> list[str]:
    """Options of every compilation, with or without source lines of instructions."""
    information = ["--generate-line-info"] if lines else []
    return [f"--gpu-architecture=compute_{target}", "--std=c++17", *information, *(f"-D{m}" for m in macros)]


def ptx_files(compiler: Compiler, lines: bool) -> dict[Path, str]:
    """All committed PTX, by path. PTX with a planted bug always has source lines; other PTX only if `lines`, as they would be an
    eighth of it."""
    files = {}

    def add(path: Path, source: Path, target: int, macros: list[str], kernel: str | None) -> None:
        def compiled() -> str:
            ptx = compiler.compile(source, options(target, macros, lines or bool(macros)))[0]
            ptx = committed_form(ptx, target)
            if source.stem in HALVES and target >= BF16_TARGET:
                ptx = for_both_halves(ptx)
            return only(ptx, kernel) if kernel else ptx

        if ".entry" in (ptx := as_committed(compiled, path)):
            files[path] = ptx

    for target in TARGETS:
        for source in sorted(KERNELS.glob("fp8*.cu" if target == OF_FP8 else "*.cu")):
            add(KERNELS / f"ptx/sm_{target}/{source.stem}.ptx", source, target, [], None)
    for source, bug, kernel in BUGS:
        add(PLANTED / f"{source}_{bug.lower()}.ptx", KERNELS / f"{source}.cu", BUGS_TARGET, [f"BUG_{bug}"], kernel)
    return files


def as_committed(compiled: Callable[[], str], path: Path) -> str:
    """PTX for a source. The compiler varies the order of some instructions, so one source has several results: returns the
    committed one if some tries produce it, else the first."""
    committed = path.read_text() if path.exists() else None
    first = compiled()
    if committed is None or first == committed:
        return first
    return committed if any(compiled() == committed for _ in range(TRIES)) else first


def only(ptx: str, kernel: str) -> str:
    """PTX without its other kernels."""
    return ENTRY.sub(lambda entry: entry[0] if entry[1] == kernel else "", ptx)


def for_both_halves(ptx: str) -> str:
    """PTX of kernels for bf16, from which src/cuda/modules.rs derives those for f16. Exits if they differ in more than the type's
    name."""
    entries = {entry[1]: entry[0] for entry in ENTRY.finditer(ptx)}

    def instructions(text: str) -> list[str]:
        """The sorted instructions, with normalized names of registers and shared memory, and without source lines."""
        lines = (line for line in text.splitlines() if not line.startswith((".loc ", ".reg ")))
        return sorted(re.sub(r"(?<![.\w])(r|d|s|e|f|p|\$|\w+_)\d+", r"\1", line) for line in lines)

    for name in [name for name in entries if "_bf16" in name]:
        other = name.replace("_bf16", "_f16")
        if instructions(entries[name].replace("bf16", "f16")) != instructions(entries[other]):
            sys.exit(f"error: {other} differs from {name} in more than its type")
    return ENTRY.sub(lambda entry: entry[0] if "_bf16" in entry[1] else "", ptx)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, required=True, help="virtual environment for the compiler's wheel")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--check", action="store_true", help="compare with the committed files, and write nothing")
    how.add_argument(
        "--lines", action="store_true", help="include source lines, for reports of the CUDA stand-in; do not commit the result"
    )
    arguments = parser.parse_args()
    compiler = Compiler(arguments.venv.resolve())
    try:
        files = ptx_files(compiler, arguments.lines)
    except CompileError as error:
        sys.exit(f"error: {error}")
    there = {*KERNELS.glob("ptx/*/*.ptx"), *PLANTED.glob("*.ptx")}
    changed = {path for path, text in files.items() if not path.exists() or path.read_text() != text}
    changed |= there - files.keys()
    if arguments.check:
        for path in sorted(changed):
            print(f"not up to date: {path.relative_to(REPOSITORY)}")
        sys.exit(1 if changed else 0)
    for path in there - files.keys():
        path.unlink()
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
