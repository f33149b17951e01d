"""`agentrl experiment turn-credit`: studies which credit of turns learns long episodes faster.

Arms differ in `trainer.credit`, and in whether progress is rewarded (docs/credit.md).
"""

from msgspec.structs import replace

from agentrl.core.config.config import Config
from agentrl.core.config.sections import ProcessRewards
from agentrl.experiments.arms.declaration import ArmStudy
from agentrl.experiments.report.comparison import START
from agentrl.experiments.report.markdown import table
from agentrl.experiments.report.measures import FINAL, WAY, final, on_the_way

PROGRESS = 0.5
OUTCOME = "outcome"
ARMS = {  # credit, weight of the process reward, and the arm that it is compared with
    OUTCOME: ("outcome", 0.0, OUTCOME),
    "discounted": ("discounted", 0.0, OUTCOME),
    "gigpo": ("gigpo", 0.0, OUTCOME),
    "outcome-progress": ("outcome", PROGRESS, OUTCOME),
    "turn-progress": ("turn", PROGRESS, "outcome-progress"),
}
DONE = """\
Policy `{model}`;
`experiments/configs/turn-credit.toml`; {tokens:,} sampled tokens a training, in rounds of
{groups} groups of {size} episodes of at most {turns} turns, and one update each. Trainings: {made}.
"""
ARMS_TABLE = "\n".join(
    table(
        ["arm", "`trainer.credit`", "`process_rewards.progress`", "compared with"],
        (
            [arm, credit, f"{progress:g}", base if base != arm else ""]
            for arm, (credit, progress, base) in ARMS.items()
        ),
    )
)
MEANING = """
[Credit](../credit.md) says what the credits compute, here with their default options. Without
rewards before the last turn `turn` is `outcome`, so it has no arm of its own. All arms of a seed
see the same items in the same order, and advantages are normalised per task. *Final* is success in
{attempts} attempts at each of {items} held-out items at temperature {temperature:g}, different
items for each seed; *on the way* is success on {check_items} items during training, the mean of all
checks ({checks}). Process rewards never count as success. Intervals are 95 %, Student's t over
seeds; differences are paired by seed.
"""


def arm_config(config: Config, arm: str) -> Config:
    """Return the configuration of one arm; that of the starting policy stays as it is."""
    if arm == START:
        return config
    credit, progress, _ = ARMS[arm]
    rewards = ProcessRewards(progress=progress)
    tasks = {name: replace(task, process_rewards=rewards) for name, task in config.tasks.items()}
    return replace(config, tasks=tasks, trainer=replace(config.trainer, credit=credit))


STUDY = ArmStudy(
    name="turn-credit",
    title="Which credit of turns learns long episodes faster?",
    bases={START: OUTCOME, **{arm: base for arm, (_, _, base) in ARMS.items()}},
    arm_config=arm_config,
    measures={FINAL: final, WAY: on_the_way},
    minus={FINAL: "its base"},
    done=DONE,
    meaning=ARMS_TABLE + MEANING,
    quick_tokens=6000,
)
