"""`agentrl experiment teachers`: studies whether specialists can be distilled into one policy.

Two specialists are trained on one task each. Then they teach one policy both tasks, instead of
rewards or beside them (docs/teachers.md), which is compared with rewards in both tasks.
"""

from msgspec.structs import replace

from agentrl.core.config.config import Config
from agentrl.experiments.arms.declaration import ArmStudy, with_own_task
from agentrl.experiments.report.comparison import START
from agentrl.experiments.report.measures import FINAL, WAY, final, on_the_way

JOINT, DISTILLED, BOTH = "joint", "distilled", "distilled-rewards"
SPECIALISTS = {"alfworld": "alfworld-alone", "dbbench": "dbbench-alone"}  # arms, by task
DONE = """\
Policy `{model}`;
`experiments/configs/teachers.toml`; {tokens:,} sampled tokens a training, in rounds of
{groups} groups of {size} episodes, and one update each. Trainings: {made}.
"""
MEANING = """\
`joint` trains on the rewards of both tasks. `alfworld-alone` and `dbbench-alone` are specialists:
they train on the rewards of one task, with all tokens in that task, so with about twice as many of
it as `joint`. `distilled` begins anew with the starting policy and plays both tasks; each
specialist teaches its task, and rewards are not trained on. `distilled-rewards` is taught in the
same way and also trains on the rewards. The tokens of the specialists are not counted for the arms
that they teach: with both specialists, `distilled` costs three trainings of {tokens:,} tokens.

All arms of a seed see the items of a task in the same order. *Final* is success in {attempts}
attempts at each of {items} held-out items a task at temperature {temperature:g}, different items
for each seed; *on the way* is success on {check_items} items during training, the mean of all
checks ({checks}). Intervals are 95 %, Student's t over seeds; differences are paired by seed.
"""


def arm_config(config: Config, arm: str) -> Config:
    """Return the configuration of one arm, without its teachers."""
    if arm == DISTILLED:
        return replace(config, trainer=replace(config.trainer, rewards=False))
    return with_own_task(config, arm, SPECIALISTS)


STUDY = ArmStudy(
    name="teachers",
    title="Can two specialists be distilled into one policy?",
    bases={
        START: JOINT,
        JOINT: JOINT,
        **{arm: arm for arm in SPECIALISTS.values()},
        DISTILLED: JOINT,
        BOTH: JOINT,
    },
    arm_config=arm_config,
    measures={FINAL: final, WAY: on_the_way},
    minus={FINAL: JOINT},
    done=DONE,
    meaning=MEANING,
    quick_tokens=3000,
    teachers={DISTILLED: SPECIALISTS, BOTH: SPECIALISTS},
    references=SPECIALISTS,
)
