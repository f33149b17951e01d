"""Rows beside the episodes of the known runs: runs, lineage, processes, evaluations."""

from evaluation_rows import evaluation_row

from agentrl.core.types import CheckpointState, RunState, Status, Transition
from agentrl.db.models.base import Base
from agentrl.db.models.evaluations import EvaluationEpisode
from agentrl.db.models.processes import PolicyServer, ServiceOutage, Serving, Spending, Worker
from agentrl.db.models.runs import Mixture, Refusal, Run
from agentrl.db.models.updates import Alarm, Checkpoint

BEGAN = 1_000_000.0
NEVER = 1e12  # no deadline of the story passes
CHECKPOINTS = ("c0", "c1", "c2x", "c2")


def run(name: str, forked_from: str | None, began: float = BEGAN) -> Run:
    return Run(
        run_id=f"{name}-1",
        name=name,
        config="{}",
        seed=0,
        state=RunState.RUNNING,
        version=0 if forked_from else 2,
        trainer_epoch=2,
        forked_from=forked_from,
        created_at=began,
    )


def lineage() -> list[Base]:
    live, gone = CheckpointState.LIVE, CheckpointState.ROLLED_BACK
    plan = [
        ("story-1", "c0", 0, None, live, None),
        ("story-1", "c1", 1, "c0", live, "snapshots/c1"),
        ("story-1", "c2x", 2, "c1", gone, None),
        ("story-1", "c2", 2, "c1", live, None),
        ("fork-1", "k0", 0, "c1", live, None),
    ]
    return [
        Checkpoint(
            checkpoint_id=checkpoint_id,
            run_id=run_id,
            version=version,
            parent_id=parent,
            path=f"checkpoints/{checkpoint_id}",
            snapshot_path=snapshot,
            state=state,
            created_at=BEGAN + 100 * version,
        )
        for run_id, checkpoint_id, version, parent, state, snapshot in plan
    ]


def processes() -> list[Base]:
    found: list[Base] = [
        Worker(
            worker_id=name,
            run_id="story-1",
            host=host,
            pid=7,
            lease_until=NEVER,
            started_at=BEGAN,
            ended_at=ended,
        )
        for name, host, ended in (("w1", "here", None), ("w2", "there", BEGAN + 200))
    ]
    server = {"run_id": "story-1", "engine": "local", "url": "http://127.0.0.1:1"}
    found.append(
        PolicyServer(server_id="s1", name="policy", lease_until=NEVER, started_at=BEGAN, **server)
    )
    return found


def serving(checkpoint_id: str, track: str, since: float, until: float | None) -> Serving:
    return Serving(
        server_id="s1",
        run_id="story-1",
        track=track,
        checkpoint_id=checkpoint_id,
        version=CHECKPOINTS.index(checkpoint_id),
        live_from=BEGAN + since,
        live_until=None if until is None else BEGAN + until,
    )


def side_rows() -> list[Base]:
    """Return alarms, mixtures, refusals, an evaluation, and the cost of an external model."""
    alarm = {"run_id": "story-1", "threshold": 0.5, "task": ""}
    entropy = {**alarm, "name": "entropy"}
    found: list[Base] = [
        Alarm(update_id="u1", version=1, value=0.6, raised_at=BEGAN, **entropy),
        Alarm(update_id="u2", version=2, value=0.4, raised_at=BEGAN, ended_at=BEGAN + 9, **entropy),
        Alarm(update_id="u2", version=2, value=9.0, raised_at=BEGAN, name="max_ratio", **alarm),
        Alarm(update_id="u2x", version=2, value=9.0, raised_at=BEGAN, name="kl", **alarm),
    ]
    for number, shares in enumerate(((0.5, 0.5), (0.25, 0.75))):
        for task, share in zip(("alfworld", "dbbench"), shares, strict=True):
            found.append(
                Mixture(
                    run_id="story-1",
                    number=number,
                    task=task,
                    version=number,
                    share=share,
                    admitted=2 * number,
                    owed=0.0,
                    decided_at=BEGAN,
                )
            )
    for fence in (1, 2):
        found.append(
            Refusal(
                run_id="story-1",
                transition=Transition.FINISH,
                subject="g-g-0",
                fence=fence,
                found="failed",
                found_fence=3,
                refused_at=BEGAN,
            )
        )
    for version, success in ((0, 0.25), (2, 0.75)):
        found.append(
            evaluation_row(
                f"v{version}",
                run_id="story-1",
                checkpoint_id=f"c{version}",
                version=version,
                planned=4,
                episodes=4,
                success=success,
                low=success / 2,
                created_at=BEGAN,
            )
        )
    found.append(Spending(run_id="story-1", name="teacher", requests=3, tokens=99))
    outage = ServiceOutage(run_id="story-1", process="worker", service="broker", error="no")
    outage.since, outage.until = BEGAN, BEGAN + 300.0
    found.append(outage)
    return found


def evaluation_episode() -> EvaluationEpisode:
    """Return one episode of the first evaluation."""
    return EvaluationEpisode(
        evaluation_id="v0",
        item_id="item-7",
        repeat=0,
        status=Status.COMPLETED,
        reward=1.0,
        score=1.0,
        turns=1,
        tokens=30,
        prompt_tokens=20,
        sampled_tokens=10,
        seconds=2.0,
        machine_s=2.0,
        ended_at=BEGAN,
    )
