"""The documentation's agent program, as it stands there: a run of it learns from its tokens."""

from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from running import ROOT, agentrl, eventually, processes_of
from sqlalchemy import select, text

from agentrl.broker.messages import EpisodeFinished, decode
from agentrl.core.trajectory import Trajectory
from agentrl.core.types import RunState
from agentrl.db.models.episodes import StoredTrajectory
from agentrl.db.queries import progress
from agentrl.db.questions import answer_question
from agentrl.db.store import Store, open_store
from agentrl.db.transitions import runs
from agentrl.workers.conversation.template import ChatTemplate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]

CONFIG = ROOT / "docs" / "examples" / "agent_program.toml"
UPDATES = 2


def test_an_unmodified_program_is_trained(tmp_path: Path) -> None:
    home, log = tmp_path / "home", tmp_path / "log"
    environment = {
        "AGENTRL__RUN__HOME": str(home),
        "AGENTRL__RUN__STOP_UPDATES": str(UPDATES),
        "AGENTRL__MODEL__PATH": str(ROOT / "models" / "tiny"),
    }

    def logs() -> str:
        tails = [path.read_text()[-800:] for path in sorted((home / "logs").glob("*.log"))]
        return "\n".join([log.read_text(), *tails])

    with agentrl("up", str(CONFIG), environment=environment, output=log) as process:
        eventually(lambda: process.poll() is not None, within_s=600, text=logs)
        assert process.returncode == 0, logs()
    assert processes_of(home) == []
    with closing(open_store(f"sqlite:///{home / 'store.db'}")) as store:
        with store.read() as session:
            run = runs.require_run(session, "agent-program")
            assert (run.state, run.version) == (RunState.COMPLETED, UPDATES)
            assert progress.disagreements(session, run.run_id) == []
            assert session.execute(text("SELECT * FROM unserved_steps")).all() == []
        assert answer_question(store, "untraceable-tokens").rows == []
        check_bodies(store)


def check_bodies(store: Store) -> None:
    """Won and lost episodes, and each body's tokens are the prompts and the samples, in order."""
    template = ChatTemplate.load(ROOT / "models" / "tiny")
    with store.read() as session:
        messages = [decode(body) for body in session.scalars(select(StoredTrajectory.body))]
    found = [each.trajectory for each in messages if isinstance(each, EpisodeFinished)]
    assert len(found) >= UPDATES * 16
    assert {body.reward for body in found} == {0.0, 1.0}
    for body in found:
        check_tokens(body, template)


def check_tokens(body: Trajectory, template: ChatTemplate) -> None:
    tokens, mask = body.tokens().tolist(), body.mask().tolist()
    assert body.steps
    assert sum(mask) == sum(step.end - step.start for step in body.steps)
    first = template.decode(tokens[: body.steps[0].start])
    assert first.startswith("dbbench")
    for step in body.steps:
        said = template.decode(tokens[step.start : step.end])
        calls = msgspec.json.decode(step.call) if step.call.startswith("[") else []
        assert all(call["error"] or call["name"] in said for call in calls)
    for before, after in zip(body.steps, body.steps[1:], strict=False):
        between = template.decode(tokens[before.end : after.start])
        assert before.answer.split("\n")[0] in between
