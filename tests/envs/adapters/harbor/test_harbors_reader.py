"""Harbor's own reader as the judge of ours."""

import json
import subprocess
from pathlib import Path

from harbor_tasks import Written

from agentrl.core.errors import AgentRLError
from agentrl.envs.adapters.harbor import folder, settings

JUDGE = """
import json, sys, typing, warnings

typing.override = lambda method: method  # of Python 3.12, which Harbor asks for

from harbor.models.task.config import TaskConfig
from harbor.models.task.task import Task

warnings.simplefilter("ignore")

def accepts(text):
    try:
        TaskConfig.model_validate_toml(text)
    except ValueError:
        return False
    return True

asked = json.load(sys.stdin)
tasks = {path: Task.is_valid_dir(path) for path in asked["tasks"]}
read = {path: Task(path).instruction for path, valid in tasks.items() if valid}
print(json.dumps([[accepts(text) for text in asked["texts"]], tasks, read]))
"""


TEXTS = [
    "",
    "version = '1.0'",
    "version = 1.0",
    "schema_version = 2",
    "unknown = 3\n[other]\nx = 1",
    "[metadata]\ndifficulty = 'easy'\ntags = ['a']",
    "metadata = 3",
    "[task]\nname = 'org/name'\nversion = ''",
    "[task]\nname = 'org/name'\nauthors = [{ name = 'A' }]",
    "[task]\nname = 'org/name'\nauthors = [{ email = 'a@b.c' }]",
    "[task]\nname = 'name'",
    "[task]\nname = 'org/na..me'",
    "[agent]\ntimeout_sec = 900",
    "[agent]\ntimeout_sec = '900'",
    "[agent]\ntimeout_sec = 'long'",
    "[agent]\nuser = 1000",
    "[agent]\nuser = 1.5",
    "[agent]\nnetwork_mode = 'none'",
    "[agent]\nallowed_hosts = []",
    "[agent]\nnetwork_mode = 'public'\nallowed_hosts = ['a.org']",
    "[verifier]\ntimeout_sec = 5\n[verifier.env]\nA = 'b'",
    "[verifier.env]\nA = 1",
    "[verifier]\nenvironment_mode = 'both'",
    "[verifier]\nenvironment_mode = 'shared'\n[verifier.environment]\ncpus = 1",
    "[verifier]\nenvironment_mode = 'separate'",
    "[environment]\nmemory = '2G'\nstorage = '512m'",
    "[environment]\nmemory = '2 G'",
    "[environment]\nmemory = '2T'",
    "[environment]\nmemory = '2G'\nmemory_mb = 2048",
    "[environment]\nmemory = '2G'\nmemory_mb = 1024",
    "[environment]\nmemory = 2048",
    "[environment]\nmemory_mb = 2048.5",
    "[environment]\nmemory_mb = '2048'",
    "[environment]\ncpus = inf",
    "[environment]\ncpus = 0.5\ngpus = 0",
    "[environment]\ncpus = 'two'",
    "[environment]\nos = 'Linux'",
    "[environment]\nos = 'beos'",
    "[environment]\nallow_internet = false",
    "[environment]\nallow_internet = 'perhaps'",
    "[environment]\nallowed_hosts = ['a.org']",
    "[environment]\nallowed_hosts = []",
    "[environment]\nnetwork_mode = 'no-network'",
    "[environment]\nenv = { A = 'b' }\nworkdir = '/app'\nskills_dir = '/s'",
    "[environment]\nenv = { A = 3 }",
    "[environment]\ndocker_image = 3",
    "[environment]\nbuild_timeout_sec = 60",
    "[solution.env]\nA = 'b'",
    "artifacts = ['/app/x', { source = '/y', destination = 'z/y' }]",
    "artifacts = ['../x']",
    "artifacts = [{ source = '/y', destination = '/z' }]",
    "artifacts = [{ source = '/y', destination = 'a/../z' }]",
    "artifacts = [{ source = '/y', destination = 'manifest.json' }]",
    "multi_step_reward_strategy = 'median'",
    "environment = 3",
    "= 3",
]


FOLDERS: list[dict[str, str | None]] = [
    {},
    {"task.toml": None},
    {"instruction.md": None},
    {"tests/test.sh": None},
    {"solution/solve.sh": None, "solution/write.sh": None},
    {"instruction.md": "# canary x\n<!-- Canary y -->\n\n\nDo it.\n\n# canary z\n"},
    {"task.toml": "[environment]\ndocker_image = 'x:1'"},
]


def test_harbors_own_reader_accepts_and_refuses_the_same(
    written: Written, harbor_python: Path
) -> None:
    for place, changed in enumerate(FOLDERS):
        root = written(str(place), **changed)
    paths = [str(root / str(place)) for place in range(len(FOLDERS))]
    judged = subprocess.run(
        [harbor_python, "-c", JUDGE],
        input=json.dumps({"texts": TEXTS, "tasks": paths}),
        capture_output=True,
        text=True,
        check=True,
    )
    accepted, valid, read = json.loads(judged.stdout)

    def ours(text: str) -> bool:
        try:
            settings.read(text)
        except settings.InvalidSettings:
            return False
        return True

    differ = [text for text, theirs in zip(TEXTS, accepted, strict=True) if ours(text) != theirs]
    assert differ == []
    assert {True, False} == set(accepted)
    loaded: dict[str, str] = {}
    for path in paths:
        try:
            loaded[path] = folder.load(path, Path(path), build=False).instruction
        except AgentRLError:
            assert not valid[path], path
    assert loaded == read
