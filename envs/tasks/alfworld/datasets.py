"""ALFWorld's games and AgentBench's list of them: what is read, and where users get it."""

from agentrl.envs.tasks.datasets import Dataset

LIST = Dataset(
    "alfworld",
    "agentbench",
    ("alfworld/agentbench_train_valid.json",),
    "https://github.com/THUDM/AgentBench, the training list of its task alfworld: {type: [paths]}",
    "Apache-2.0",
    "3,150 paths of games",
)
GAMES = Dataset(
    "alfworld",
    "games",
    ("alfworld/json_2.1.1",),
    "https://github.com/alfworld/alfworld: `alfworld-download` fetches the release; its folder "
    "json_2.1.1 with game.tw-pddl files",
    "MIT",
    "the release's games: train, valid_train, valid_seen",
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
DATASETS = (LIST, GAMES, ARCHIVE)
