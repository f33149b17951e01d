"""The containers of task folders: image, limits and network."""

import pytest
from harbor_tasks import COUNT, FINISH, Opened, Written, said, scripted, started

from agentrl.core.errors import EnvironmentFailure, ItemError
from agentrl.envs.adapters.harbor.task_source import HarborSource

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
