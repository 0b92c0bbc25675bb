#!/usr/bin/env python3
"""Checks that transformers opens a GPT-2 checkpoint of Plimsoll and computes the same logits.

usage:  python scripts/check_transformers.py CHECKPOINT_DIR LOGITS.json
        python scripts/check_transformers.py --make DIR

The first form opens CHECKPOINT_DIR (model.safetensors and config.json) as GPT2LMHeadModel, insists that no key is
missing, unexpected or of another shape, and compares logits. LOGITS.json holds one sequence:

    {"tokens": [t0, t1, ...], "logits": [[V floats], [V floats], ...]}     one row of logits per token

The second form is for the way back: it writes a tiny random GPT-2 by save_pretrained into DIR, and its logits into
DIR/logits.json in the same format, so that Plimsoll can open the folder and compare.

exit:   0 the logits agree, 1 they do not or the keys do not fit, 2 usage
needs:  pip install torch transformers safetensors
"""

import argparse
import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import GPT2LMHeadModel

from golden_gpt2 import one_thread, random_batch, tiny_gpt2

TOLERANCE = 1e-4
# Not the seed of the golden values, so that a checkpoint cannot pass by holding those.
MAKE_SEED = 2024


def logits_of(model, tokens: list[int]) -> torch.Tensor:
    """tokens: T of them -> logits (T, V)."""
    model.eval()
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokens])).logits[0]


def open_checkpoint(folder: Path) -> GPT2LMHeadModel:
    if not folder.is_dir():
        # from_pretrained would take the name for one on the hub.
        sys.exit(f"error: {folder} is not a folder")
    # Without a dtype, transformers takes the one that config.json names.
    model, info = GPT2LMHeadModel.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
    )
    problems = {kind: sorted(map(str, keys)) for kind, keys in info.items() if keys}
    if problems:
        for kind, keys in problems.items():
            print(f"error: {kind}: {', '.join(keys)}", file=sys.stderr)
        sys.exit(1)
    return model


def check(folder: Path, logits_json: Path) -> None:
    expected = json.loads(logits_json.read_text())
    theirs = torch.tensor(expected["logits"], dtype=torch.float32)
    ours = logits_of(open_checkpoint(folder), expected["tokens"])
    if theirs.shape != ours.shape:
        sys.exit(f"error: the file has logits {tuple(theirs.shape)}, transformers computes {tuple(ours.shape)}")
    difference = (theirs - ours).abs().max().item()
    print(f"max abs difference: {difference:.3e} over {ours.shape[0]} positions, {ours.shape[1]} logits each")
    # Written this way round so that a NaN fails.
    if not difference <= TOLERANCE:
        sys.exit(f"error: more than {TOLERANCE:.0e}")


def make(folder: Path) -> None:
    model = tiny_gpt2(MAKE_SEED)
    model.save_pretrained(folder)
    tokens = random_batch(model.config.vocab_size)[0][0].tolist()
    answer = {"tokens": tokens, "logits": logits_of(model, tokens).tolist()}
    (folder / "logits.json").write_text(json.dumps(answer) + "\n")
    print(f"wrote {', '.join(sorted(path.name for path in folder.iterdir()))}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares a checkpoint's logits with those of transformers.")
    parser.add_argument("--make", metavar="DIR", type=Path, help="write a tiny GPT-2 and its logits into DIR")
    parser.add_argument("checkpoint", metavar="CHECKPOINT_DIR", nargs="?", type=Path)
    parser.add_argument("logits", metavar="LOGITS.json", nargs="?", type=Path)
    arguments = parser.parse_args()

    one_thread()
    transformers.utils.logging.disable_progress_bar()
    if arguments.make and not arguments.checkpoint:
        make(arguments.make)
    elif arguments.checkpoint and arguments.logits and not arguments.make:
        check(arguments.checkpoint, arguments.logits)
    else:
        parser.error("give either CHECKPOINT_DIR and LOGITS.json, or --make DIR")


if __name__ == "__main__":
    main()
