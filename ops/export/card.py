"""The dataset card: README.md with the YAML header that the Hugging Face Hub reads."""

from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl.ops.export.episodes import ExportCounts

SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"))
CARD = """---
pretty_name: Episodes of {run}
tags:
- agentrl
- reinforcement-learning
- agents
- tool-use
size_categories:
- {size}
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*.parquet
---

# Episodes of {run}

{total} episodes that an LLM agent played during reinforcement learning with AgentRL{players}. One
row is one episode.

| task | episodes | mean reward |
|---|---|---|
{tasks}

## Columns

| column | |
|---|---|
| `messages` | role, content and, of a tool, name; null where the tokens do not give them |
| `token_ids` | the tokens exactly as they were sent and sampled |
| `loss_mask` | 1: sampled by a policy that was trained |
| `logprobs` | natural log-probability of a token when it was sampled; 0 where the mask is 0 |
| `policy_index` | which of `policies` sampled a token; 0 outside the steps |
| `policies` | checkpoint, version, track and server of each policy that acted |
| `steps` | the span (`start`, `end`) of each policy call, its policy, temperature and reward |
| `steps.judge_score` | the judge's score of the turn that a policy call ends, before weights |
| `reward`, `score` | what was trained on, and the benchmark's own figure |
| `advantage`, `trained_version` | of the update that trained on it; null: none, or rolled back |
| `status` | how the episode ended |
| `group_id`, `item_id`, `task` | episodes of one group are attempts at one item |
| `metrics` | the environment's own, as JSON |

```python
from datasets import load_dataset

episodes = load_dataset("parquet", data_files="data/train-*.parquet", split="train")
```
"""


def write_card(path: Path, counts: "ExportCounts") -> None:
    """Write the card of an export."""
    size = next((name for most, name in SIZES if counts.total < most), "n>1M")
    tasks = "\n".join(
        f"| {task} | {number} | {counts.rewards[task] / number:.3f} |"
        for task, number in sorted(counts.episodes.items())
    )
    players = _describe_players(counts.versions)
    card = CARD.format(run=counts.run, size=size, total=counts.total, players=players, tasks=tasks)
    path.write_text(card)


def _describe_players(versions: Set[int]) -> str:
    """Say which policies played; an external model's version is negative."""
    own = sorted(version for version in versions if version >= 0)
    told = " to ".join(str(each) for each in dict.fromkeys((own[0], own[-1]))) if own else ""
    players = [f"by policies of version {told}"] if own else []
    if own != sorted(versions):
        players.append("and an external model" if own else "by an external model")
    return "".join(f", {each}" for each in players)
