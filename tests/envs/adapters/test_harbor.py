"""Task folders in Harbor's format, in containers of their own images; Harbor's reader as judge."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from adapter_pages import task_of_page

from agentrl.core.config.sections import Envs, Task
from agentrl.core.errors import AgentRLError, ConfigError, EnvironmentFailure, ItemError
from agentrl.core.types import Status
from agentrl.envs.adapters.harbor import folder, settings
from agentrl.envs.adapters.harbor.environment import HarborEnvironment
from agentrl.envs.adapters.harbor.source import HarborSource
from agentrl.envs.contract import Outcome, ToolCall
from agentrl.envs.play import play
from agentrl.envs.sandbox.docker_engine import Engine
from agentrl.envs.sandbox.sandbox import Sandboxes, make_sandboxes
from agentrl.envs.server.client import RemoteSource
from agentrl.envs.server.server import EnvServer
from agentrl.envs.tasks.check import Settings
from agentrl.envs.tasks.figures import all_figures

COUNT = {
    "instruction.md": "<!-- harbor-canary GUID 1 -->\n\nCount the words into /app/answer.txt.\n",
    "task.toml": "[environment]\ncpus = 1\nmemory = '256M'\n",
    "environment/words.txt": "banana\nplum\nmango\n",
    "tests/test.sh": "#!/bin/bash\n"
    '[ "$(cat answer.txt)" = "$(python3 /tests/expected.py)" ]\n'
    "echo $((1 - $?)) > /logs/verifier/reward.txt\n",
    "tests/expected.py": "print(len(open('/app/words.txt').readlines()))\n",
    "solution/solve.sh": "#!/bin/bash\nset -e\nwc -l < words.txt | bash /solution/write.sh\n",
    "solution/write.sh": "cat > answer.txt",
}
"""Files of a task; the Dockerfile is added by the fixture."""

Written = Callable[..., Path]
Opened = Callable[..., HarborSource]


def scripted(script: str) -> dict[str, str]:
    return {"tests/test.sh": f"#!/bin/bash\n{script}\n"}


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Write a task's folder, but for files that are None."""

    def write(name: str = "count", image: str = "base", **changed: str | None) -> Path:
        dockerfile = f"FROM {image}\nWORKDIR /app\nLABEL test={tmp_path.name}\nCOPY words.txt ."
        found = COUNT | {"environment/Dockerfile": dockerfile} | changed
        for path, text in found.items():
            if text is not None:
                place = tmp_path / "tasks" / name / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text)
        return tmp_path / "tasks"

    return write


@pytest.fixture
def opened(
    written: Written, engine: Engine, sandbox_image: str, docker_client: docker.DockerClient
) -> Iterator[Opened]:
    """A source of one written task, with its sandboxes. `options`: of the source."""
    pools: list[Sandboxes] = []
    images: set[str] = set()

    def open_one(options: Any = None, name: str = "count", **changed: str | None) -> HarborSource:
        root = written(name, sandbox_image, **changed)
        source = HarborSource("bench", str(root), options or {})
        pools.extend(make_sandboxes(source, engine, ""))
        built = (each for each in source.specs("") if each.build and each.build.folder)
        images.update(each.image for each in built)
        return source

    yield open_one
    for pool in pools:
        pool.close()
    for image in images:
        if docker_client.images.list(image):
            docker_client.api.remove_image(image, force=True)


def started(source: HarborSource) -> HarborEnvironment:
    environment = source.make(source.items("train")[0])
    environment.start()
    assert isinstance(environment, HarborEnvironment)
    return environment


def ended(source: HarborSource, *scripts: str) -> Outcome:
    """Play scripts, then finish unless the episode is over."""
    environment = started(source)
    try:
        for script in scripts:
            outcome = environment.call([bash(script)])
            if outcome.done:
                return outcome
        return environment.call([FINISH])
    finally:
        environment.close()


def bash(script: str) -> ToolCall:
    return ToolCall("bash_action", {"script": script})


FINISH = ToolCall("finish_action", {"thought": "done"})


def said(environment: HarborEnvironment, script: str) -> str:
    (message,) = environment.call([bash(script)]).messages
    return message.content.removeprefix("The output of the OS:\n\n")


