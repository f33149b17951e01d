"""Evaluations that two processes begin at once."""

from collections.abc import Sequence
from threading import Thread

from evaluation_rows import evaluation_row
from sqlalchemy import select
from sqlalchemy.orm import Session

from agentrl.db.models.evaluations import Evaluation
from agentrl.db.store import Store
from agentrl.db.transitions import evaluations


def begin(session: Session, items: Sequence[str]) -> None:
    row = evaluation_row("one", policy="somebody", items=0, episodes=0)
    evaluations.begin_evaluation(session, row, {(item, 0) for item in items})


def test_who_asks_for_less_at_the_same_time_does_not_lower_what_is_planned(store: Store) -> None:
    store.transact(lambda session: begin(session, "a"))
    with store.write() as session:
        session.execute(select(Evaluation).with_for_update())
        other = Thread(target=lambda: store.transact(lambda session: begin(session, "ab")))
        other.start()
        other.join(0.5)
        assert other.is_alive(), "it waits for this transaction"
        begin(session, "abcd")
    other.join()
    with store.read() as session:
        assert session.scalars(select(Evaluation.planned)).one() == 4
