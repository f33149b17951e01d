"""Results of the trainings of the staleness study."""

from agentrl.experiments.findings import ArmFinding, Design, Finding, Skill


class Moment(Finding, frozen=True):
    """One committed update.

    `version`: of its checkpoint. `at`: seconds of the clock. `tokens`: sampled tokens it trained
    on. `lag`: mean age of their policies in updates; `oldest`: maximum. `success` of its episodes
    by task; `metrics` as the trainer records them.
    """

    version: int
    at: float
    tokens: int
    lag: float
    oldest: int
    success: dict[str, float]
    metrics: dict[str, float]


class Timed(Finding, frozen=True):
    """The newest checkpoint on held-out items, sampled at the training temperature."""

    version: int
    at: float
    success: dict[str, float]


class Course(ArmFinding, frozen=True):
    """One training.

    Of the clock: `engine`, `trainer`: seconds in which each was busy. Unused groups: `filtered` had
    no spread, `stale` were too old. `sampled`: tokens of all finished episodes. `loads`: of
    checkpoints into the acting engine.
    """

    design: Design
    moments: list[Moment]
    checks: list[Timed]
    skills: list[Skill]
    engine: float
    trainer: float
    filtered: int
    stale: int
    sampled: int
    loads: int
