"""Task folders in Harbor's format, and what an agent does in their containers."""

from collections.abc import Callable
from pathlib import Path

from agentrl.envs.adapters.harbor.environment import HarborEnvironment
from agentrl.envs.adapters.harbor.task_source import HarborSource
from agentrl.envs.contract import Outcome, ToolCall

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
"""Files of a task; the fixture `written` adds the Dockerfile."""

Written = Callable[..., Path]
Opened = Callable[..., HarborSource]
FINISH = ToolCall("finish_action", {"thought": "done"})


def scripted(script: str) -> dict[str, str]:
    return {"tests/test.sh": f"#!/bin/bash\n{script}\n"}


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


def said(environment: HarborEnvironment, script: str) -> str:
    (message,) = environment.call([bash(script)]).messages
    return message.content.removeprefix("The output of the OS:\n\n")
