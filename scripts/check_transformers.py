#!/usr/bin/env python3
"""Checks that transformers and Plimsoll open each other's checkpoints and compute the same logits.

usage:  python scripts/check_transformers.py CHECKPOINT_DIR LOGITS.json
        python scripts/check_transformers.py --plimsoll PROGRAM [--family gpt2|t5|llama|bert]...
        python scripts/check_transformers.py --make DIR [--family NAME]

The first form opens CHECKPOINT_DIR (weights and config.json) as the model that its config.json names, checks that no key is
missing, unexpected or of another shape, and compares logits with those of one sequence that
`plimsoll generate --checkpoint CHECKPOINT_DIR --prompt TEXT --logits LOGITS.json` wrote:

    {"tokens": [t0, t1, ...], "logits": [[V floats], [V floats], ...]}     one row of logits per token
    {"source": [s0, ...], "tokens": [0], "logits": [[V floats]]}           T5: the prompt is the source, and tokens are
                                                                           the decoder's, the first being its start id

The second form checks both directions. It creates small random models of each family, has transformers save them in one file, in
shards, in bfloat16 and, if the head is tied, without head and prefix, has PROGRAM compute logits for each folder, and compares them.
Then PROGRAM trains each model for one step and saves it, and the first form checks a copy of the saved folder. Its tokenizer must
give the same ids as the one that PROGRAM trained with, for each built-in tokenizer.

Of encoders (bert, modernbert), the second form compares vectors of texts that PROGRAM computes with `embed`, in both directions, with
both poolings, and prints the largest difference.

The third form writes one such model into DIR, and the logits of transformers into DIR/logits.json.

exit:   0 the logits agree, 1 they do not or the keys do not fit, 2 usage
needs:  pip install torch transformers safetensors
"""

import argparse
import functools
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

import golden
from golden_encoders import tiny_bert, tiny_modernbert
from golden_gpt2 import tiny_gpt2
from golden_decoders import MODELS, tiny
from golden_t5 import tiny_t5

TOLERANCE = 1e-4
# Not the seed of the golden values, so that a checkpoint with those values fails.
MAKE_SEED = 2024
# Tokens are bytes, so that models need no tokenizer of their own.
MAKE_VOCAB_SIZE = 256
GPT2_VOCAB_SIZE = 50257
PROMPT = "Load line, 1876"
TEXT = "A ship that is loaded below her line does not leave the harbour.\n" * 200
TRAIN_SEQ_LEN = 16

MT5 = (transformers.MT5Config, transformers.MT5ForConditionalGeneration)

# Model name -> function that creates it.
FAMILIES: dict[str, dict[str, Callable]] = {
    "gpt2": {"gpt2": tiny_gpt2},
    "t5": {
        "t5_v1_0": lambda *sizes: tiny_t5(False, *sizes),
        "t5_v1_1": lambda *sizes: tiny_t5(True, *sizes),
    },
    "mt5": {"mt5": lambda *sizes: tiny_t5(True, *sizes, of=MT5)},
} | {name: {name: functools.partial(tiny, name)} for name in MODELS}


# Encoders, which compute vectors of texts.
ENCODERS: dict[str, Callable] = {"bert": tiny_bert, "modernbert": tiny_modernbert}
POOLINGS = ("mean", "cls")
TEXTS = ("Load line, 1876", "a ship", "x", "the line is on her side")
# The models have 32 positions.
MAX_TOKENS = 32


def open_checkpoint(folder: Path, opener=None):
    if not folder.is_dir():
        # from_pretrained would look the name up on the hub.
        sys.exit(f"error: {folder} is not a folder")
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    opener = opener or (AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM)
    # Without a dtype, transformers uses the one in config.json.
    model, info = opener.from_pretrained(folder, dtype=torch.float32, local_files_only=True, output_loading_info=True)
    problems = {kind: sorted(map(str, keys)) for kind, keys in info.items() if keys}
    if problems:
        for kind, keys in problems.items():
            print(f"error: {kind}: {', '.join(keys)}", file=sys.stderr)
        sys.exit(1)
    return model


def logits_of(model, sequence: dict) -> torch.Tensor:
    """sequence: T tokens, and the source if the model has an encoder -> logits (T, V)."""
    tokens = torch.tensor([sequence["tokens"]])
    if model.config.is_encoder_decoder:
        inputs = {"input_ids": torch.tensor([sequence["source"]]), "decoder_input_ids": tokens}
    else:
        inputs = {"input_ids": tokens}
    model.eval()
    with torch.no_grad():
        return model(**inputs).logits[0]


