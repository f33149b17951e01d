"""Runs where TRL is installed: answers a batch of arrays with TRL's own advantages and losses.

python trl_losses.py QUESTIONS.npz ANSWERS.npz

Its trainer computes them; only the model's log-probabilities are put in, by a method that it asks.
What it writes goes to the current folder.
"""

import sys

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config
from trl import GRPOConfig, GRPOTrainer

LOSSES = {  # as the test has them
    "clipped": {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28, "delta": 3.0},
    "cispo": {"loss_type": "cispo", "epsilon_high": 2.5},
    "gspo": {
        "loss_type": "dapo",
        "epsilon": 0.1,
        "epsilon_high": 0.15,
        "importance_sampling_level": "sequence",
    },
    "anchored": {
        "loss_type": "dapo",
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "beta": 0.3,
        "use_bias_correction_kl": False,
    },
}


class Told(GRPOTrainer):
    """`said`: [B, T] log-probabilities that take the place of the model's."""

    said: torch.Tensor

    def _get_per_token_logps_and_entropies(self, *_args, **_options):
        return self.said, torch.zeros_like(self.said), None


def main(questions: str, answers: str) -> None:
    """[B, T] arrays current, old, reference, advantages, mask; [B] rewards in groups of `group`."""
    given = {
        name: torch.from_numpy(value)
        for name, value in np.load(questions, allow_pickle=False).items()
    }
    rows, width = given["current"].shape
    said = {
        f"{kind}_advantages": _advantages(given["rewards"], int(given["group"]), scale)
        for kind, scale in (("centred", "none"), ("std", "group"))
    }
    for name, options in LOSSES.items():
        trainer = _trainer(rows, int(given["group"]), **options)
        trainer.said = given["current"].clone().requires_grad_()
        trainer.current_gradient_accumulation_steps = 1
        trainer.model.train()
        loss = trainer._compute_loss(
            trainer.model,
            {
                "prompt_ids": torch.zeros(rows, 1, dtype=torch.long),
                "prompt_mask": torch.ones(rows, 1, dtype=torch.long),
                "completion_ids": torch.zeros(rows, width, dtype=torch.long),
                "completion_mask": torch.ones(rows, width, dtype=torch.long),
                "tool_mask": given["mask"].long(),
                "advantages": given["advantages"],
                "old_per_token_logps": given["old"],
                "ref_per_token_logps": given["reference"],
                "num_items_in_batch": given["mask"].sum(),
            },
        )
        loss.backward()
        said |= {f"{name}_loss": loss.detach(), f"{name}_gradient": trainer.said.grad}
    np.savez(answers, **{name: np.asarray(value) for name, value in said.items()})


def _advantages(rewards: torch.Tensor, group: int, scale: str) -> torch.Tensor:
    """[B] as the trainer makes them of rewards; its generation is a function of ours."""
    count = len(rewards)

    def generated(prompts, _trainer):
        one = [[1] for _ in prompts]
        return {"prompt_ids": one, "completion_ids": one, "logprobs": [[0.0]] * len(prompts)}

    trainer = _trainer(count, group, rewards, generated, scale_rewards=scale)
    trainer.model.train()
    made = trainer._generate_and_score_completions([{"prompt": "a"} for _ in range(count)])
    return made["advantages"]


def _trainer(rows, group, rewards=None, generated=None, **options) -> Told:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0, "a": 1, "<eos>": 2}, "<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )
    shape = Qwen3Config(
        vocab_size=3,
        hidden_size=4,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=4,
    )
    AutoModelForCausalLM.from_config(shape).save_pretrained("model")
    config = GRPOConfig(
        output_dir="trl",
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=rows,
        num_generations=group,
        gradient_checkpointing=False,
        report_to=[],
        **options,
    )
    values = [0.0] * rows if rewards is None else rewards.tolist()
    return Told(
        model=AutoModelForCausalLM.from_pretrained("model"),
        reward_funcs=lambda completions, **_: values[: len(completions)],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * rows}),
        processing_class=tokenizer,
        rollout_func=generated,
    )


main(*sys.argv[1:])
