#!/usr/bin/env python3
"""Compares the golden values of chats with what TRL trains on: the tokens and labels that its SFTTrainer computes for the same
messages with `assistant_only_loss=True`, for the templates of five families. A chat whose values `datasets` changes is skipped with a message.

usage:  python scripts/check_trl.py
needs:  pip install torch transformers trl datasets
Last run with trl 1.16.0, transformers 5.23.0 and torch 2.15.0. Exits 1 if any chat differs.
"""

import json
import sys
import tempfile
from pathlib import Path

from datasets import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

GOLDEN = Path(__file__).resolve().parents[1] / "crates/data/tests/golden"
IGNORED = -100


def survives(chat):
    """Whether a `Dataset` returns a chat unchanged: its lists have values of one type."""
    stored = Dataset.from_list([{"messages": chat}])[0]["messages"]
    filled = [{key: value for key, value in message.items() if value is not None} for message in stored]
    return json.dumps(filled, sort_keys=True) == json.dumps(chat, sort_keys=True)


def prepared(chat, tokenizer, folder):
    """A chat as TRL passes it to the model: its ids, and which of them are labels."""
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_positions=512, n_embd=8, n_layer=1, n_head=1))
    settings = SFTConfig(
        output_dir=folder, assistant_only_loss=True, max_length=None, report_to="none", use_cpu=True, bf16=False
    )
    data = Dataset.from_list([{"messages": chat}])
    row = SFTTrainer(model, settings, train_dataset=data, processing_class=tokenizer).train_dataset[0]
    return list(row["input_ids"]), "".join("0" if label == IGNORED else "1" for label in row["labels"])


def main():
    golden = json.loads((GOLDEN / "chats.json").read_text())
    chats = [json.loads(row)["messages"] for row in golden["rows"]]
    compared, differing = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for family, made in golden["families"].items():
            tokenizer = PreTrainedTokenizerFast(
                tokenizer_file=str(GOLDEN / "tokenizer.json"), bos_token="<s>", eos_token="</s>", pad_token="</s>"
            )
            tokenizer.chat_template = made["marked"]
            for number, (chat, expected) in enumerate(zip(chats, made["chats"])):
                # TRL also refuses what a template refuses, and chats without an answer.
                if expected is None or "1" not in expected["trained"]:
                    continue
                if not survives(chat):
                    print(f"{family}, chat {number} skipped: `datasets` changes its values")
                    continue
                found = prepared(chat, tokenizer, folder)
                is_same = found == (expected["ids"], expected["trained"])
                compared, differing = compared + 1, differing + (not is_same)
                if not is_same:
                    print(f"{family}, chat {number}:\n  TRL    {found}\n  golden {expected}")
    print(f"{compared} chats of {len(golden['families'])} families, {differing} differ")
    sys.exit(differing > 0 or compared == 0)


if __name__ == "__main__":
    main()
