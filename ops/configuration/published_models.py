"""Architectures of published models: their memory is planned without a network."""

from collections.abc import Iterator, Mapping
from typing import Any

_KEYS = (
    "model_type",
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
    "num_experts",
    "num_experts_per_tok",
)
# What config.json of each repository of the Hub says, in the order of `_KEYS`. With experts, the
# intermediate size is that of one of them.
_TABLE = """
Qwen/Qwen2.5-0.5B-Instruct                qwen2       24  896  4864 14  2  64 151936 yes
Qwen/Qwen2.5-1.5B-Instruct                qwen2       28 1536  8960 12  2 128 151936 yes
Qwen/Qwen2.5-3B-Instruct                  qwen2       36 2048 11008 16  2 128 151936 yes
Qwen/Qwen2.5-7B-Instruct                  qwen2       28 3584 18944 28  4 128 152064  no
Qwen/Qwen2.5-14B-Instruct                 qwen2       48 5120 13824 40  8 128 152064  no
Qwen/Qwen2.5-32B-Instruct                 qwen2       64 5120 27648 40  8 128 152064  no
Qwen/Qwen2.5-72B-Instruct                 qwen2       80 8192 29568 64  8 128 152064  no
Qwen/Qwen3-0.6B                           qwen3       28 1024  3072 16  8 128 151936 yes
Qwen/Qwen3-1.7B                           qwen3       28 2048  6144 16  8 128 151936 yes
Qwen/Qwen3-4B                             qwen3       36 2560  9728 32  8 128 151936 yes
Qwen/Qwen3-8B                             qwen3       36 4096 12288 32  8 128 151936  no
Qwen/Qwen3-14B                            qwen3       40 5120 17408 40  8 128 151936  no
Qwen/Qwen3-32B                            qwen3       64 5120 25600 64  8 128 151936  no
Qwen/Qwen3-30B-A3B                        qwen3_moe   48 2048   768 32  4 128 151936  no 128 8
Qwen/Qwen3-235B-A22B                      qwen3_moe   94 4096  1536 64  4 128 151936  no 128 8
meta-llama/Llama-3.2-1B-Instruct          llama       16 2048  8192 32  8  64 128256 yes
meta-llama/Llama-3.2-3B-Instruct          llama       28 3072  8192 24  8 128 128256 yes
meta-llama/Llama-3.1-8B-Instruct          llama       32 4096 14336 32  8 128 128256  no
meta-llama/Llama-3.3-70B-Instruct         llama       80 8192 28672 64  8 128 128256  no
mistralai/Mistral-7B-Instruct-v0.3        mistral     32 4096 14336 32  8 128  32768  no
mistralai/Mistral-Nemo-Instruct-2407      mistral     40 5120 14336 32  8 128 131072  no
mistralai/Mistral-Small-24B-Instruct-2501 mistral     40 5120 32768 32  8 128 131072  no
google/gemma-3-1b-it                      gemma3_text 26 1152  6912  4  1 256 262144 yes
google/gemma-3-4b-it                      gemma3_text 34 2560 10240  8  4 256 262208 yes
google/gemma-3-12b-it                     gemma3_text 48 3840 15360 16  8 256 262208 yes
google/gemma-3-27b-it                     gemma3_text 62 5376 21504 32 16 128 262208 yes
"""


def _rows() -> Iterator[tuple[str, dict[str, Any]]]:
    for line in _TABLE.strip().splitlines():
        repository, kind, *sizes = line.split()
        values = [kind, *(size == "yes" if size in ("yes", "no") else int(size) for size in sizes)]
        yield repository, dict(zip(_KEYS, values, strict=False))


PUBLISHED: Mapping[str, Mapping[str, Any]] = dict(_rows())
"""The values of config.json by repository of the Hub."""
