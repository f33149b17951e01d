"""ALFWorld's games and AgentBench's list of them: what is read, and where users get it."""

from agentrl.envs.tasks.datasets import Dataset

LIST = Dataset(
    "alfworld",
    "agentbench",
    ("alfworld/agentbench_train_valid.json",),
    "https://github.com/THUDM/AgentBench, the training list of its task alfworld: {type: [paths]}",
    "Apache-2.0",
    "3,150 paths of games",
    shipped={"alfworld/agentbench_train_valid.json": "agentbench/alfworld/train_valid.json"},
)
STANDARD = Dataset(
    "alfworld",
    "agentbench-standard",
    ("alfworld/agentbench_new_std.json",),
    "https://github.com/THUDM/AgentBench, the test list of its task alfworld, data/alfworld/"
    "new_std.json; its games are those of valid_unseen",
    "Apache-2.0",
    "109 paths of games",
    origin=False,
    shipped={"alfworld/agentbench_new_std.json": "agentbench/alfworld/new_std.json"},
)
GAMES = Dataset(
    "alfworld",
    "games",
    ("alfworld/json_2.1.1",),
    "https://github.com/alfworld/alfworld: `alfworld-download` fetches the release; its folder "
    "json_2.1.1 with game.tw-pddl files",
    "MIT",
    "the release's games: train, valid_train, valid_seen, valid_unseen",
    origin=False,
    instead="games-archive",
)
ARCHIVE = Dataset(
    "alfworld",
    "games-archive",
    ("alfworld/games.tar.xz",),
    "the same folder json_2.1.1 as a tar archive, instead of it",
    "MIT",
    "the release's games, packed",
    origin=False,
    instead="games",
)
DATASETS = (LIST, STANDARD, GAMES, ARCHIVE)
