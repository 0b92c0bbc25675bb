#!/usr/bin/env python3
"""Writes docs/src/first-hour.md: what a new user meets in the first hour, with the command that shows each point and what it
prints.

usage:  python scripts/first_hour.py --plimsoll target/release/plimsoll [--out docs/src/first-hour.md]
needs:  Python alone

Every command is run, in a folder with small files that are made here, on a machine without a card or with `--device cpu`
in place of one; what it prints is what the page has, but for lines that `SHOWN` leaves out (said by `…`) and for names of
temporary folders.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import tempfile
from pathlib import Path

# Point, what it is, and the commands: each with the words of which a line must have one to be shown (all lines if none), and
# how many lines are shown at most.
POINTS = [
    ("1", "The guides' own lines work as they stand", [
        ("plimsoll plan --model_size medium --vram 12 --vram_safety_margin 500 --batch_size 3 --gradient_accumulation_steps 4 "
         "--fp16 --use_cpu_offload --cpu_offload_fraction 0.5 --gradient_checkpointing --no_rdrop --data_dir notes --epochs 3 "
         "--dataloader-num-workers 2 --disable-compilation", ["changes nothing", "does not depend", "parameters;", "in fp16"], 6),
        ("plimsoll train --batchsize 4", ["error", "hint"], 4),
    ]),
    ("2", "Names on the hub", [
        ("plimsoll plan --model google/flan-t5-xll", ["error", "hint"], 4),
        ("plimsoll models", ["gpt2-", "flan"], 6),
        ("plimsoll plan --init google/flan-t5-xl", ["error", "hint"], 4),
    ]),
    ("3", "Settings files of other trainers, all problems at once", [
        ("plimsoll plan --config axolotl.yaml", ["error", "line", "hint", "mean", "leave", "nothing"], 14),
    ]),
    ("4", "One vocabulary for `plan`, `train`, `bench` and `generate`", [
        ("plimsoll plan --model gpt2 --scheduler wsd --warmup-ratio 2", ["error", "hint"], 3),
    ]),
    ("5", "A plan says its device, its precision and where its times come from; without a card `--vram` means one", [
        ("plimsoll plan --model gpt2-medium --vram 12", ["planning", "parameters;", "in bf16", "limited", "predicted"], 6),
        ("plimsoll plan --model gpt2-xl --compare 3060,4090", [], 9),
    ]),
    ("6", "Two budgets, two lines", [
        ("plimsoll plan --model llama-3-8b --gpu 4090", ["error", "GiB of"], 3),
    ]),
    ("7", "What is found can be run; ways out combine levers and keep the family", [
        ("plimsoll plan --model gpt2 --gpu 3060 --find seq-len", ["longest", "parameters;"], 3),
        ("plimsoll plan --model google/flan-t5-xl --vram 12 --host-ram 18", ["hint"], 4),
    ]),
    ("8", "Contradictions are said, cards are listed, durations are for people", [
        ("plimsoll plan --model gpt2 --gpu 3060 --vram 16", ["error", "hint"], 3),
        ("plimsoll gpus", [], 4),
        ("plimsoll gpus --known", ["name", "card", "RTX 30"], 5),
        ("plimsoll plan --model gpt2 --gpu 3060 --global-batch 8 --explain", ["×"], 5),
    ]),
    ("9", "Nothing changes silently", [
        ("plimsoll train --data noise.txt --max-steps 2 --device cpu --vram 1 --sample-tokens 0", ["warning", "note", "binary"], 3),
        ("plimsoll train --data notes --model gpt2 --tokenizer bytes --seq-len 32 --global-batch 1 --max-steps 1 --device cpu "
         "--sample-tokens 0 --eval-samples 1", ["note", "warning"], 3),
    ]),
    ("10", "A line each so many steps off a terminal; on one, a bar (the picture of the README)", [
        ("plimsoll train --data notes --max-steps 15 --log-every 5 --device cpu --vram 1 --sample-tokens 0", ["step "], 4),
    ]),
    ("11", "A sample that can be read, and last lines to pass on", [
        ("plimsoll train --data notes --max-steps 200 --device cpu --vram 1 --sample-tokens 60 --name mine",
         ["┃", "sample", "finished", "nano,", "held-out loss", "try it"], 14),
    ]),
    ("12", "Help is a screen; completions, manual pages, doctor", [
        ("plimsoll train -h", [], 8),
        ("plimsoll man manual", [], 3),
        ("plimsoll doctor", ["driver", "CPU", "memory", "BLAS", "times", "cache", "runs", "auto"], 12),
    ]),
    ("13", "Pages: of a plan, and of a run", [
        ("plimsoll plan --model gpt2-medium --gpu 3060 --html plan.html", ["predicted"], 2),
        ("plimsoll report runs/mine", [], 3),
    ]),
    ("15", "Data as people have it", [
        ("plimsoll train --data chats.jsonl --packing --max-steps 5 --device cpu --vram 1 --sample-tokens 0", ["data:", "chats", "trained on"], 4),
        ("plimsoll train --data alpaca.json --max-steps 5 --device cpu --vram 1 --sample-tokens 0", ["data:", "chats", "trained on"], 4),
    ]),
]

AXOLOTL = """\
base_model: HuggingFaceTB/SmolLM2-135M
datasets:
  - path: notes
    type: completion
