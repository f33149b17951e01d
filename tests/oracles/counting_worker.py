"""The task of tests/support/counting_task.py for the real `agentrl-worker`, which runs this file.

python counting_worker.py PORT CONTROLLER CONCURRENCY
"""

import asyncio
import json
import logging
import sys

from agentrl.worker.task import Session, Task
from agentrl.worker.task_worker import TaskWorker
from agentrl.worker.typings import RewardHistoryItem, SampleStatus, TaskSampleExecutionResult

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add a number to the total.",
        "parameters": {
            "type": "object",
            "properties": {"number": {"type": "integer"}},
            "required": ["number"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


class Counting(Task):
    def get_indices(self):
        return list(range(20))

    async def start_sample(self, index, session: Session):
        return await self.play(index + 1, session)

    async def start_sample_custom(self, task, session: Session):
        return await self.play(task["target"], session)

    async def play(self, target, session: Session):
        total = 0
        said = [
            {"role": "system", "content": "You count."},
            {"role": "user", "content": f"Reach {target}."},
        ]
        while total < target:
            turn = (await session.action(*said)).messages[-1]
            if not turn.get("tool_calls"):
                said = [{"role": "user", "content": "Call add."}]
                continue
            call = turn["tool_calls"][0]
            number = json.loads(call["function"]["arguments"]).get("number")
            if type(number) is not int:
                return TaskSampleExecutionResult(status=SampleStatus.AGENT_INVALID_ACTION)
            if number == 13:
                raise RuntimeError("13 is not a number here")
            await asyncio.sleep(2.0 if number == 7 else 0.0)
            total += number
            content = str(total)
            said = [{"role": "tool", "content": content, "tool_call_id": call["id"], "name": "add"}]
        success = float(total == target)
        session.inject(RewardHistoryItem(reward=success, score=success, metrics={"total": total}))
        return TaskSampleExecutionResult(status=SampleStatus.COMPLETED)


if __name__ == "__main__":
    port, controller, concurrency = sys.argv[1:]
    logging.disable(logging.ERROR)
    worker = TaskWorker(
        Counting("counting", concurrency=int(concurrency), tools=[ADD], full_async=True),
        controller_address=controller,
        self_address=f"http://127.0.0.1:{port}/api",
        heart_rate=1,
    )
    worker.run("127.0.0.1", int(port))
