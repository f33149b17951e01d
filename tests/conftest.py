"""The services that tests meet: real ones, named by the environment (`.ci/services` starts them).

Without a service its tests are skipped with the reason; with REQUIRE_SERVICES=1 they fail.
"""

import os
import shutil
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker
import psycopg
import pytest
import structlog
from backends import DATABASES
from hypothesis import settings
from torch_device import require_test_device

from agentrl.db.admin import migrate
from agentrl.db.store import Store, open_store

if TYPE_CHECKING:
    from run_transitions import World

ROOT = Path(__file__).parents[1]


def pytest_configure(config: pytest.Config) -> None:
    """Let `make test` try the same examples each time; `make test-all` looks for new ones.

    No deadline: an example that takes long says more of the machine's load than of our code.
    """
    import_this_checkout()
    allow_ctrl_c()
    require_test_device()
    gate = "not slow" in config.option.markexpr
    settings.register_profile("agentrl", deadline=None, derandomize=gate)
    settings.load_profile("agentrl")


def import_this_checkout() -> None:
    """Give `src` to processes that tests start, too, and let no folder at the top be a module."""
    sys.path[:] = [each for each in sys.path if Path(each).resolve() != ROOT]
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), *inherited])


def allow_ctrl_c() -> None:
    """Let processes that tests start take SIGINT: a shell's background jobs inherit it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


MISSING = " is missing ("
"""Part of the reason of each test that was skipped because a service is missing."""
START = 'eval "$(.ci/services start /var/tmp/agentrl-services {})"'
"""The command that starts one service and exports its address (Debian, as root)."""


def _service(variable: str, name: str, command: str, address: str | None = None) -> str:
    """`address`, else what `variable` holds; without it the test is skipped or, in CI, fails."""
    address = address or os.environ.get(variable)
    if address:
        return address
    reason = f"{name}{MISSING}{variable} is not set); start it with: {command}"
    if os.environ.get("REQUIRE_SERVICES") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Give the skips of one missing service one place, so that pytest lists them on one line."""
    if report.skipped and isinstance(report.longrepr, tuple) and MISSING in report.longrepr[2]:
        report.longrepr = ("services", None, report.longrepr[2].removeprefix("Skipped: "))


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    """Faults that a failed test leaves are its own."""
    yield
    if "faulty_filesystem" in sys.modules:
        sys.modules["faulty_filesystem"].FaultyFileSystem.faults.clear()
        sys.modules["faulty_filesystem"].FaultyFileSystem.removing.clear()


@pytest.fixture(autouse=True)
def _logs() -> Iterator[None]:
    """A verb run inside a test configures logs for it alone."""
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """SQLAlchemy URL of a fresh, empty database."""
    with _database() as url:
        yield url


@pytest.fixture
def amqp_url() -> str:
    """A shared RabbitMQ: use run ids of your own and `delete_run` them."""
    return _service("AGENTRL_TEST_AMQP", "RabbitMQ", START.format("rabbitmq"))


@pytest.fixture
def mariadb_url() -> str:
    """A shared MariaDB server, as its root."""
    return _service("AGENTRL_TEST_MARIADB", "MariaDB", START.format("mariadb"))


@pytest.fixture
def docker_host() -> str:
    """Address of a Docker engine that belongs to the tests."""
    return _service("AGENTRL_TEST_DOCKER", "Docker", START.format("docker"))


@pytest.fixture
def docker_client(docker_host: str) -> Iterator[docker.DockerClient]:
    client = docker.DockerClient(base_url=docker_host, timeout=60)
    yield client
    client.close()


@pytest.fixture
def sandbox_image() -> str:
    """An image with python3 and a shell."""
    return _service("AGENTRL_TEST_IMAGE", "Docker's base image", START.format("docker"))


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file to copy."""
    path = tmp_path_factory.mktemp("template") / "store.db"
    with closing(open_store(f"sqlite:///{path}")) as store:
        migrate.upgrade(store)
    return path


@pytest.fixture(scope="session")
def migrated_postgres() -> Iterator[str]:
    """SQLAlchemy URL of a migrated database; who uses it leaves it empty."""
    with _database() as url:
        with closing(open_store(url)) as store:
            migrate.upgrade(store)
        yield url


@pytest.fixture(params=DATABASES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store at the current schema, on each database in turn."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("migrated_sqlite"), tmp_path / "store.db")
        with closing(open_store(f"sqlite:///{tmp_path / 'store.db'}")) as opened:
            yield opened
        return
    url = request.getfixturevalue("migrated_postgres")
    try:
        with closing(open_store(url)) as opened:
            yield opened
    finally:
        _empty(url)


@pytest.fixture
def world(store: Store) -> "World":
    """A run that has begun, on each database in turn."""
    from run_transitions import World

    return World.begin(store)


def _empty(url: str) -> None:
    """Much faster than a new database. Whoever is still connected is cut off."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        tables = connection.execute(
            "SELECT quote_ident(relname) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
            " AND relkind IN ('r', 'p') AND NOT relispartition AND relname <> 'alembic_version'"
        ).fetchall()
        connection.execute(f"TRUNCATE {', '.join(name for (name,) in tables)} RESTART IDENTITY")