def check(folder: Path, logits_json: Path, what: str = "") -> None:
    expected = json.loads(logits_json.read_text())
    theirs = torch.tensor(expected["logits"], dtype=torch.float32)
    ours = logits_of(open_checkpoint(folder), expected)
    if theirs.shape != ours.shape:
        sys.exit(f"error: {what}the file has logits {tuple(theirs.shape)}, transformers computes {tuple(ours.shape)}")
    difference = (theirs - ours).abs().max().item()
    print(f"{what}max abs difference: {difference:.3e} over {ours.shape[0]} positions, {ours.shape[1]} logits each")
    # Written so that NaN fails.
    if not difference <= TOLERANCE:
        sys.exit(f"error: {what}more than {TOLERANCE:.0e}")


def check_tokenizer(folder: Path, logits_json: Path, what: str) -> None:
    """Compares the ids that the folder's tokenizer gives PROMPT with those that Plimsoll gave it."""
    expected = json.loads(logits_json.read_text())
    theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ids = theirs(PROMPT)["input_ids"]
    # The end token follows a source, as in training.
    ours = expected["source"][:-1] if "source" in expected else expected["tokens"]
    if ids != ours or theirs.decode(ids) != PROMPT:
        sys.exit(f"error: {what}the tokenizer of transformers gives {ids}, Plimsoll's {ours}")
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    # T5 has its own end id, whatever the tokenizer.
    if config.eos_token_id != theirs.eos_token_id and not config.is_encoder_decoder:
        sys.exit(f"error: {what}the model ends with {config.eos_token_id}, the tokenizer with {theirs.eos_token_id}")
    print(f"{what}the same {len(ids)} ids from {type(theirs).__name__}")


def save_variants(model, folder: Path) -> list[Path]:
    """Saves a model in every form in which checkpoints are published."""
    variants = {
        "float32": lambda path: model.save_pretrained(path),
        "shards": lambda path: model.save_pretrained(path, max_shard_size="8KB"),
    }
    # Without the head, names lack its prefix. An untied head would be lost.
    if model.base_model is not model and model.config.tie_word_embeddings:
        variants["bare"] = lambda path: model.base_model.save_pretrained(path)
    # Last, because it converts the model to half precision.
    variants["bfloat16"] = lambda path: model.to(torch.bfloat16).save_pretrained(path)
    variants["bfloat16_shards"] = lambda path: model.save_pretrained(path, max_shard_size="8KB")
    for name, save in variants.items():
        save(folder / name)
        assert (folder / name / "model.safetensors.index.json").exists() == name.endswith("shards"), name
    return [folder / name for name in variants]


def run(program: Path, *arguments) -> None:
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"error: {program.name} {' '.join(map(str, arguments))}\n{done.stderr}")


def generate(program: Path, checkpoint: Path, logits_json: Path, *flags: str) -> None:
    run(program, "generate", "--checkpoint", checkpoint, "--prompt", PROMPT, "--logits", logits_json, *flags)


def check_both_ways(program: Path, name: str, make: Callable) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        logits_json = folder / "logits.json"
        model = make(MAKE_SEED, MAKE_VOCAB_SIZE)
        for saved in save_variants(model, folder):
            generate(program, saved, logits_json, "--tokenizer", "bytes")
            check(saved, logits_json, f"{name}, {saved.name}: ")
        text = folder / ("pairs.tsv" if model.config.is_encoder_decoder else "text.txt")
        text.write_text("a source\tits target\n" * 40 if model.config.is_encoder_decoder else TEXT)
        starts = {"bytes": ("--init", folder / "shards")}
        if name == "gpt2":
            sizes = json.loads((folder / "shards" / "config.json").read_text()) | {"vocab_size": GPT2_VOCAB_SIZE}
            (folder / "config.json").write_text(json.dumps(sizes))
            starts["gpt2"] = ("--model", folder / "config.json")
        for tokenizer, start in starts.items():
            run(
                program, "train", *start, "--data", text, "--tokenizer", tokenizer,
                "--seq-len", TRAIN_SEQ_LEN, "--cache-dir", folder / "cache", "--global-batch", 4, "--max-steps", 1,
                "--sample-tokens", 0, "--runs-dir", folder / "runs", "--name", tokenizer,
            )  # fmt: skip
            moved = folder / "moved" / tokenizer
            shutil.copytree(folder / "runs" / tokenizer / "model", moved)
            what = f"{name}, trained by Plimsoll with {tokenizer}: "
            generate(program, moved, logits_json)
            check(moved, logits_json, what)
            check_tokenizer(moved, logits_json, what)


def vectors_of(model, pooling: str) -> torch.Tensor:
    """(N, C): vectors of TEXTS as bytes, each with an end token of 0, one text at a time, divided by their lengths."""
    model.eval()
    vectors = []
    for text in TEXTS:
        ids = torch.tensor([[*text.encode(), 0]])
        with torch.no_grad():
            states = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
        vectors.append(states[0] if pooling == "cls" else states.mean(0))
    return torch.nn.functional.normalize(torch.stack(vectors), dim=-1)


