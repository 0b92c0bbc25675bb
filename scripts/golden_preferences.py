#!/usr/bin/env python3
"""Creates the golden values for tests of training on preferences: ten steps of TRL's DPOTrainer, ORPOTrainer
and KTOTrainer.

The tiny Llama of golden_decoders.py with random LoRA adapters of PEFT, whose reference is the model without them, in float32 on one
thread, without dropout. The file, crates/train/tests/golden/preferences_llama.safetensors, contains the parameters as
adapters_llama.safetensors does, and:

    tokens       (STEPS, 2·B, T) int32   the batch of each step: in rows 2i and 2i+1 the prompt of example i with its chosen and its
                                         rejected answer, padded with 0
    targets      (STEPS, 2·B, T) int32   the next token, or -1 if it is not of an answer
    losses.KIND  (STEPS,) float32        of AdamW steps, each before its update, for KIND in sigmoid, robust, hinge and ipo
    rewards.KIND (STEPS, 3) float32      rewards/chosen, rewards/rejected and rewards/accuracies as TRL logs them

and the same tensors of ORPO, whose name ends with .orpo: TRL's with micro-batches of one example, whose mean is the loss of a step. In
targets.orpo, the tokens of the prompts of chosen answers are targets of the second group: -2 - token. And of KTOTrainer, with KIND in
kto and apo_zero_unpaired: tokens.judged and targets.judged, which have B rows, with tokens of disliked answers as targets of the second
group; tokens.mismatched and targets.mismatched, from whose rows the loss kto estimates its divergence; the losses; and as rewards the
sums of rewards/chosen and of rewards/rejected divided by B, and the part of liked answers.

The metadata contains `config`, the model's config.json, `adapters`, PEFT's adapter_config.json, and `beta`, `smoothing`, `liked` and
`disliked`, the settings of the losses; `sigmoid` has no smoothing.

And the tokens that it makes of rows in all formats, crates/data/tests/golden/preferences.json: `template`, a chat template, and
`cases`, each with `rows`, lines of JSON, and `examples`, the ids of each row's prompt, chosen answer and rejected answer. The tokenizer is
that of golden_chat.py.

usage:  python scripts/golden_preferences.py [OUT_DIR DATA_DIR]
needs:  pip install torch transformers peft trl safetensors
The committed values were made with torch 2.15.0, transformers 5.24.0, peft 0.21.2 and the release of TRL in the file's metadata.
"""

import json
import random
import sys
import tempfile
from pathlib import Path

import datasets
import peft
import tokenizers
import torch
import transformers
import trl
from safetensors.torch import save
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

import golden
import golden_adapters
import golden_decoders

B = 4
BETA = 0.5
SMOOTHING = 0.1
LIKED, DISLIKED = 1.5, 0.75
REWARDS = ["rewards/chosen", "rewards/rejected", "rewards/accuracies"]
KINDS = ["sigmoid", "robust", "hinge", "ipo"]
JUDGED_KINDS = ["apo_zero_unpaired", "kto"]
WORDS = 37


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A token for each word."""
    vocab = {f"w{number}": number for number in range(WORDS)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1", pad_token="w0", unk_token="w0")


def examples() -> datasets.Dataset:
    """Prompts with answers of several lengths, as texts."""
    draw = random.Random(golden.SEED)

    def words(most: int) -> str:
        return "".join(f" w{draw.randrange(2, WORDS)}" for _ in range(draw.randint(1, most)))

    rows = [{"prompt": words(5).strip(), "chosen": words(6), "rejected": words(8)} for _ in range(B * golden.STEPS)]
    return datasets.Dataset.from_list(rows)


def adapters() -> peft.LoraConfig:
    return peft.LoraConfig(
        r=3, lora_alpha=6, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=0.0, init_lora_weights=False
    )


class Recorder(trl.DPOTrainer):
    """Records the batch, the loss and the rewards of every step."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.batches, self.losses, self.rewards = [], [], []

    def compute_loss(self, model, inputs, *args, **settings):
        self.batches.append((inputs["input_ids"].clone(), inputs["completion_mask"].clone()))
        loss = super().compute_loss(model, inputs, *args, **settings)
        self.losses.append(loss.detach().clone())
        self.rewards.append(torch.tensor([self._metrics["train"][name][-1] for name in REWARDS]))
        return loss


