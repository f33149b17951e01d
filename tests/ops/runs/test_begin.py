import shutil
import sqlite3
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from run_transitions import run_concurrently
from running import ROOT, eventually
from structlog.testing import capture_logs

from agentrl import broker
from agentrl.checkpoints.checkpoint_store import fetch
from agentrl.checkpoints.manifest import verify
from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import Model
from agentrl.core.config.sections.run import Broker, Run, Store
from agentrl.core.config.sections.tasks import Task
from agentrl.core.errors import BrokerUnavailable, ConfigError
from agentrl.core.telemetry import metrics
from agentrl.ops.chaos.proxy import Proxy
from agentrl.ops.runs.begin import RunOver, begin, clear_queues, require_queues


def test_processes_that_begin_a_run_at_once_agree_on_it(tmp_path: Path) -> None:
    config = Config(
        tasks={"dbbench": Task()},
        run=Run(home=str(tmp_path)),
        model=Model(path=str(ROOT / "models" / "tiny")),
    )
    found = run_concurrently(*[partial(begin, config)] * 4)
    assert len(set(found)) == 1
    connection = sqlite3.connect(tmp_path / "store.db")
    rows = connection.execute("SELECT path, version FROM checkpoints").fetchall()
    connection.close()
    assert [verify(Path(path)).version for path, _ in rows] == [0]


def test_a_configuration_that_has_changed_since_the_last_start_is_told(tmp_path: Path) -> None:
    config = Config(
        tasks={"dbbench": Task()},
        run=Run(home=str(tmp_path)),
        model=Model(path=str(ROOT / "models" / "tiny")),
    )
    with capture_logs() as logs:
        begin(config)
        begin(config)
        begin(config_loading.with_changes(config, ["run.stop_updates=30"]))
    told = [each["changes"] for each in logs if "changes" in each]
    assert told == ["run.stop_updates: unset → 30"]


def test_a_moved_run_without_its_first_checkpoint_gets_it_from_the_model(tmp_path: Path) -> None:
    """As of a folder that was carried without its whole models."""
    before, after = (
        Config(
            tasks={"dbbench": Task()},
            run=Run(home=str(tmp_path / name)),
            model=Model(path=str(ROOT / "models" / "tiny")),
        )
        for name in ("before", "after")
    )
    run_id = begin(before)
    (first,) = (tmp_path / "before").glob("checkpoints/*/*-v000000")
    files = verify(first).files
    shutil.rmtree(first)
    (tmp_path / "before").rename(tmp_path / "after")
    assert begin(after) == run_id
    with closing(sqlite3.connect(tmp_path / "after" / "store.db")) as connection:
        ((path,),) = connection.execute("SELECT path FROM checkpoints")
    assert Path(path).is_relative_to(tmp_path / "after")
    assert verify(Path(path)).files == files


def test_a_variable_that_is_not_set_is_told_of_before_the_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_SECRET", raising=False)
    config = Config(
        tasks={"dbbench": Task()},
        run=Run(home=str(tmp_path / "home")),
        model=Model(path=str(ROOT / "models" / "tiny")),
        broker=Broker(url="amqp://me:${NO_SUCH_SECRET}@127.0.0.1"),
    )
    with pytest.raises(ConfigError, match="NO_SUCH_SECRET"):
        begin(config)
    assert not (tmp_path / "home").exists()


def test_a_run_that_is_over_is_left_as_it_is_and_its_queues_are_not_made_again(
    tmp_path: Path,
) -> None:
    tasks, model = {"dbbench": Task()}, Model(path=str(ROOT / "models" / "tiny"))
    config = Config(tasks=tasks, run=Run(home=str(tmp_path)), model=model)
    run_id = begin(config)
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("UPDATE runs SET state = 'completed', reason = 'enough', config = ''")
    with pytest.raises(RunOver, match="is over \\(completed: enough\\)"):
        begin(config)
    assert require_queues(config, run_id)
    assert clear_queues(config, run_id) == 0
    with pytest.raises(RunOver):
        begin(config)
    assert not require_queues(config, run_id)
    rows = connection.execute("SELECT state, config FROM runs").fetchall()
    connection.close()
    assert rows == [("completed", "")]


