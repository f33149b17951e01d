"""The same code on real services: Postgres, RabbitMQ, Celery over amqp, Docker containers."""

import os
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from running import ROOT, agentrl, eventually, logs_of, processes_of
from sqlalchemy import text
from sqlalchemy.orm import Session

from agentrl import broker
from agentrl.core.errors import BrokerError
from agentrl.core.types import RunState
from agentrl.db.queries import progress
from agentrl.db.store import open_store
from agentrl.db.transitions import runs
from agentrl.envs.sandbox.docker_engine import RUN

pytestmark = pytest.mark.timeout(1000)

UPDATES = 5


@pytest.fixture
def finished_run(  # noqa: PLR0917 - fixtures
    tmp_path: Path,
    postgres_url: str,
    amqp_url: str,
    docker_host: str,
    docker_client: docker.DockerClient,
    sandbox_image: str,
) -> Iterator[Session]:
    """A session on the store of a cluster run that has trained to its end."""
    home, log = tmp_path / "home", tmp_path / "log"
    environment = {
        "AGENTRL_POSTGRES_URL": postgres_url,
        "AGENTRL_AMQP_URL": amqp_url,
        "DOCKER_HOST": docker_host,
        "AGENTRL__RUN__HOME": str(home),
        "AGENTRL__RUN__NAME": f"cluster-{os.getpid()}",
        "AGENTRL__RUN__STOP_UPDATES": str(UPDATES),
        "AGENTRL__MODEL__PATH": str(ROOT / "models" / "tiny"),
        "AGENTRL__ENVS__DOCKER_IMAGE": sandbox_image,
        "AGENTRL__DISPATCH__GROUPS_PER_UPDATE": "4",
    }
    config = str(ROOT / "configs" / "cluster-cpu.toml")

    def containers() -> set[str]:
        label = f"{RUN}={environment['AGENTRL__RUN__NAME']}"
        found = docker_client.api.containers(all=True, filters={"label": label})
        return {each["Id"] for each in found}

    def logs() -> str:
        return logs_of(home, log)

    with agentrl("up", config, environment=environment, output=log) as process:
        acted: set[str] = set()

        def over() -> bool:
            acted.update(containers())
            return process.poll() is not None

        eventually(over, within_s=800, text=logs)
        assert process.returncode == 0, logs()
    assert acted, "no episode ran in a container"
    eventually(lambda: not containers(), within_s=60, text=logs)  # the engine removes the last
    assert processes_of(home) == []
    store = open_store(postgres_url)
    with store.read() as session:
        yield session
    store.close()


def test_a_cluster_run_trains_and_sql_proves_it(finished_run: Session, amqp_url: str) -> None:
    session = finished_run
    (run_id,) = session.scalars(text("SELECT run_id FROM runs")).all()
    run = runs.require_run(session, run_id)
    assert (run.state, run.version) == (RunState.COMPLETED, UPDATES)

    assert progress.disagreements(session, run_id) == [], "accounting and unserved_steps are empty"

    # each loss token's policy is a registered checkpoint that was live when it was sampled
    trained = session.execute(
        text(
            "SELECT count(*), sum(CASE WHEN EXISTS (SELECT 1 FROM servings v"
            "  JOIN checkpoints c ON c.checkpoint_id = v.checkpoint_id"
            "  WHERE v.checkpoint_id = s.checkpoint_id AND v.server_id = s.server_id"
            "  AND v.live_from <= s.requested_at + s.policy_s + 0.05"
            "  AND (v.live_until IS NULL OR s.requested_at <= v.live_until + 0.05))"
            " THEN 1 ELSE 0 END) FROM steps s JOIN update_groups u"
            " ON u.episode_id = s.episode_id AND u.fence = s.fence"
        )
    ).one()
    assert trained[0] > 0
    assert trained[0] == trained[1]

    # the steps' spans are all the loss tokens that updates learned from
    learned = session.scalar(text("SELECT sum(loss_tokens) FROM update_groups"))
    spans = session.scalar(
        text(
            "SELECT sum(s.token_end - s.token_start) FROM steps s JOIN update_groups u"
            " ON u.episode_id = s.episode_id AND u.fence = s.fence"
        )
    )
    assert learned == spans > 0

    mixed = session.scalar(
        text(
            "SELECT count(*) FROM (SELECT episode_id, fence FROM steps"
            " GROUP BY episode_id, fence HAVING count(DISTINCT track) = 2) AS both_tracks"
        )
    )
    assert (mixed or 0) > 0, "both tracks acted inside single trajectories"

    versions = session.scalars(text("SELECT version FROM updates ORDER BY committed_at")).all()
    assert versions == list(range(1, UPDATES + 1)), "versions only grow"

    nameless = session.scalar(
        text(
            "SELECT count(*) FROM updates v WHERE v.groups = 0 OR v.groups <>"
            " (SELECT count(DISTINCT group_id) FROM update_groups u"
            "  WHERE u.update_id = v.update_id)"
        )
    )
    assert nameless == 0, "every update names its groups"

    link = broker.connect(amqp_url)
    with pytest.raises(BrokerError, match=run_id):  # no queue is left behind
        link.depths(run_id)
    link.close()
