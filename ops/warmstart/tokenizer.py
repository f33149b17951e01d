"""A small tokenizer and chat template for policies of about a million parameters.

So small a model can copy names only if a word has the same tokens everywhere. So whitespace,
digits, words and punctuation never share a token, and the opening of a call is one token.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

PAD, END = "<|pad|>", "<|end|>"
SPECIALS = (PAD, END, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
OPENINGS = ('take_action{"action":"', 'execute_sql{"query":"', 'commit_final_answer{"answers":["')
CLOSINGS = ('"}', '"]}', '","')

TEMPLATE = """\
{%- for message in messages -%}
{{ '<|' ~ message.role ~ '|>' ~ (message.content or '') }}
{%- for call in message.tool_calls or [] -%}
{{ call.function.name ~ call.function.arguments | tojson(separators=(',', ':')) }}
{%- endfor -%}
{%- if message.role == 'assistant' %}{{ '<|end|>' }}{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif -%}
"""


def train(texts: Iterable[str], size: int, atoms: Sequence[str] = OPENINGS + CLOSINGS) -> Tokenizer:
    """Train a byte-level BPE with at most `size` tokens. `atoms`: texts that are one token each."""
    tokenizer = Tokenizer(models.BPE())
    pieces = pre_tokenizers.Split(Regex(r"\s|\p{N}|[\p{L}_]+|[^\s\p{N}\p{L}_]+"), "isolated")
    bytelevel = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, bytelevel])
    tokenizer.decoder = decoders.ByteLevel()
    added = [AddedToken(atom, normalized=False, special=False) for atom in atoms]
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(added),
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(added)
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the files that transformers and `agentrl.workers.conversation.template` read."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
    }
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True) + "\n", "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