def check_vectors(program: Path, folder: Path, pooling: str, what: str) -> float:
    """Compares Plimsoll's vectors with those of transformers; returns the largest difference."""
    out = folder.parent / "vectors.jsonl"
    run(
        program, "embed", "--checkpoint", folder, "--tokenizer", "bytes", "--pooling", pooling, "--out", out,
        "--max-tokens", MAX_TOKENS, "--device", "cpu", *TEXTS,
    )  # fmt: skip
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["text"] for line in lines] == list(TEXTS), what
    theirs = torch.tensor([line["vector"] for line in lines])
    difference = (theirs - vectors_of(open_encoder(folder), pooling)).abs().max().item()
    print(f"{what}, {pooling}: max abs difference: {difference:.3e} over {len(TEXTS)} vectors")
    if not difference <= TOLERANCE:
        sys.exit(f"error: {what}: more than {TOLERANCE:.0e}")
    return difference


def open_encoder(folder: Path):
    """Without the pooler of a BERT, which neither program uses here."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    opener = AutoModel
    if config.model_type == "bert":
        opener = functools.partial(transformers.BertModel.from_pretrained, add_pooling_layer=False)
        return open_checkpoint(folder, argparse.Namespace(from_pretrained=opener))
    return open_checkpoint(folder, opener)


def check_encoder_both_ways(program: Path, name: str, make: Callable) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        differences = []
        for saved in save_variants(make(MAKE_SEED, MAKE_VOCAB_SIZE), folder):
            differences += [check_vectors(program, saved, pooling, f"{name}, {saved.name}") for pooling in POOLINGS]
        pairs = folder / "pairs.jsonl"
        pairs.write_text(json.dumps({"anchor": "a ship", "positive": "her line", "negative": "the sea"}) + "\n")
        pairs.write_text(pairs.read_text() * 40)
        run(
            program, "train", "--init", folder / "shards", "--data", pairs, "--tokenizer", "bytes", "--source-len",
            TRAIN_SEQ_LEN, "--target-len", TRAIN_SEQ_LEN, "--cache-dir", folder / "cache", "--global-batch", 4,
            "--max-steps", 1, "--runs-dir", folder / "runs", "--name", name, "--device", "cpu",
        )  # fmt: skip
        moved = folder / "moved" / name
        shutil.copytree(folder / "runs" / name / "model", moved)
        what = f"{name}, trained by Plimsoll"
        differences += [check_vectors(program, moved, pooling, what) for pooling in POOLINGS]
        print(f"{name}: max abs difference of all: {max(differences):.3e}")


def make(folder: Path, name: str, maker: Callable) -> None:
    model = maker(MAKE_SEED, MAKE_VOCAB_SIZE)
    model.save_pretrained(folder)
    prompt = list(PROMPT.encode())
    sequence = {"source": prompt, "tokens": [0]} if model.config.is_encoder_decoder else {"tokens": prompt}
    answer = sequence | {"logits": logits_of(model, sequence).tolist()}
    (folder / "logits.json").write_text(json.dumps(answer) + "\n")
    print(f"{name}: wrote {', '.join(sorted(path.name for path in folder.iterdir()))}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares logits with those of transformers, both ways.")
    parser.add_argument("--plimsoll", metavar="PROGRAM", type=Path, help="check models of transformers with PROGRAM")
    parser.add_argument("--make", metavar="DIR", type=Path, help="write a tiny model and its logits into DIR")
    parser.add_argument(
        "--family", action="append", choices=[*FAMILIES, *ENCODERS], help="only these families [default: all]"
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT_DIR", nargs="?", type=Path)
    parser.add_argument("logits", metavar="LOGITS.json", nargs="?", type=Path)
    arguments = parser.parse_args()

    golden.one_thread()
    transformers.utils.logging.disable_progress_bar()
    if arguments.plimsoll and not arguments.make and not arguments.checkpoint:
        for family in arguments.family or [*FAMILIES, *ENCODERS]:
            if family in ENCODERS:
                check_encoder_both_ways(arguments.plimsoll.resolve(), family, ENCODERS[family])
                continue
            for name, maker in FAMILIES[family].items():
                check_both_ways(arguments.plimsoll.resolve(), name, maker)
    elif arguments.make and not arguments.plimsoll and not arguments.checkpoint:
        [family, *others] = arguments.family or ["gpt2"]
        if others or family in ENCODERS:
            parser.error("--make takes one --family that computes logits")
        name, maker = next(iter(FAMILIES[family].items()))
        make(arguments.make, name, maker)
    elif arguments.logits and not arguments.make and not arguments.plimsoll and not arguments.family:
        check(arguments.checkpoint, arguments.logits)
    else:
        parser.error("give CHECKPOINT_DIR and LOGITS.json, or --plimsoll PROGRAM, or --make DIR")


if __name__ == "__main__":
    main()