def test_the_configuration_of_the_page_plays_its_episodes(
    written: Written, opened: Opened, sandbox_image: str
) -> None:
    page = task_of_page("harbor")
    assert (page.source, page.eval_split) == ("harbor:tasks", "test")
    written("test/other", sandbox_image)
    source = opened(page.options, name="train/count")
    assert source.splits == ("train", "test")
    for split in source.splits:
        (item,) = source.items(split)
        assert play(source, item, source.expert(item, seed=0)).reward == 1.0


def test_the_solution_is_rewarded_and_the_image_built_once(
    opened: Opened, docker_client: docker.DockerClient
) -> None:
    source = opened()
    (item,) = source.items("train")
    (spec,) = source.specs("")
    assert not docker_client.images.list(spec.image)
    solved = play(source, item, source.expert(item, seed=0))
    assert (solved.status, solved.reward, solved.score) == (Status.COMPLETED, 1.0, 1.0)
    (image,) = docker_client.images.list(spec.image)
    assert play(source, item, source.expert(item, seed=0, noise=1.0)).reward == 0.0
    assert [each.id for each in docker_client.images.list(spec.image)] == [image.id]
    (other,) = opened(**{"environment/words.txt": "pear\n"}).specs("")
    assert other.image != spec.image
    (same,) = opened(**{"instruction.md": "Count!"}).specs("")
    assert same.image == spec.image


