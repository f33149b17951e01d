"""The benchmark's files, and where users get them."""

from agentrl.envs.tasks.datasets import Dataset

AGENTBENCH = Dataset(
    task="os",
    name="agentbench",
    paths=("os/os_train.jsonl", "os/os_dev.jsonl"),
    source="https://github.com/THUDM/AgentBench (data/os_interaction): one JSON item a line, "
    "its scripts under os/scripts",
    licence="Apache-2.0",
    items="1,000 train, 26 dev",
)
DATASETS: tuple[Dataset, ...] = (AGENTBENCH,)