def test_the_queues_of_a_run_that_is_over_are_deleted_once_the_broker_is_back(
    amqp_url: str,
) -> None:
    run_id, where = f"over-{uuid.uuid4().hex[:8]}", urlsplit(amqp_url)
    direct = broker.connect(amqp_url)
    with closing(Proxy(str(where.hostname), where.port or 5672)) as proxy:
        url = amqp_url.replace(f":{where.port}/", f":{proxy.port}/")
        whole = Config(tasks={"dbbench": Task()}, broker=Broker(url=url))
        half = Config(tasks={"dbbench": Task()}, broker=Broker(url=amqp_url, tasks_url=url))
        for config in (whole, half):  # half: only the queue of the workers' commands stays
            direct.declare_run(run_id)
            proxy.refuse()
            stop = threading.Event()
            stop.set()
            for given in (None, stop, None):
                with pytest.raises(BrokerUnavailable):
                    clear_queues(config, run_id, given)
            assert direct.queues_exist(run_id) == (config is whole)
            stop.clear()
            metrics.AWAY.labels(name="broker").set(0)
            with ThreadPoolExecutor(1) as pool:
                cleared = pool.submit(clear_queues, config, run_id, stop)
                eventually(
                    lambda: metrics.COMMON.get_sample_value(
                        "agentrl_service_away", {"name": "broker"}
                    ),
                    within_s=60,
                    text=lambda: "it does not wait",
                )
                assert not cleared.done()
                proxy.flow()
                assert cleared.result(timeout=120) == 0
            assert not direct.queues_exist(run_id)
    direct.close()


def test_a_run_may_begin_paused_and_stays_so_for_who_comes_later(tmp_path: Path) -> None:
    model = Model(path=str(ROOT / "models" / "tiny"))
    config = Config(tasks={"dbbench": Task()}, run=Run(home=str(tmp_path)), model=model)
    run_id = begin(config, paused="to look first")
    assert begin(config) == run_id
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        rows = connection.execute("SELECT state, reason FROM runs").fetchall()
    assert rows == [("paused", "to look first")]


def test_the_first_checkpoint_of_a_model_of_relative_links_is_whole(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots"
    shutil.copytree(ROOT / "models" / "tiny", blobs)
    snapshot.mkdir()
    for blob in blobs.iterdir():
        (snapshot / blob.name).symlink_to(Path("..") / "blobs" / blob.name)
    home = tmp_path / "home"
    tasks = {"dbbench": Task()}
    begin(Config(tasks=tasks, run=Run(home=str(home)), model=Model(path=str(snapshot))))
    (directory,) = (path for path in home.glob("checkpoints/*/*"))
    verify(directory)
    assert not any(path.is_symlink() for path in directory.iterdir())


def test_a_host_that_comes_later_takes_the_first_checkpoint_from_the_url(tmp_path: Path) -> None:
    """Its own model files do not count."""
    url = f"file://{tmp_path}/far"

    def config(host: str) -> Config:
        shutil.copytree(ROOT / "models" / "tiny", tmp_path / host / "model")
        home = str(tmp_path / host)
        return Config(
            tasks={"dbbench": Task()},
            run=Run(home=home, checkpoints=url),
            store=Store(url=f"sqlite:///{tmp_path}/store.db"),
            broker=Broker(url=f"sqlite:///{tmp_path}/queue.db"),
            model=Model(path=f"{home}/model"),
        )

    one, other = config("one"), config("other")
    (tmp_path / "other" / "model" / "README.md").write_text("the same but for its weights")
    (tmp_path / "other" / "model" / "generation_config.json").write_text("{}")
    run_id = begin(one)
    assert begin(other) == run_id
    connection = sqlite3.connect(tmp_path / "store.db")
    [(path,)] = connection.execute("SELECT path FROM checkpoints").fetchall()
    connection.close()
    assert path == f"{url}/{run_id}/{run_id}-v000000"
    assert not other.cache().exists()
    found = verify(fetch(path, other.cache()))
    assert found == verify(one.cache() / f"{run_id}-v000000")


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_run_that_is_given_a_url_later_uploads_its_first_checkpoint(
    tmp_path: Path, is_moved: bool
) -> None:
    """The model's files may have changed since; those of the checkpoint count."""
    url, home = f"file://{tmp_path}/far", tmp_path / "home"
    shutil.copytree(ROOT / "models" / "tiny", tmp_path / "model")

    def config(home: Path, url: str = "") -> Config:
        run, model = Run(home=str(home), checkpoints=url), Model(path=str(tmp_path / "model"))
        return Config(tasks={"dbbench": Task()}, run=run, model=model)

    run_id = begin(config(home))
    (first,) = home.glob("checkpoints/*/*-v000000")
    files = verify(first).files
    changed = tmp_path / "model" / "generation_config.json"
    changed.unlink()  # the checkpoint's is a hard link
    changed.write_text("{}")
    if is_moved:
        home = home.rename(tmp_path / "moved")
    later = config(home, url)
    assert begin(later) == begin(later) == run_id
    with closing(sqlite3.connect(home / "store.db")) as connection:
        [(path,)] = connection.execute("SELECT path FROM checkpoints")
    assert path == f"{url}/{run_id}/{run_id}-v000000"
    assert verify(fetch(path, tmp_path / "another cache")).files == files


def test_a_url_of_no_protocol_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    model = Model(path=str(ROOT / "models" / "tiny"))
    run = Run(home=str(tmp_path / "home"), checkpoints="nowhere://far")
    with pytest.raises(ConfigError, match=r"run\.checkpoints: nowhere://far"):
        begin(Config(tasks={"dbbench": Task()}, run=run, model=model))
    assert not (tmp_path / "home").exists()
