#!/usr/bin/env python3
"""Creates the golden values for tests of chats: the tokens that transformers computes for the same messages.

crates/data/tests/golden contains:

    tokenizer.json      a byte-level BPE trained on the messages below, with the special tokens of all families
    chats.json          each chat as a row of a .jsonl, and for each family its templates and, for each chat, `ids` and `trained`, or
                        null if the template raises an exception
    *.parquet           the chats as PyArrow writes them, by codec and page version; and `bomb-*.parquet`, small files that
                        declare large contents

The templates are written for this script, after the structure of five families: Llama 3 (headers, a token that ends turns),
ChatML as of Qwen, Mistral (instructions in brackets, no role for the system), Gemma (another name for the assistant, roles
must alternate), and Phi 3 (a token after the whole chat, which TRL also trains on if the last message is an answer). Each exists
without and with `{% generation %}`. The masks are those of `apply_chat_template(…, return_assistant_tokens_mask=True)` for the
template with it, which TRL's `assistant_only_loss` trains on; Plimsoll must give the same for both templates.

usage:  python scripts/golden_chat.py [OUT_DIR]
needs:  pip install transformers jinja2 pyarrow
The committed values were made with transformers 5.23.0, tokenizers 0.23.3 and pyarrow 26.0.1.
"""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

OUT = Path(__file__).resolve().parents[1] / "crates/data/tests/golden"

MARKS = ("{%- generation -%}", "{%- endgeneration -%}")
# Generated parts are between » and «.
TEMPLATES = {
    "llama3": """{{- bos_token }}
{%- for message in messages %}
    {%- set head = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' %}
    {%- if message.role == 'assistant' %}
        {{- head }}»{{- message['content'] | trim + '<|eot_id|>' }}«
    {%- else %}
        {{- head + message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "chatml": """{%- if messages[0].role != 'system' %}
    {{- '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<result>' + message.content + '</result><|im_end|>\\n' }}
        {%- continue %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}»
        {%- if message.content %}{{- message.content }}{%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '<call>' + (call.function | tojson) + '</call>' }}
        {%- endfor %}
        {{- '<|im_end|>' }}«
    {%- else %}
        {{- message.content + '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "mistral": """{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'].strip() + '\\n\\n' %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set system = '' %}
    {%- set turns = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in turns %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + (system if loop.first else '') + message['content'].strip() + ' [/INST]' }}
    {%- else %}»
        {{- ' ' + message['content'].strip() + eos_token }}«
    {%- endif %}
{%- endfor %}
""",
    "gemma": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {{- raise_exception('no system role') }}
{%- endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<start_of_turn>' + role + '\\n' }}
    {%- if role == 'model' %}»
        {{- message['content'] | trim + '<end_of_turn>' }}«
    {%- else %}
        {{- message['content'] | trim + '<end_of_turn>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<start_of_turn>model\\n' }}
{%- endif %}
""",
    "phi3": """{% for message in messages %}
{% if message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + '<|end|>\\n' }}
{%- elif message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + '<|end|>\\n' }}
{%- elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n' }}»{{- message['content'] + '<|end|>' + ('\\n' if loop.last else '') }}«{{- '' if loop.last else '\\n' }}
{%- endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}
{%- elif messages[-1]['role'] == 'assistant' %}»{{- eos_token }}«
{%- else %}{{ eos_token }}{% endif %}
""",
}

SPECIAL = [
    "<s>", "</s>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>", "[INST]",
    "[/INST]", "<start_of_turn>", "<end_of_turn>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>",
]


def turns(*texts: str, system: str | None = None) -> list[dict]:
    first = [{"role": "system", "content": system}] if system is not None else []
    return first + [{"role": ["user", "assistant"][at % 2], "content": text} for at, text in enumerate(texts)]


CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": [2.5, None, True], "é": "<&>"}}}
CHATS = [
    turns("What is 2 + 2?", "4"),
    turns("  Who wrote it?\n", " Nobody knows.  ", "And when?", "In 1889.\n\nPerhaps.", system="You are terse."),
    turns("Say é, 漢字 and 🙂.", "é, 漢字 and 🙂"),
    turns("Say assistant", "assistant", "Again: <|im_end|>", "user\nassistant", "Thanks", ""),
    turns("Only a question?"),
    [
        {"role": "user", "content": "Add 2 and 2.5"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "4.5"},
        {"role": "assistant", "content": "It is 4.5."},
    ],
    [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}],
]


def trained_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = [message["content"] for chat in CHATS for message in chat]
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts + list(TEMPLATES.values()), trainer)
    return tokenizer


def masked(tokenizer: PreTrainedTokenizerFast, chat: list[dict], template: str) -> dict | None:
    """The tokens and mask of transformers for a chat, with TRL's arguments."""
    try:
        made = tokenizer.apply_chat_template(
            chat, chat_template=template, return_dict=True, return_assistant_tokens_mask=True
        )
    except Exception as error:  # jinja2's, for what a template raises
        assert "alternate" in str(error) or "system" in str(error) or "content" in str(error), error
        return None
    return {"ids": list(made["input_ids"]), "trained": "".join(str(int(bit)) for bit in made["assistant_masks"])}


def families(tokenizer: PreTrainedTokenizerFast) -> dict:
    made = {}
    for name, template in TEMPLATES.items():
        marked = template.replace("»", MARKS[0]).replace("«", MARKS[1])
        # A marker trims the white space next to it; so must its replacement.
        plain = template.replace("»", "{%- if true -%}").replace("«", "{%- endif -%}")
        chats = [masked(tokenizer, chat, marked) for chat in CHATS]
        for chat, of_chat in zip(CHATS, chats):
            if of_chat is not None:
                ids = tokenizer.apply_chat_template(chat, chat_template=plain, return_dict=True)["input_ids"]
                assert list(ids) == of_chat["ids"], (name, chat)
        made[name] = {"marked": marked, "plain": plain, "chats": chats}
    return made


def tables(out: Path) -> None:
    """Writes chats without calls as flat columns (their objects differ), and the others as rows of a nested column."""
    rows = [{"id": at, "messages": chat} for at, chat in enumerate(CHATS) if "tool_calls" not in str(chat)]
    table = pa.Table.from_pylist(rows)
    for codec in ("snappy", "gzip", "zstd", "none"):
        version = "2.0" if codec in ("gzip", "none") else "1.0"
        path = out / f"chats-{codec}.parquet"
        pq.write_table(table, path, compression=codec, data_page_version=version, row_group_size=2)
    # One text of 300 MB, and one row with 60 million messages.
    long = pa.table({"text": pa.array(["a" * 300_000_000], pa.large_string())})
    pq.write_table(long, out / "bomb-page.parquet", compression="zstd", use_dictionary=False, write_statistics=False)
    many = 60_000_000
    roles = pa.chunked_array([pa.repeat(pa.scalar("user"), many)]).combine_chunks()
    lists = pa.ListArray.from_arrays(pa.array([0, many], pa.int32()), pa.StructArray.from_arrays([roles], ["role"]))
    pq.write_table(pa.table({"messages": lists}), out / "bomb-row.parquet", compression="zstd", write_statistics=False)


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    out.mkdir(parents=True, exist_ok=True)
    inner = trained_tokenizer()
    inner.save(str(out / "tokenizer.json"), pretty=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
    rows = [json.dumps({"messages": chat}, ensure_ascii=False) for chat in CHATS]
    golden = {"rows": rows, "families": families(tokenizer)}
    (out / "chats.json").write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n")
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    (out / "tokenizer_config.json").write_text(json.dumps(config) + "\n")
    tables(out)
    for path in sorted(out.iterdir()):
        print(path.name, path.stat().st_size)


if __name__ == "__main__":
    main()
