"""The benchmark's files, and where users get them."""

from agentrl.envs.tasks.datasets import Dataset

TREE = "agentbench/os_interaction"  # data/os_interaction of the repository, as it is
AGENTBENCH = Dataset(
    task="os",
    name="agentbench",
    paths=("os/os_train.jsonl", "os/os_dev.jsonl"),
    source="https://github.com/THUDM/AgentBench (data/os_interaction): one JSON item a line, "
    "its scripts under os/scripts",
    licence="Apache-2.0",
    items="1,000 train, 26 dev",
    shipped={
        "os/os_train.jsonl": f"{TREE}/train_0317/training.json",
        "os/os_dev.jsonl": f"{TREE}/data/dev.json",
    },
)
STANDARD = Dataset(
    task="os",
    name="agentbench-standard",
    paths=("os/os_standard.jsonl",),
    source="as agentbench: the folders data/1 to data/7 as they are, with scripts/1 to scripts/7, "
    f"under {TREE}",
    licence="Apache-2.0",
    items="144 standard, of agentbench",
    origin=False,
    shipped={"os/os_standard.jsonl": f"{TREE}/data/1"},
)
DATASETS: tuple[Dataset, ...] = (AGENTBENCH, STANDARD)
