#!/usr/bin/env python3
"""Counterpart of `plimsoll bench --data-only`: pairs of texts to padded batches, with `tokenizers` and PyTorch's DataLoader.

raw      a dataset of texts; each of two workers tokenizes and pads whole batches (`encode_batch`)
cached   a dataset of token lists, computed before the measurement; each of two workers pads whole batches

Rows are truncated to 512 tokens, end with `</s>`, and are padded to multiples of 64. stdout is JSON.
"""

import argparse
import csv
import json
import time

import torch
from tokenizers import Tokenizer
from torch.utils.data import DataLoader

LENGTH_MAX = 512
BUCKET = 64


def main() -> None:
    parser = argparse.ArgumentParser(description="Times a DataLoader of pairs.")
    parser.add_argument("--data", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--global-batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--part", choices=["raw", "cached"], required=True)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(arguments.tokenizer)
    tokenizer.enable_truncation(LENGTH_MAX)
    if arguments.part == "raw":
        start_s = time.perf_counter()
        pairs, collate = read_pairs(arguments.data), Collate(tokenizer)
    else:
        texts = read_pairs(arguments.data)
        sides = [[encoding.ids for encoding in tokenizer.encode_batch_fast(list(side))] for side in zip(*texts)]
        pairs, collate = list(zip(*sides)), Collate(None)
        start_s = time.perf_counter()
    loader = DataLoader(
        pairs,
        batch_size=arguments.global_batch,
        shuffle=True,
        drop_last=True,
        num_workers=arguments.workers,
        pin_memory=False,
        collate_fn=collate,
    )
    samples = sum(len(batch["tokens"]) for batch in loader)
    seconds = time.perf_counter() - start_s
    print(json.dumps({"samples_per_s": samples / seconds, "samples": samples, "torch": torch.__version__}))


def read_pairs(path: str) -> list[tuple[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row[0], row[1]) for row in rows if row]


class Collate:
    """Makes a padded batch of pairs, from texts if there is a tokenizer, else from ids."""

    def __init__(self, tokenizer: Tokenizer | None):
        self.tokenizer = tokenizer

    def __call__(self, pairs: list) -> dict[str, torch.Tensor]:
        sides = list(zip(*pairs))
        if self.tokenizer is not None:
            sides = [[encoding.ids for encoding in self.tokenizer.encode_batch_fast(list(side))] for side in sides]
        tokens, targets = (pad(rows, filler) for rows, filler in zip(sides, (0, -1)))
        decoder_tokens = torch.zeros_like(targets)
        decoder_tokens[:, 1:] = targets[:, :-1].clamp(min=0)
        return {"tokens": tokens, "decoder_tokens": decoder_tokens, "targets": targets}


def pad(rows: list[list[int]], filler: int) -> torch.Tensor:
    longest = max(map(len, rows))
    length = min(-(-longest // BUCKET) * BUCKET, LENGTH_MAX)
    return torch.tensor([row + [filler] * (length - len(row)) for row in rows], dtype=torch.int32)


if __name__ == "__main__":
    main()