def test_the_agent_works_in_the_images_folder_with_its_variables_and_nothing_of_ours(
    opened: Opened, sandbox_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OURS", "secret")
    monkeypatch.setenv("TOKEN", "given")
    source = opened(
        {"env": {"TOKEN": "${TOKEN}"}, "shown": 40, "command_timeout_s": 1.0},
        **{
            "environment/Dockerfile": f"FROM {sandbox_image}\nWORKDIR /app\nENV GREETING='a b'\n",
            "task.toml": "[environment.env]\nMADE = '${OURS:-none}'\n"
            "[verifier.env]\nKEY = '${TOKEN}'\n",
        }
        | scripted(
            '[ "$KEY$MADE$GREETING$PWD" = "givennonea b/app" ]\n'
            "echo $((1 - $?)) > /logs/verifier/reward.txt"
        ),
    )
    environment = started(source)
    try:
        assert said(environment, "pwd; echo $GREETING $MADE; id -un") == "/app\na b none\nroot\n"
        assert said(environment, "env | grep -c -e secret -e given") == "0\n"
        assert said(environment, "seq 100").startswith("1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n[… ")
        assert said(environment, "sleep 60").endswith("[the command was stopped after 1 seconds]")
        assert "No executable tool calls" in environment.call("Hm.").messages[0].content
        wrong = [ToolCall("rm", {}), ToolCall("bash_action", {}), ToolCall("x", {}, "no JSON")]
        assert [each.content for each in environment.call(wrong).messages] == [
            "There is no tool rm; call bash_action or finish_action.",
            "Error: bash_action takes exactly script: a string.",
            "Error: no JSON",
        ]
        assert environment.call([FINISH]).reward == 1.0
    finally:
        environment.close()


def test_what_the_agent_left_running_is_there_for_the_tests(opened: Opened) -> None:
    alive = scripted("kill -0 $(cat /app/pid); echo $((1 - $?)) > /logs/verifier/reward.txt")
    assert ended(opened(**alive), "sleep 999 & echo $! > pid").reward == 1.0


def test_an_answer_of_the_agents_own_is_no_reward(opened: Opened) -> None:
    outcome = ended(opened(), "mkdir -p /tests; echo 1 | tee /logs/verifier/reward.json /tests/x")
    assert outcome.reward == 0.0


@pytest.mark.parametrize(
    ("written_as", "options", "reward"),
    [
        ("echo '{\"accuracy\": 0.5}' > reward.json; echo 1 > reward.txt", {}, 0.5),
        ('echo \'{"reward": 0.25, "speed": 2}\' > reward.json', {}, 0.25),
        ('echo \'{"reward": 0.25, "speed": 2}\' > reward.json', {"reward": "speed"}, 2.0),
    ],
)
def test_a_reward_is_a_number_or_one_of_several(
    opened: Opened, written_as: str, options: Any, reward: float
) -> None:
    outcome = ended(opened(options, **scripted(f"cd /logs/verifier; {written_as}")))
    assert (outcome.reward, outcome.score) == (reward, reward)
    assert outcome.metrics.get("speed", 2.0) == 2.0


def test_tests_without_a_reward_are_the_tasks_failure_unless_the_agent_caused_it(
    opened: Opened,
) -> None:
    broken = opened(**scripted("echo no pytest here; exit 3"))
    with pytest.raises(
        EnvironmentFailure, match=r"test\.sh wrote no reward: no pytest here"
    ) as told:
        ended(broken)
    assert "/logs/verifier/reward.txt" in told.value.hint
    outcome = ended(opened(), "mv /usr/bin/bash /usr/bin/mkdir /tmp")
    assert (outcome.done, outcome.reward, outcome.metrics["no_reward"]) == (True, 0.0, 1.0)


@pytest.mark.parametrize("text", ["", "one", "nan", "inf"])
def test_a_reward_that_is_no_number_is_none(opened: Opened, text: str) -> None:
    source = opened(**scripted(f"echo {text} > /logs/verifier/reward.txt"))
    with pytest.raises(EnvironmentFailure, match=f"wrote no reward, but '{text}'"):
        ended(source)


def test_times_of_the_agent_and_of_the_tests_are_the_tasks_own(opened: Opened) -> None:
    source = opened(**{"task.toml": "[agent]\ntimeout_sec = 1\n[verifier]\ntimeout_sec = 1\n"})
    outcome = ended(source, "wc -l < words.txt > answer.txt; sleep 60")
    assert (outcome.status, outcome.reward) == (Status.TASK_LIMIT, 1.0)
    slow = opened(**{"task.toml": "[verifier]\ntimeout_sec = 1\n"} | scripted("sleep 60"))
    assert (ended(slow).reward, ended(slow).metrics["tests_late"]) == (0.0, 1.0)
    capped = opened({"verifier_timeout_s": 1.0}, **scripted("sleep 60"))
    with pytest.raises(EnvironmentFailure, match=r"took over 1 s") as told:
        ended(capped)
    assert "verifier_timeout_s" in told.value.hint


def test_the_last_turn_is_tested(opened: Opened) -> None:
    outcome = ended(opened({"max_turns": 1}), "wc -l < words.txt > answer.txt")
    assert (outcome.status, outcome.reward) == (Status.TASK_LIMIT, 1.0)


NETWORK = scripted("! grep -q eth0 /proc/net/dev; echo $? > /logs/verifier/reward.txt")


@pytest.mark.parametrize(
    ("text", "allowed", "agent", "tests"),
    [
        ("", False, False, False),
        ("", True, True, True),
        ("[environment]\nnetwork_mode = 'no-network'", True, False, False),
        ("[environment]\nallow_internet = false", True, False, False),
        ("[agent]\nnetwork_mode = 'no-network'", True, False, True),
        ("[verifier]\nnetwork_mode = 'no-network'", True, True, False),
    ],
)
def test_a_task_has_a_network_where_it_and_the_configuration_want_it(
    opened: Opened, text: str, allowed: bool, agent: bool, tests: bool
) -> None:
    environment = started(opened({"network": allowed}, **{"task.toml": text} | NETWORK))
    try:
        assert said(environment, "grep -c eth0 /proc/net/dev") == f"{agent:d}\n"
        assert environment.call([FINISH]).reward == float(tests)
    finally:
        environment.close()


def test_a_task_that_asks_for_a_network_is_refused_without_one(written: Written) -> None:
    root = written(**{"task.toml": "[environment]\nnetwork_mode = 'public'"})
    with pytest.raises(
        ItemError, match="asks for a network, and the option network is false"
    ) as told:
        HarborSource("bench", str(root), {}).items("train")
    assert "tasks.bench.options.network = true" in told.value.hint


def test_limits_are_the_tasks_own_up_to_the_configurations(written: Written) -> None:
    text = "[environment]\ncpus = 0.5\nmemory_mb = 4096\nstorage = '1G'\nbuild_timeout_sec = 7"
    source = HarborSource("bench", str(written(**{"task.toml": text})), {"storage_mb": 2048})
    (spec,) = source.specs("")
    limits = spec.limits
    assert (limits.cpus, limits.memory_bytes, limits.disk_bytes) == (0.5, 1 << 30, 1 << 30)
    assert spec.build is not None
    assert spec.build.timeout_s == 7.0
    assert (limits.network, limits.capabilities[:1], spec.reuse) == ("none", ("CHOWN",), 1)


def test_a_build_that_fails_tells_its_last_words(opened: Opened, sandbox_image: str) -> None:
    failing = f"FROM {sandbox_image}\nRUN echo no such word >&2; exit 7\n"
    with pytest.raises(EnvironmentFailure, match=r"count/environment: .*no such word.*code: 7"):
        started(opened(**{"environment/Dockerfile": failing}))
    slow = f"FROM {sandbox_image}\nRUN sleep 30\n"
    changed = {"environment/Dockerfile": slow, "task.toml": "[environment]\nbuild_timeout_sec = 1"}
    with pytest.raises(EnvironmentFailure, match=r"count/environment: .*(timed out|within 1 s)"):
        started(opened(**changed))


def test_an_image_that_a_task_names_has_to_be_there(opened: Opened, sandbox_image: str) -> None:
    named = {"task.toml": "[environment]\ndocker_image = 'no/such:1'\nworkdir = '/tmp'"}
    with pytest.raises(EnvironmentFailure, match="has no image no/such:1") as told:
        started(opened(**named))
    assert told.value.hint == "docker pull no/such:1"
    there = {key: text.replace("no/such:1", sandbox_image) for key, text in named.items()}
    environment = started(opened(**there | {"environment/Dockerfile": None}))
    assert said(environment, "pwd") == "/tmp\n"
    environment.close()
    environment = started(opened({"build": True}, **named | {"task.toml": named["task.toml"]}))
    assert said(environment, "cat /app/words.txt") == COUNT["environment/words.txt"]
    environment.close()


def test_the_check_plays_solutions_in_containers(
    opened: Opened, tmp_path: Path, docker_host: str
) -> None:
    opened()
    task, asked = f"harbor:{tmp_path}/tasks", Settings(docker=docker_host)
    found = {each.name: each for each in all_figures(task, asked)}
    assert (found["items train"].value, found["same items train"].ok) == ("1", True)
    assert found["expert train"].value == "100.0% (1/1), reward 1.00"
    assert found["random train"].value == "0.0% (0/1), reward 0.00"


def test_an_episode_on_an_env_server_leaves_no_container(
    opened: Opened,
    tmp_path: Path,
    docker_host: str,
    monkeypatch: pytest.MonkeyPatch,
    owned: Callable[[], list[str]],
) -> None:
    opened()
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    named = f"harbor:{tmp_path}/tasks"
    server = EnvServer({"bench": Task(source=named)})
    try:
        far = RemoteSource(Envs(url=server.url), "bench", {}, named)
        (item,) = far.items("train")
        environment = far.make(item)
        assert "Count the words" in environment.start().messages[1].content
        expert = far.expert(item, seed=0)
        outcome = environment.call([expert.act(())])  # type: ignore[list-item]
        assert not outcome.done
        assert len(owned()) == 1
        far.make(item).start()  # an episode that nobody ends
    finally:
        server.close()
    assert owned() == []


def test_splits_are_patterns_and_a_folder_may_be_one_task(written: Written) -> None:
    for name in ("train/b", "train/a", "test/c", "test/d"):
        root = written(name)
    options = {"splits": {"train": ["train/*"], "test": ["test/*"]}, "exclude": ["*/d"]}
    source = HarborSource("bench", str(root), options)
    found = {split: [item.item_id for item in source.items(split)] for split in source.splits}
    assert found == {"train": ["train/a", "train/b"], "test": ["test/c"]}
    (item,) = HarborSource("bench", str(root / "train" / "a"), {}).items("train")
    assert item.item_id == "a"
    with pytest.raises(ItemError, match="unknown split tset; did you mean test"):
        source.items("tset")


def test_an_item_is_of_the_same_files_on_every_machine(written: Written) -> None:
    root = written()
    (item,) = HarborSource("bench", str(root), {}).items("train")
    with pytest.raises(ConfigError, match="bench runs in containers"):
        HarborSource("bench", str(root), {}).make(item)
    written(**{"tests/test.sh": "true"})
    with pytest.raises(ItemError, match="has other files than when the item was made"):
        HarborSource("bench", str(root), {}).make(item)


@pytest.mark.parametrize(
    ("changed", "error", "hint"),
    [
        ({"task.toml": None}, "count: it has no task.toml", "add it"),
        ({"instruction.md": None}, "count: it has no instruction.md", "add it"),
        ({"tests/test.sh": None}, "count: it has no tests/test.sh", "add one that writes"),
        ({"environment/Dockerfile": None}, "it has no environment/Dockerfile", "docker_image"),
        ({"task.toml": "[agent"}, "count: task.toml: Expected", "correct task.toml"),
        (
            {"task.toml": "[agent]\ntimeout_sec = 'long'"},
            "task.toml: agent.timeout_sec: Expected `float",
            "correct",
        ),
        (
            {"task.toml": "[[steps]]\nname = 'a'"},
            r"cannot run here with \[\[steps\]\]",
            "leave out",
        ),
        ({"task.toml": "[environment]\ngpus = 2"}, "with environment.gpus", "leave out"),
        ({"task.toml": "[agent]\nuser = 'eva'"}, "with agent.user = 'eva'", "leave out"),
        ({"environment/docker-compose.yaml": ""}, "with environment/docker-compose", "leave out"),
        (
            {"task.toml": "[verifier]\nenvironment_mode = 'separate'"},
            "an environment of the verifier's own",
            'options.exclude = ["count"]',
        ),
    ],
)
def test_a_broken_folder_is_one_error(
    written: Written, changed: dict[str, str | None], error: str, hint: str
) -> None:
    root = written(**changed)
    with pytest.raises(ItemError, match=error) as told:
        HarborSource("bench", str(root), {}).items("train")
    assert hint in told.value.hint


def test_all_broken_folders_are_named_at_once(written: Written) -> None:
    written("a", **{"tests/test.sh": None})
    written("b")
    root = written("c", **{"task.toml": "[environment]\ngpus = 1"})
    with pytest.raises(ItemError, match=r"a: it has no tests/test\.sh \(and 1 more: c\)") as told:
        HarborSource("bench", str(root), {}).items("train")
    assert 'options.exclude = ["a","c"]' in told.value.hint
    assert len(HarborSource("bench", str(root), {"exclude": ["a", "c"]}).items("train")) == 1


def test_no_folder_and_no_tasks_and_no_solution_are_one_error_each(
    written: Written, tmp_path: Path
) -> None:
    with pytest.raises(ItemError, match="nowhere: no such folder"):
        HarborSource("bench", f"{tmp_path}/nowhere", {}).items("train")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ItemError, match="empty: no task folder in it"):
        HarborSource("bench", f"{tmp_path}/empty", {}).items("train")
    source = HarborSource("bench", str(written(**{"solution/solve.sh": None})), {})
    with pytest.raises(ItemError, match=r"the task has no solution/solve\.sh"):
        source.expert(source.items("train")[0], seed=0)


def test_a_variable_that_nobody_gives_is_one_error(written: Written) -> None:
    root = written(**{"task.toml": "[solution.env]\nKEY = '${HOME}'"})
    source = HarborSource("bench", str(root), {})
    with pytest.raises(ItemError, match=r"solution\.env needs \$\{HOME\}") as told:
        source.expert(source.items("train")[0], seed=0)
    assert "tasks.bench.options.env.HOME" in told.value.hint


def test_a_link_out_of_the_task_is_not_followed(written: Written, tmp_path: Path) -> None:
    root = written()
    (tmp_path / "secret").write_text("x")
    (root / "count" / "tests" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(ItemError, match="tests/link leads out of"):
        HarborSource("bench", str(root), {}).items("train")


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
