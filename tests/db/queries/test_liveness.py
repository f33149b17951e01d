"""What rows tell of the processes of a run: who lives, what moves, when a role first worked."""

import pytest
from run_history import begun, trained
from sqlalchemy import text

from agentrl.db.models.processes import Worker
from agentrl.db.queries import liveness
from agentrl.db.queries.liveness import Liveness
from agentrl.db.store import Store
from agentrl.db.transitions import runs


def _look(store: Store, run_id: str) -> Liveness:
    return store.ask(lambda session: liveness.read_liveness(session, run_id))


def test_rows_tell_who_lives_and_whether_anybody_acts(store: Store) -> None:
    again, run_id = begun(store.engine.url.render_as_string(hide_password=False))
    again.close()
    with store.write() as session:
        for pid, lease_s in ((11, 60.0), (12, -1.0)):
            worker = Worker(worker_id=f"w{pid}", run_id=run_id, host="here", pid=pid)
            runs.register_worker(session, worker, lease_s=lease_s)
    first = _look(store, run_id)
    assert first.workers == {11: "w11"}, "the lease of the other is over"
    assert first.servers == {}

    store.transact(lambda session: runs.beat_worker(session, "w11", lease_s=90.0))
    assert _look(store, run_id).movement == first.movement, "to beat is not to act"

    trained(store, run_id, 2)
    later = _look(store, run_id)
    assert later.movement != first.movement
    assert (later.version, later.epoch, later.committed_epoch) == (2, 1, 1)
    assert later.servers == {"policy": (f"policy-{run_id}", "http://127.0.0.1:1")}
    with store.write() as session:
        session.execute(text("UPDATE runs SET dispatcher = 'd', trainer_epoch = 7"))
    assert (_look(store, run_id).dispatcher, _look(store, run_id).epoch) == ("d", 7)
    assert _look(store, run_id).committed_epoch == 1, "of a trainer that was replaced"


def test_each_role_s_first_work_is_found_after_an_instant_alone(store: Store) -> None:
    again, run_id = begun(store.engine.url.render_as_string(hide_password=False))
    again.close()
    before = store.clock()
    trained(store, run_id, 1)
    with store.write() as session:
        session.execute(text("UPDATE trajectories SET received_at = :at"), {"at": store.clock()})

    def worked(role: str, since: float, who: str = "") -> float | None:
        return store.ask(lambda session: liveness.first_work(session, run_id, role, since, who))

    after = store.clock() + 1
    for role in (*liveness.ROLES, "any"):
        at = worked(role, before)
        assert at is not None, role
        assert before < at < after, role
        assert worked(role, after) is None, role
    assert worked("worker", before, f"worker-{run_id}") is not None
    assert worked("worker", before, "another") is None
    assert worked("policy", before, f"policy-{run_id}") is not None
    assert worked("policy", before, "another") is None
    with pytest.raises(ValueError, match="supervisor"):
        worked("supervisor", before)


def test_a_finished_row_whose_body_is_not_stored_is_a_promise(store: Store) -> None:
    again, run_id = begun(store.engine.url.render_as_string(hide_password=False))
    again.close()
    trained(store, run_id, 1)

    def promised() -> set[liveness.Claim]:
        return store.ask(lambda session: liveness.claims_without_body(session, run_id))

    assert promised() == set()
    with store.write() as session:
        one = session.execute(
            text("SELECT episode_id, fence, sha256 FROM trajectories ORDER BY 1 LIMIT 1")
        ).one()
        session.execute(
            text("DELETE FROM trajectories WHERE episode_id = :e"), {"e": one.episode_id}
        )
    assert promised() == {tuple(one)}


def test_steps_are_found_by_when_they_were_asked_for_and_bodies_by_their_size(store: Store) -> None:
    again, run_id = begun(store.engine.url.render_as_string(hide_password=False))
    again.close()
    before = store.clock()
    trained(store, run_id, 1)
    (named,) = store.ask(
        lambda s: s.execute(
            text(
                "SELECT count(*), max(length(body)) FROM steps JOIN trajectories USING (episode_id)"
            )
        ).all()
    )

    def between(*times: tuple[float, float]) -> set[str]:
        return store.ask(lambda session: liveness.steps_between(session, run_id, times))

    after = store.clock()
    assert len(between((0.0, 1.0), (before - 3600, after))) == named[0] > 0
    assert between() == between((0.0, 1.0)) == set()
    assert all(" step " in each for each in between((before - 3600, after)))
    sizes = store.ask(lambda session: liveness.body_sizes(session, run_id))
    assert max(sizes) == named[1]
