"""Task folders in Harbor's format, in containers of their own images."""

from collections.abc import Callable
from pathlib import Path

import docker
import pytest
from adapter_pages import task_of_page
from harbor_tasks import FINISH, Opened, Written, ended, said, scripted, started

from agentrl.core.config.sections.tasks import Envs, Task
from agentrl.core.types import Status
from agentrl.envs.contract import ToolCall
from agentrl.envs.play import play
from agentrl.envs.server.client import RemoteSource
from agentrl.envs.server.server import EnvServer
from agentrl.envs.tasks.check import Settings
from agentrl.envs.tasks.task_measurements import all_figures


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
            "environment/Dockerfile": f"FROM {sandbox_image}\nENV GREETING='a b'\nWORKDIR /app\n",
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


def test_the_last_turn_is_tested(opened: Opened) -> None:
    outcome = ended(opened({"max_turns": 1}), "wc -l < words.txt > answer.txt")
    assert (outcome.status, outcome.reward) == (Status.TASK_LIMIT, 1.0)


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
