"""`agentrl experiment tool-use`: studies whether a policy learns to use a tool.

It also asks what the policy gains, by an ablation without the tool. Arms differ in the task's
option `tool` alone (docs/tasks/maths.md). Of both, the untrained policy is measured, too.
"""

from msgspec.structs import replace

from agentrl.core.config.config import Config
from agentrl.experiments.arms.declaration import ArmStudy
from agentrl.experiments.findings import Training
from agentrl.experiments.report.comparison import START
from agentrl.experiments.report.measures import FINAL, final

START_WITHOUT = f"{START}-without"
WITHOUT = ("without", START_WITHOUT)
USED = "tool used"
DONE = """\
Policy `{model}`, from experts that use the
tool in some episodes only; `experiments/configs/tool-use.toml`; {tokens:,} sampled tokens a
training, in rounds of {groups} groups of {size} episodes, and one update each. Trainings: {made}.
"""
MEANING = """\
The arms `start` and `tool` are offered the tool, `start-without` and `without` are not; the
first of each pair is the policy before training. All arms of a seed see the same items in the same
order. *Final* is success in {attempts} attempts at each of {items} held-out items at temperature
{temperature:g}, different items for each seed; *tool used* is the share of the attempts with an
answer in which the tool ran. Intervals are 95 %, Student's t over seeds; differences are paired by
seed.
"""


def arm_config(config: Config, arm: str) -> Config:
    """Return the configuration of one arm."""
    offered = {"tool": arm not in WITHOUT}
    tasks = {
        name: replace(task, options={**task.options, **offered})
        for name, task in config.tasks.items()
    }
    return replace(config, tasks=tasks)


def tool_used(training: Training, task: str) -> float | None:
    """Return the share of the final episodes with an answer in which the tool ran."""
    for skill in training.skills:
        if skill.task == task:
            return skill.metrics.get("tool_used")
    return None


STUDY = ArmStudy(
    name="tool-use",
    title="Does a policy learn to use a tool, and what does it gain?",
    bases={START: START, "tool": START, START_WITHOUT: START_WITHOUT, "without": START_WITHOUT},
    arm_config=arm_config,
    measures={FINAL: final, USED: tool_used},
    minus={FINAL: "before", USED: "before"},
    done=DONE,
    meaning=MEANING,
    quick_tokens=3000,
    model_hint="create it with the command that stands in the configuration",
)
