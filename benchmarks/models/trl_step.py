"""Runs where TRL is installed: one GRPO step of TRL's own trainer at each line it reads.

python trl_step.py MODEL BATCH.npz [shipped | plain | sampled]

As TRL ships, with the gradient checkpointing that is its default; `plain`: without. `sampled`: as
it ships where vLLM has sampled, whose log-probabilities it corrects by those of its own that it
first computes; here both are the same.

Generation and rewards are left out: the trajectories are handed over as its rollout function would,
in batches of 8, and its `training_step` and the optimizer's step are what is timed.
"""

import sys
import time

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing

AT_ONCE = 8


def main(model_path: str, batch_path: str, how: str = "shipped") -> None:
    torch.set_num_threads(1)
    batch = dict(np.load(batch_path, allow_pickle=False))
    trainer, parts = _trainer(model_path, len(batch["lengths"]), how), _parts(batch)
    if trainer.args.gradient_checkpointing:  # what `Trainer.train` does before its first step
        kwargs = trainer.args.gradient_checkpointing_kwargs
        trainer.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kwargs)
    trainer.create_optimizer()
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = len(parts)
    trainer.use_vllm = how == "sampled"
    for _ in sys.stdin:
        began = time.process_time()
        if trainer.use_vllm:
            parts = [part | _corrected(trainer, part) for part in parts]
        for part in parts:
            trainer.training_step(trainer.model, part, None)
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad(set_to_none=True)
        print("seconds", time.process_time() - began, flush=True)


class Handed(GRPOTrainer):
    """Takes the batches as they are: TRL would generate them here."""

    def _prepare_inputs(self, inputs):
        return inputs


def _trainer(model_path: str, rows: int, how: str) -> GRPOTrainer:
    words = {"<pad>": 0, "<eos>": 1}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, "<pad>")),
        pad_token="<pad>",  # noqa: S106
        eos_token="<eos>",  # noqa: S106
    )
    config = GRPOConfig(
        output_dir="trl",
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=AT_ONCE,
        gradient_accumulation_steps=rows // AT_ONCE,
        num_generations=AT_ONCE,
        report_to=[],
        **({"gradient_checkpointing": False} if how == "plain" else {}),
    )
    return Handed(
        model=AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * rows}),
        processing_class=tokenizer,
    )


def _corrected(trainer: GRPOTrainer, part: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What TRL adds to a batch before its first step."""
    tokens = torch.cat([part["prompt_ids"], part["completion_ids"]], 1)
    mask = torch.cat([part["prompt_mask"], part["completion_mask"]], 1)
    kwargs = trainer.args.gradient_checkpointing_kwargs
    with torch.no_grad(), disable_gradient_checkpointing(trainer.model, kwargs):
        old, _, _ = trainer._get_per_token_logps_and_entropies(  # noqa: SLF001
            trainer.model, tokens, mask, part["completion_ids"].shape[1], batch_size=AT_ONCE
        )
    ratio = torch.exp((old - old).sum(-1, keepdim=True))
    return {
        "old_per_token_logps": old,
        "sampling_per_token_logps": old,
        "importance_sampling_ratio": ratio,
    }


def _parts(batch: dict[str, np.ndarray]) -> list[dict[str, torch.Tensor]]:
    """Padded on the right to the longest of all, as TRL pads the batch it generated."""
    lengths, prompt = batch["lengths"], int(batch["prompt"])
    width = int(lengths.max())
    tokens, mask, real = (np.zeros((len(lengths), width), np.int64) for _ in range(3))
    for row, end in enumerate(np.cumsum(lengths)):
        length = int(lengths[row])
        tokens[row, :length] = batch["tokens"][end - length : end]
        mask[row, :length] = batch["mask"][end - length : end]
        real[row, :length] = 1
    count = torch.tensor(int(mask[:, prompt:].sum()))
    return [
        {
            "prompt_ids": torch.from_numpy(tokens[part, :prompt]),
            "prompt_mask": torch.from_numpy(real[part, :prompt]),
            "completion_ids": torch.from_numpy(tokens[part, prompt:]),
            "completion_mask": torch.from_numpy(real[part, prompt:]),
            "tool_mask": torch.from_numpy(mask[part, prompt:]),
            "advantages": torch.from_numpy(batch["advantages"][part]),
            "num_items_in_batch": count,
        }
        for part in (slice(n, n + AT_ONCE) for n in range(0, len(lengths), AT_ONCE))
    ]


main(*sys.argv[1:])