@contextmanager
def _database() -> Iterator[str]:
    """SQLAlchemy URL of a new, empty database, dropped at the end."""
    server = _service("AGENTRL_TEST_POSTGRES", "Postgres", START.format("postgres"))
    name = f"test_{uuid.uuid4().hex}"
    administer = server.replace("postgresql+psycopg://", "postgresql://")
    with psycopg.connect(administer, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        try:
            yield f"{server.rpartition('/')[0]}/{name}"
        finally:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture(scope="session")
def oracles() -> Path:
    """A Python that has other people's programs to compare with."""
    python = _service("AGENTRL_ORACLES", "The comparison environment", "make test-oracles")
    return Path(python).absolute()


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """A Python that has vLLM."""
    command = "make vllm; export AGENTRL_TEST_VLLM=$PWD/.venv-vllm/bin/python"
    return Path(_service("AGENTRL_TEST_VLLM", "vLLM", command)).absolute()


@pytest.fixture(scope="session")
def openenv_python() -> Path:
    """A Python that has OpenEnv's package."""
    python = Path(__file__).parents[1] / ".venv-openenv" / "bin" / "python"
    found = str(python) if python.exists() else None
    return Path(_service("AGENTRL_TEST_OPENENV", "OpenEnv", "make openenv", found)).absolute()


@pytest.fixture(scope="session")
def harbor_python() -> Path:
    """A Python that has Harbor's package."""
    python = Path(__file__).parents[1] / ".venv-harbor" / "bin" / "python"
    found = str(python) if python.exists() else None
    return Path(_service("AGENTRL_TEST_HARBOR", "Harbor", "make harbor", found)).absolute()


@pytest.fixture(scope="session")
def verifiers_python() -> Path:
    """A Python that has verifiers."""
    python = Path(__file__).parents[1] / ".venv-verifiers" / "bin" / "python"
    found = str(python) if python.exists() else None
    return Path(_service("AGENTRL_TEST_VERIFIERS", "verifiers", "make verifiers", found)).absolute()


@pytest.fixture(scope="session")
def weave_python() -> Path:
    """A Python that has Weave's package."""
    python = Path(__file__).parents[1] / ".venv-weave" / "bin" / "python"
    found = str(python) if python.exists() else None
    return Path(_service("AGENTRL_TEST_WEAVE", "Weave", "make weave", found)).absolute()


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct in bfloat16, a real pretrained model."""
    folder = Path(__file__).parents[1] / "models" / "smollm2"
    found = str(folder) if folder.is_dir() else None
    return Path(_service("AGENTRL_TEST_SMOLLM2", "SmolLM2", "make models/smollm2", found))


@pytest.fixture
def signals() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP are given back."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


SMALL = """
[model]
path = "models/tiny"
call_style = "plain"
[tasks.dbbench.options]
style = "compact"
[tasks.alfworld]
max_turns = 8
[tasks.alfworld.options]
style = "compact"
[dispatch]
groups_per_update = 4
group_size = 4
[sampling]
max_step_tokens = 32
max_tokens = 512
[[policy]]
name = "policy"
tracks = ["current", "lagged(1)"]
[trainer.lora]
rank = 4
"""


@pytest.fixture
def small_recipe() -> Callable[[Path], Any]:
    """Makes one in a folder: two updates of a policy that clones experts for three steps."""

    from agentrl.ops.quickstart.recipes import Recipe, Size  # imports torch

    def made(folder: Path) -> Recipe:
        file = folder / "small.toml"
        file.write_text(SMALL)
        size = Size(updates=2, items=6, clones=3, episodes=8)
        return Recipe("small", file, "tiny", full=size, fast=size, ready_s=600.0, stall_s=600.0)

    return made