class OddsRecorder(ORPOTrainer):
    """Records the example, the loss and the rewards of every micro-batch."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        # The loss is a mean over the step's micro-batches.
        self.model_accepts_loss_kwargs = False
        self.rows, self.losses, self.rewards = [], [], []

    def compute_loss(self, model, inputs, *args, **settings):
        self.rows += [
            (inputs[f"{answer}_input_ids"][0].clone(), inputs[f"{answer}_labels"][0].clone())
            for answer in ("chosen", "rejected")
        ]
        loss = super().compute_loss(model, inputs, *args, **settings)
        self.losses.append(loss.detach().clone())
        self.rewards.append(torch.tensor([self._stored_metrics["train"][name][-1] for name in REWARDS]))
        return loss


class JudgedRecorder(trl.KTOTrainer):
    """Records the batch, the loss and the rewards of every step, and with the loss kto the mismatched batch."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.batches, self.mismatched, self.losses, self.rewards, self.divergences = [], [], [], [], []

    def compute_loss(self, model, inputs, *args, **settings):
        self.batches.append(tuple(inputs[name].clone() for name in ("input_ids", "completion_mask", "label")))
        if "KL_input_ids" in inputs:
            names = ("KL_input_ids", "KL_completion_mask", "label")
            self.mismatched.append(tuple(inputs[name].clone() for name in names))
        loss = super().compute_loss(model, inputs, *args, **settings)
        self.losses.append(loss.detach().clone())
        self.divergences.append(self._metrics["train"]["kl"][-1])
        part = inputs["label"].float().mean().item()

        def mean(name: str, of: float) -> float:
            return self._metrics["train"][name][-1] * of if of > 0 else 0.0

        self.rewards.append(torch.tensor([mean(REWARDS[0], part), mean(REWARDS[1], 1 - part), part]))
        return loss


def settings(folder: str) -> dict:
    """What all of TRL's trainers share here: ten steps of AdamW at a constant rate, and nothing is written."""
    return {
        "output_dir": folder,
        "max_steps": golden.STEPS,
        "learning_rate": golden.LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "adam_beta1": golden.BETAS[0],
        "adam_beta2": golden.BETAS[1],
        "adam_epsilon": golden.EPS,
        "weight_decay": golden.WEIGHT_DECAY,
        "max_grad_norm": golden.MAX_GRAD_NORM,
        "optim": "adamw_torch",
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "report_to": "none",
        "logging_strategy": "no",
        "seed": golden.SEED,
    }


def drawn(trainer) -> golden.Tensors:
    """Gives the adapters of a trainer random values, and returns all parameters."""
    generator = torch.Generator().manual_seed(golden.SEED + 2)
    weights = {}
    with torch.no_grad():
        for name, parameter in trainer.model.named_parameters():
            if ".lora_" in name:
                parameter.normal_(0.0, 0.1, generator=generator)
            for stored, part in golden.stored(trainer.model, name):
                weights[f"weight.{stored}"] = part(parameter.detach()).clone().contiguous()
    return weights


def trained(base, kind: str) -> tuple[Recorder, golden.Tensors]:
    """A trainer after its steps, and the parameters before them. TRL adds the adapters itself: of a model that has some, the reference
    would be a copy of these."""
    with tempfile.TemporaryDirectory() as folder:
        config = trl.DPOConfig(
            loss_type=[kind],
            beta=BETA,
            label_smoothing=SMOOTHING if kind == "robust" else 0.0,
            per_device_train_batch_size=B,
            **settings(folder),
        )
        trainer = Recorder(
            base, args=config, train_dataset=examples(), processing_class=tokenizer(), peft_config=adapters()
        )
        weights = drawn(trainer)
        trainer.train()
        return trainer, weights


def trained_by_odds(base) -> tuple[OddsRecorder, golden.Tensors]:
    """The same of ORPO."""
    with tempfile.TemporaryDirectory() as folder:
        config = ORPOConfig(
            beta=BETA, per_device_train_batch_size=1, gradient_accumulation_steps=B, **settings(folder)
        )
        trainer = OddsRecorder(
            base, args=config, train_dataset=examples(), processing_class=tokenizer(), peft_config=adapters()
        )
        weights = drawn(trainer)
        trainer.train()
        return trainer, weights


