#!/usr/bin/env python3
"""Compares the defaults of fine-tuning with nine settings: three learning rates times three sizes of a step.

usage:  python scripts/fine_tuning_defaults.py --plimsoll target/release/plimsoll [--work FOLDER]
needs:  Python, and sources of crates that cargo has downloaded

Two thousand chats ask about a function, struct, enum or trait of a crate; the answer is the first sentence of its documentation. A
Llama with a million parameters is first trained from scratch on sources of other crates. Starting from its weights, one run on the
chats uses all defaults, and nine runs of three epochs use the settings of the grid. Prints the held-out losses, and fails if the
loss with defaults is more than 10 % above the best. Takes about ten minutes on two cores.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

RATES = ["3e-4", "1e-3", "3e-3"]
SAMPLES_OF_STEP = [4, 16, 64]
CHATS = 2000
# Crates with the documentation for chats; the model is first trained on others.
CHATS_ARE_OF = "abcdefghijklmnop"
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 2048, "hidden_size": 128,
    "intermediate_size": 352, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0,
}
DOCUMENTED = re.compile(
    r"((?:^[ \t]*///[^\n]*\n)+)(?:[ \t]*#\[[^\n]*\]\n)*[ \t]*pub (?:const |async |unsafe )*(fn|struct|enum|trait)\s+(\w+)",
    re.MULTILINE,
)


def registry():
    home = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
    return home / "registry" / "src"


def chats():
    """Questions and answers from the documentation of the crates, in the same order on every machine."""
    found = {}
    for path in registry().glob(f"*/[{CHATS_ARE_OF}]*/src/**/*.rs"):
        text = path.read_text(errors="ignore")
        crate = path.relative_to(registry()).parts[1].rsplit("-", 1)[0]
        for documentation, kind, name in DOCUMENTED.findall(text):
            prose = " ".join(line.strip()[3:].strip() for line in documentation.strip().split("\n"))
            sentence = re.match(r"[A-Z][^.]{20,200}\.", prose)
            if sentence and sentence[0].isascii():
                found[f"What is the {kind} `{name}` of {crate}?"] = sentence[0]
    rows = sorted(found.items())
    random.Random(1).shuffle(rows)
    if len(rows) < CHATS:
        sys.exit(f"{len(rows)} of {CHATS} chats: cargo has downloaded too few crates")
    turns = ([{"role": "user", "content": q}, {"role": "assistant", "content": a}] for q, a in rows[:CHATS])
    return "".join(json.dumps({"messages": turn}) + "\n" for turn in turns)


def train(plimsoll, work, name, *flags):
    """Trains; returns the held-out loss and the report."""
    command = [plimsoll, "train", "--name", name, "--eval-every", "0", "--eval-samples", "100", "--checkpoint-every", "0",
               "--sample-tokens", "0", "--sample-every", "off", "--device", "cpu", *flags]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    report = json.loads((work / "runs" / name / "report.json").read_text())
    said = next((line for line in done.stderr.splitlines() if line.startswith("defaults: ")), "")
    return report["eval"][-1]["loss"], said


def compare(plimsoll, work):
    (work / "config.json").write_text(json.dumps(CONFIG))
    (work / "chats.jsonl").write_text(chats())
    others = [str(registry() / "*" / f"[{letter}]*" / "src" / "**" / "*.rs") for letter in "rstu"]
    tokenizer = ["tokenizer", "train", "--kind", "bpe", "--vocab-size", str(CONFIG["vocab_size"]), "--output", "tokenizer.json"]
    subprocess.run([plimsoll, *tokenizer, "--data", *others[2:3]], cwd=work, check=True, capture_output=True)
    base, _ = train(plimsoll, work, "base", "--model", "config.json", "--tokenizer", "tokenizer.json", "--data", *others,
                    "--seq-len", "256", "--global-batch", "16", "--max-steps", "600", "--learning-rate", "2e-3")
    print(f"trained from scratch: {base:.4f} nats per token of source text")
    start = ["--init", "runs/base/model", "--data", "chats.jsonl"]
    default, said = train(plimsoll, work, "defaults", *start)
    print(f"{default:.4f}  {said}")
    losses = []
    for rate in RATES:
        for samples in SAMPLES_OF_STEP:
            given = ["--learning-rate", rate, "--global-batch", str(samples), "--epochs", "3"]
            loss, _ = train(plimsoll, work, f"{rate}-{samples}", *start, *given)
            losses.append(loss)
            print(f"{loss:.4f}  learning rate {rate}, {samples} samples per step", flush=True)
    above = default / min(losses) - 1
    print(f"the defaults' loss is {100 * above:+.1f} % of the best of {len(losses)}")
    return above <= 0.1


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--plimsoll", type=Path, required=True)
    parser.add_argument("--work", type=Path, help="a new folder to keep the runs in [default: a temporary one]")
    args = parser.parse_args()
    plimsoll = args.plimsoll.resolve()
    if args.work:
        args.work.mkdir(parents=True)
        return compare(plimsoll, args.work.resolve())
    with tempfile.TemporaryDirectory() as folder:
        return compare(plimsoll, Path(folder))


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
