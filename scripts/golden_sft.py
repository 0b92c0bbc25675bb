#!/usr/bin/env python3
"""Creates the golden values for tests of supervised fine-tuning: ten steps of TRL's SFTTrainer on prompts with completions.

The tiny Llama of golden_decoders.py with random LoRA adapters of PEFT, in float32 on one thread, without dropout. The file,
crates/train/tests/golden/sft_llama.safetensors, contains the parameters as adapters_llama.safetensors does, and for KIND in padded (one
example in each row) and packed (`packing=True`: all examples of a step in one row without padding, which do not attend to each other):

    tokens.KIND    (STEPS, R, T) int32   the rows of each step, padded with 0
    targets.KIND   (STEPS, R, T) int32   the next token, or -1 if it is not of a completion
    segments.KIND  (STEPS, R, T) int32   1, 2, ... for the examples of a row; 0 for padding
    losses.KIND    (STEPS,) float32      of AdamW steps, each before its update

The metadata contains `config`, the model's config.json, and `adapters`, PEFT's adapter_config.json.

usage:  python scripts/golden_sft.py [OUT_DIR]
needs:  pip install torch transformers peft trl safetensors
The committed values were made with torch 2.15.0, transformers 5.24.0, peft 0.21.2 and the release of TRL in the file's metadata.
"""

import random
import sys
import tempfile
from pathlib import Path

import datasets
import torch
import transformers
import trl
from safetensors.torch import save

import golden
import golden_adapters
import golden_decoders
from golden_preferences import WORDS, adapters, drawn, settings, tokenizer

B = 4
# Tokens of a packed row.
ROW = 24
IGNORED = -100


def examples() -> datasets.Dataset:
    """Prompts with completions of several lengths."""
    draw = random.Random(golden.SEED)

    def words(most: int) -> str:
        return "".join(f" w{draw.randrange(2, WORDS)}" for _ in range(draw.randint(1, most)))

    rows = [{"prompt": words(5).strip(), "completion": words(7)} for _ in range(B * golden.STEPS * 2)]
    return datasets.Dataset.from_list(rows)


class Recorder(trl.SFTTrainer):
    """Records the batch and the loss of every step."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.batches, self.losses = [], []

    def compute_loss(self, model, inputs, *args, **settings):
        self.batches.append({name: value.clone() for name, value in inputs.items() if torch.is_tensor(value)})
        loss = super().compute_loss(model, inputs, *args, **settings)
        self.losses.append((loss[0] if isinstance(loss, tuple) else loss).detach().clone())
        return loss


def trained(base, packed: bool) -> tuple[Recorder, golden.Tensors]:
    """A trainer after its steps, and the parameters before them."""
    with tempfile.TemporaryDirectory() as folder:
        config = trl.SFTConfig(
            completion_only_loss=True,
            packing=packed,
            max_length=ROW,
            per_device_train_batch_size=1 if packed else B,
            **settings(folder),
        )
        trainer = Recorder(
            base, args=config, train_dataset=examples(), processing_class=tokenizer(), peft_config=adapters()
        )
        weights = drawn(trainer)
        trainer.train()
        return trainer, weights


def segments(batch: dict) -> torch.Tensor:
    """The examples of each row, numbered from 1; 0 for padding."""
    if "position_ids" in batch:
        return (batch["position_ids"] == 0).cumsum(1)
    return batch["attention_mask"]


def batches(trainer: Recorder) -> dict[str, torch.Tensor]:
    """Tokens, targets and segments of all steps, padded to one length."""
    longest = max(batch["input_ids"].shape[1] for batch in trainer.batches)
    rows = trainer.batches[0]["input_ids"].shape[0]
    tokens = torch.zeros(golden.STEPS, rows, longest, dtype=torch.int32)
    targets, of_rows = torch.full_like(tokens, -1), torch.zeros_like(tokens)
    for step, batch in enumerate(trainer.batches):
        length = batch["input_ids"].shape[1]
        tokens[step, :, :length] = batch["input_ids"]
        following = batch["labels"][:, 1:]
        targets[step, :, : length - 1] = torch.where(following == IGNORED, -1, following)
        of_rows[step, :, :length] = segments(batch)
    return {"tokens": tokens, "targets": targets, "segments": of_rows}


def main(out: Path) -> None:
    golden.one_thread()
    tensors = {}
    for kind in ["padded", "packed"]:
        base = golden_decoders.tiny("llama")
        config = golden.config_json(base)
        trainer, weights = trained(base, kind == "packed")
        tensors |= weights | {f"{name}.{kind}": values for name, values in batches(trainer).items()}
        tensors[f"losses.{kind}"] = torch.stack(trainer.losses)
        print(kind, [round(loss.item(), 4) for loss in trainer.losses], tensors[f"segments.{kind}"].amax((1, 2)).tolist())
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}, trl {trl.__version__}"
    metadata = {"config": config, "adapters": golden_adapters.adapter_json(trainer.model), "made_with": versions}
    (out / "sft_llama.safetensors").write_bytes(save(tensors, metadata))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else golden.GOLDEN)