def rows_of_odds(trainer: OddsRecorder) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets of all steps, padded to one length."""
    longest = max(len(tokens) for tokens, _ in trainer.rows)
    all_tokens = torch.zeros(len(trainer.rows), longest, dtype=torch.int32)
    targets = torch.full_like(all_tokens, -1)
    for row, (tokens, labels) in enumerate(trainer.rows):
        all_tokens[row, : len(tokens)] = tokens
        of_prompt = -2 - tokens if row % 2 == 0 else torch.full_like(tokens, -1)
        targets[row, : len(tokens) - 1] = torch.where(labels >= 0, tokens, of_prompt)[1:]
    shape = (golden.STEPS, 2 * B, longest)
    return all_tokens.view(shape), targets.view(shape)


def trained_on_judgments(base, loss: str) -> tuple[JudgedRecorder, golden.Tensors]:
    """The same of KTO, on the chosen and the rejected answers of the examples, a third of them liked."""
    rows = [
        {"prompt": row["prompt"], "completion": row["chosen" if at % 3 == 0 else "rejected"], "label": at % 3 == 0}
        for at, row in enumerate(examples())
    ]
    with tempfile.TemporaryDirectory() as folder:
        config = trl.KTOConfig(
            loss_type=loss,
            train_sampling_strategy="sequential",
            beta=BETA,
            desirable_weight=LIKED,
            undesirable_weight=DISLIKED,
            per_device_train_batch_size=B,
            **settings(folder),
        )
        trainer = JudgedRecorder(
            base,
            args=config,
            train_dataset=datasets.Dataset.from_list(rows),
            processing_class=tokenizer(),
            peft_config=adapters(),
        )
        weights = drawn(trainer)
        trainer.train()
        return trainer, weights


def judged_batches(batches: list, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets of all steps, padded to this length."""
    all_tokens = torch.zeros(golden.STEPS, B, longest, dtype=torch.int32)
    targets = torch.full_like(all_tokens, -1)
    for step, (tokens, mask, liked) in enumerate(batches):
        length = tokens.shape[1]
        all_tokens[step, :, :length] = tokens
        grouped = torch.where(liked.bool()[:, None], tokens, -2 - tokens)
        targets[step, :, : length - 1] = torch.where(mask.bool(), grouped, -1)[:, 1:]
    return all_tokens, targets


def interleaved(rows: torch.Tensor) -> torch.Tensor:
    """TRL has all chosen answers before all rejected ones."""
    return torch.stack([rows[:B], rows[B:]], 1).flatten(0, 1)


