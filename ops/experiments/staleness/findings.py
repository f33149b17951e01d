"""Results of the trainings of the staleness study."""

from agentrl.ops.experiments.findings import Design, Finding, SavedFinding, Skill


class Moment(Finding, frozen=True):
    """One update as it was committed.

    `version`: of its checkpoint; `at`: seconds of the clock. `tokens`: sampled ones that it
    trained, `lag`: how many updates their policies were behind, in the mean; `oldest`: at most.
    `success` of its episodes by task; `metrics` as the trainer records them.
    """

    version: int
    at: float
    tokens: int
    lag: float
    oldest: int
    success: dict[str, float]
    metrics: dict[str, float]


class Timed(Finding, frozen=True):
    """The newest checkpoint on held-out items, sampled at the temperature of training."""

    version: int
    at: float
    success: dict[str, float]


class Course(SavedFinding, frozen=True):
    """One arm with one seed. `seconds`: of the machine that computed it.

    Of the clock: `engine`, `trainer`: seconds in which each was busy. Groups that taught nothing:
    `filtered` had no spread, `stale` were too old. `sampled`: tokens of all episodes that ended;
    `loads`: of checkpoints into the engine that acts.
    """

    design: Design
    arm: str
    seed: int
    seconds: float
    moments: list[Moment]
    checks: list[Timed]
    skills: list[Skill]
    engine: float
    trainer: float
    filtered: int
    stale: int
    sampled: int
    loads: int

    @property
    def file(self) -> str:
        return f"training-{self.arm}-{self.seed}.json"
