"""`agentrl experiment turn-credit`: studies which credit of turns learns long episodes faster.

Arms differ in `trainer.credit`, and in whether progress is rewarded (docs/credit.md). Two more
train on the groups of the highest variance only, or begin with short episodes.
"""

from dataclasses import dataclass

from msgspec.structs import replace

from agentrl.core.config.config import Config
from agentrl.core.config.sections.tasks import ProcessRewards
from agentrl.experiments.arms.declaration import ArmStudy
from agentrl.experiments.report.comparison import START
from agentrl.experiments.report.markdown import table
from agentrl.experiments.report.measures import FINAL, WAY, final, on_the_way

PROGRESS = 0.5
OUTCOME = "outcome"
KEEP_SHARE = 0.25
HORIZONS = ((0, 8), (6, 14), (12, 20))  # version, most turns


@dataclass(frozen=True, slots=True)
class ArmSettings:
    """What an arm differs in. `base`: the arm that it is compared with."""

    credit: str = "outcome"
    progress: float = 0.0
    keep_share: float = 1.0
    horizons: tuple[tuple[int, int], ...] = ()
    base: str = OUTCOME


ARMS = {
    OUTCOME: ArmSettings(),
    "discounted": ArmSettings(credit="discounted"),
    "gigpo": ArmSettings(credit="gigpo"),
    "outcome-progress": ArmSettings(progress=PROGRESS),
    "turn-progress": ArmSettings(credit="turn", progress=PROGRESS, base="outcome-progress"),
    "filter": ArmSettings(keep_share=KEEP_SHARE),
    "horizon": ArmSettings(horizons=HORIZONS),
}
DONE = """\
Policy `{model}`;
`experiments/configs/turn-credit.toml`; {tokens:,} sampled tokens a training, in rounds of
{groups} groups of {size} episodes of at most {turns} turns, and one update each. Trainings: {made}.
"""
ARMS_TABLE = "\n".join(
    table(
        [
            "arm",
            "`trainer.credit`",
            "`process_rewards.progress`",
            "`trainer.keep_share`",
            "`horizons`",
            "compared with",
        ],
        (
            [
                arm,
                settings.credit,
                f"{settings.progress:g}",
                f"{settings.keep_share:g}",
                ", ".join(f"{turns} from {version}" for version, turns in settings.horizons),
                settings.base if settings.base != arm else "",
            ]
            for arm, settings in ARMS.items()
        ),
    )
)
MEANING = """
[Credit](../credit.md) says what the credits compute, here with their default options. Without
rewards before the last turn `turn` is `outcome`, so it has no arm of its own. `filter` is RAGEN's
(arXiv:2504.20073): of the groups with spread in a task's part of a round, the share
[`keep_share`](../algorithms.md) with the highest variance of rewards is trained on. `horizon` is
AgentGym-RL's (arXiv:2509.08755): [turn limits](../curriculum.md#horizons) that grow with the
version. All arms of a seed see
the same items in the same order, and advantages are normalised per task. *Final* is success in
{attempts} attempts at each of {items} held-out items at temperature {temperature:g}, different
items for each seed; *on the way* is success on {check_items} items during training, the mean of all
checks ({checks}). Process rewards never count as success. Intervals are 95 %, Student's t over
seeds; differences are paired by seed.
"""


def arm_config(config: Config, arm: str) -> Config:
    """Return the configuration of one arm; that of the starting policy stays as it is."""
    if arm == START:
        return config
    settings = ARMS[arm]
    rewards, horizons = ProcessRewards(progress=settings.progress), list(settings.horizons)
    tasks = {
        name: replace(task, process_rewards=rewards, horizons=horizons)
        for name, task in config.tasks.items()
    }
    trainer = replace(config.trainer, credit=settings.credit, keep_share=settings.keep_share)
    return replace(config, tasks=tasks, trainer=trainer)


STUDY = ArmStudy(
    name="turn-credit",
    title="Which credit of turns learns long episodes faster?",
    bases={START: OUTCOME, **{arm: settings.base for arm, settings in ARMS.items()}},
    arm_config=arm_config,
    measures={FINAL: final, WAY: on_the_way},
    minus={FINAL: "its base"},
    done=DONE,
    meaning=ARMS_TABLE + MEANING,
    quick_tokens=6000,
)