def batches(trainer: Recorder) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets of all steps, padded to one length."""
    longest = max(tokens.shape[1] for tokens, _ in trainer.batches)
    all_tokens = torch.zeros(golden.STEPS, 2 * B, longest, dtype=torch.int32)
    targets = torch.full_like(all_tokens, -1)
    for step, (tokens, mask) in enumerate(trainer.batches):
        length = tokens.shape[1]
        all_tokens[step, :, :length] = interleaved(tokens)
        following = torch.where(mask[:, 1:].bool(), tokens[:, 1:], -1)
        targets[step, :, : length - 1] = interleaved(following)
    return all_tokens, targets


def say(role: str, content: str) -> dict:
    return {"role": role, "content": content}


TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The last prompt of the first case ends within a word, so that the tokens of the prompt alone differ from those with an answer.
CASES = [
    [
        {"prompt": "How deep is it?", "chosen": " Nine feet.", "rejected": " I am not a fish, and nobody told me."},
        {"prompt": "Which port? ", "chosen": "Hull</s>", "rejected": "None"},
        {"prompt": "The tide ris", "chosen": "es at noon", "rejected": "k is high"},
    ],
    [
        {"chosen": "How deep is it? Nine feet.", "rejected": "How deep is it? No idea."},
        {"chosen": "Tides rise twice", "rejected": "Tides rise"},
    ],
    [
        {
            "prompt": [say("system", "Be brief."), say("user", "Which port is deepest?")],
            "chosen": [say("assistant", "Hull.")],
            "rejected": [say("assistant", "The deepest port is the one with most water.")],
        }
    ],
    [
        {
            "chosen": [say("user", "Hello"), say("assistant", "Hi!"), say("user", "Depth?"), say("assistant", "Nine feet.")],
            "rejected": [say("user", "Hello"), say("assistant", "Hi!"), say("user", "Depth?"), say("assistant", "No.")],
        }
    ],
]


def tokenized(data: Path) -> dict:
    words = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(data / "tokenizer.json"), bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    words.chat_template = TEMPLATE
    cases = []
    for rows in CASES:
        with tempfile.TemporaryDirectory() as folder:
            config = trl.DPOConfig(output_dir=folder, bf16=False, use_cpu=True, report_to="none")
            trainer = trl.DPOTrainer(
                golden_decoders.tiny("llama"),
                args=config,
                train_dataset=datasets.Dataset.from_list(rows),
                processing_class=words,
                peft_config=adapters(),
            )
        names = ["prompt_ids", "chosen_ids", "rejected_ids"]
        examples = [[row[name] for name in names] for row in trainer.train_dataset]
        cases.append({"rows": [json.dumps(row) for row in rows], "examples": examples})
    return {"template": TEMPLATE, "cases": cases}


def main(out: Path, data: Path) -> None:
    golden.one_thread()
    tensors = {}
    for kind in KINDS:
        base = golden_decoders.tiny("llama")
        config = golden.config_json(base)
        trainer, weights = trained(base, kind)
        tensors |= weights
        tensors[f"losses.{kind}"] = torch.stack(trainer.losses)
        tensors[f"rewards.{kind}"] = torch.stack(trainer.rewards)
        tokens, targets = batches(trainer)
        assert kind == KINDS[0] or torch.equal(tokens, tensors["tokens"])
        tensors |= {"tokens": tokens, "targets": targets}
        print(kind, [round(loss.item(), 4) for loss in trainer.losses])
    trainer, weights = trained_by_odds(golden_decoders.tiny("llama"))
    assert all(torch.equal(values, tensors[name]) for name, values in weights.items())
    of_step = (golden.STEPS, B)
    tensors["losses.orpo"] = torch.stack(trainer.losses).view(of_step).mean(1)
    tensors["rewards.orpo"] = torch.stack(trainer.rewards).view(*of_step, 3).mean(1)
    tensors["tokens.orpo"], tensors["targets.orpo"] = rows_of_odds(trainer)
    print("orpo", [round(loss.item(), 4) for loss in tensors["losses.orpo"]])
    for kind in JUDGED_KINDS:
        trainer, weights = trained_on_judgments(golden_decoders.tiny("llama"), kind)
        assert all(torch.equal(values, tensors[name]) for name, values in weights.items())
        tensors |= {f"losses.{kind}": torch.stack(trainer.losses), f"rewards.{kind}": torch.stack(trainer.rewards)}
        print(kind, [round(loss.item(), 4) for loss in trainer.losses])
    # The loss kto is compared with a divergence of zero in some of the steps, and not in others.
    print("divergences", [round(divergence, 4) for divergence in trainer.divergences])
    assert min(trainer.divergences) == 0.0 < max(trainer.divergences)
    batches_of = {"judged": trainer.batches, "mismatched": trainer.mismatched}
    longest = max(tokens.shape[1] for batches in batches_of.values() for tokens, *_ in batches)
    for name, of_steps in batches_of.items():
        tensors[f"tokens.{name}"], tensors[f"targets.{name}"] = judged_batches(of_steps, longest)
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}, trl {trl.__version__}"
    constants = {"beta": BETA, "smoothing": SMOOTHING, "liked": LIKED, "disliked": DISLIKED}
    settings = {**{name: str(value) for name, value in constants.items()}, "made_with": versions}
    metadata = {"config": config, "adapters": golden_adapters.adapter_json(trainer.model), **settings}
    (out / "preferences_llama.safetensors").write_bytes(save(tensors, metadata))
    (data / "preferences.json").write_text(json.dumps(tokenized(data)) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3] or (golden.GOLDEN, golden.REPOSITORY / "crates/data/tests/golden")))