sequence_len: 1024
micro_batch_size: 2
num_epochs: 3
lr_scheduler: cosinus
learning_rate: 2e-5
adapter: lora
wandb_project: mine
flash_attention: true
warmup_ration: 0.1
"""


def make_files(folder):
    notes = folder / "notes"
    notes.mkdir()
    lines = [f"Line {n} counts {n * n % 977} ships, and {n * 31 % 89} of them are loaded to the line.\n" for n in range(4000)]
    (notes / "ships.txt").write_text("".join(lines))
    (folder / "noise.txt").write_bytes(bytes(n * n * 7919 % 251 for n in range(60_000)))
    (folder / "axolotl.yaml").write_text(AXOLOTL)
    with open(folder / "chats.jsonl", "w") as chats:
        for n in range(2000):
            turns = [{"role": "user", "content": f"What comes after {n}?"}, {"role": "assistant", "content": f"{n + 1}."}]
            chats.write(json.dumps({"messages": turns}) + "\n")
    rows = [{"instruction": f"Double {n}.", "input": "", "output": str(2 * n)} for n in range(2000)]
    (folder / "alpaca.json").write_text(json.dumps(rows))


def shown(text, folder, words, most):
    lines = text.replace(str(folder), "~").splitlines()
    kept, left_out = [], False
    for line in lines:
        if not line.strip() or (words and not any(word in line for word in words)) or len(kept) >= most:
            left_out = True
            continue
        kept.append(line.rstrip())
    return kept + (["…"] if left_out else [])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plimsoll", required=True, type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/src/first-hour.md"))
    given = parser.parse_args()
    page = [
        "# The first hour, point by point",
        "",
        "What a new user meets, each point with the command that shows it and what it printed, by",
        "`python scripts/first_hour.py --plimsoll target/release/plimsoll`, on a machine with "
        f"{os.cpu_count()} cores ({platform.machine()}, {platform.system()}) and no card. `…` stands for lines that are left out.",
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder)
        environment = {"PATH": os.environ["PATH"], "HOME": name, "LANG": "C.UTF-8", "COLUMNS": "100"}
        for point, what, commands in POINTS:
            page += ["", f"## {point}. {what}"]
            for command, words, most in commands:
                arguments = shlex.split(command)[1:]
                done = subprocess.run(
                    [given.plimsoll.resolve(), *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
                )
                lines = shown(done.stderr + done.stdout, folder, words, most)
                if lines in ([], ["…"]):
                    raise SystemExit(f"{command} showed nothing of {words}:\n{done.stderr}{done.stdout}")
                page += ["", "```console", f"$ {command}", *lines, "```"]
                if done.returncode:
                    page += ["", f"(exit code {done.returncode})"]
    page += [
        "",
        "## 14. The README, the manual, releases",
        "",
        "| what | command |",
        "| --- | --- |",
        "| the manual builds | `mdbook build docs` |",
        "| its commands are run | `cargo test --workspace --test cli manual` |",
        "| the picture | `python scripts/picture.py --plimsoll target/release/plimsoll --out docs/src/train.svg` |",
        "| the picture of `top` | `python scripts/top_picture.py --plimsoll target/release/plimsoll --nvml LIBRARY --out docs/src/top.svg` |",
        "| archive, Debian package, checksums | `scripts/release.sh` |",
        "| the goldens of chat templates, and TRL beside them | `python scripts/golden_chat.py`, `python scripts/check_trl.py` |",
        "",
    ]
    given.out.write_text("\n".join(page))


if __name__ == "__main__":
    main()
