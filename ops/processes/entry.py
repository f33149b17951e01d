"""The entry point of every process: logging, signals, and its role."""

import ctypes
import gc
import importlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import FrameType

from agentrl.checkpoints.checkpoint_store import WeightsAway
from agentrl.core import config_loading, logging
from agentrl.core.config.config import Config
from agentrl.core.errors import (
    AgentRLError,
    BrokerError,
    BrokerUnavailable,
    StoreError,
    StoreUnavailable,
    with_hint,
)
from agentrl.core.processes.process import SUPERVISOR, TERMINATED
from agentrl.core.processes.rank_place import find_rank_place
from agentrl.core.telemetry import exposition, otlp
from agentrl.core.types import RUN_OVER
from agentrl.db.store import open_store
from agentrl.db.transitions import runs
from agentrl.db.transitions.updates import TrainerReplaced
from agentrl.ops.models import hub
from agentrl.ops.processes.outage_reporter import report_outages
from agentrl.ops.runs.begin import RunOver, begin, require_queues
from agentrl.ops.supervisor.restarts import AWAY

PR_SET_PDEATHSIG = 1
NO_RUN = frozenset({"envs", "tracker"})  # they begin none, and need no model
STAY = frozenset({"worker", "recorder", "policy"})  # once the run is over: until a signal
CONSUME = frozenset({"worker", "recorder"})  # of those, who would make its queues again
ENDS = frozenset({"dispatcher", "trainer", "evaluator"})  # with the run
REST_S = 2.0  # between two looks at the run
REMIND_S = 60.0  # between two words of a replaced trainer: the other one may be gone

AWAY_ERRORS = (StoreUnavailable, BrokerUnavailable, WeightsAway)

log = logging.get_logger()


class ServiceAway(AgentRLError):
    """A service is unavailable. The supervisor restarts this process until it is available."""

    exit_code = AWAY


class RoleUnhealthy(AgentRLError):
    """A service refuses us although `up` reached it at the start. The supervisor tries again."""

    exit_code = 1  # the supervisor starts it again, and gives up after some tries


def run_role(role: str, path: Path, *, supervised: bool, name: str = "") -> None:
    """Run a role until its run is over or a signal arrives. `supervised`: end with the supervisor.

    If the run was already over, roles that end with it exit at once, and other roles stay, so that
    restarted containers come to rest. For roles that end with the run, exit code 0 means that the
    run is over; after a signal they exit with another code, so that a container engine restarts
    them.
    """
    config = config_loading.load(path)
    if role not in NO_RUN:
        config = hub.resolve_model(config)  # before signals are only noted: it may take long
    stop = stop_on_signals()
    if supervised:
        end_with_parent()
    logs = config.logs
    logging.configure(name or role, level=logs.level, form=logs.format, run=config.run.name)
    deepspeed = role == "trainer" and config.trainer.engine == "deepspeed"
    own = find_rank_place(os.environ) if deepspeed else None  # of a rank that a launcher started
    others = own is not None and own.rank  # who hear from the first of them whether it is over
    begins = not (supervised or role in NO_RUN or others)
    with report_outages(config, name or role) if begins else nullcontext():
        if begins and not _begin(config, role, stop):
            if own is not None:
                from agentrl.ops.processes.trainer import send_home

                send_home(config)
            return
        alone = not supervised and own is None
        if deepspeed and own is None:
            from agentrl.ops.processes.launch_ranks import launch_ranks

            code = launch_ranks(config, path, stop, supervised=supervised)
            replaced = alone and code == TrainerReplaced.exit_code
            if code and not replaced:
                sys.exit(code)
        else:
            work = _root(role, name)
            with _watch_process(config, role, name, first=own is None or not own.rank):
                replaced = _run_until_replaced(
                    partial(work, config, stop), stop, supervised=supervised, alone=alone
                )
        if replaced:
            with suppress(StoreUnavailable):  # told to stop
                _rest(config, stop)
        if alone and role in ENDS and stop.is_set():
            sys.exit(TERMINATED)
    if own is not None:  # all is closed; what libraries would still tidy up takes seconds
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _root(role: str, name: str) -> Callable[[Config, threading.Event], None]:
    """Return the composition root of a role. `name`: of a policy server."""
    run: Callable[..., None] = importlib.import_module(f"agentrl.ops.processes.{role}").run
    return partial(run, name=name) if name else run


def _begin(config: Config, role: str, stop: threading.Event) -> bool:
    """Begin the run; False if the run is over and the role has nothing to do."""
    try:
        if not _has_work(config, role, stop):
            return False
    except AWAY_ERRORS as error:
        if not stop.is_set():
            raise
        log.warning("Exited while a service was unavailable", error=str(error))
        return False
    if role == "dispatcher":
        _name_others(config)
    return True


def _has_work(config: Config, role: str, stop: threading.Event) -> bool:
    """Begin the run; return whether the role has work."""
    try:
        begin(config, stop=stop)
    except RunOver as error:
        if role not in STAY:
            text = f"{role}: {error}; there is nothing left to do"
            print(with_hint(text, error.hint), flush=True)
            return False
        if role not in CONSUME or require_queues(config, error.run_id, stop):
            return True
        log.warning("Run is over and its queues are deleted; waiting for a signal")
        stop.wait()
        return False
    return True


def _name_others(config: Config) -> None:
    """Warn about processes that only a supervisor would start."""
    if config.eval.every:
        log.warning("eval.every is set; start an evaluator, too", verb="evaluator")
    if config.trackers.use:
        log.warning("trackers.use is set; start the tracker process, too", verb="tracker")


def _run_until_replaced(
    work: Callable[[], None], stop: threading.Event, *, supervised: bool, alone: bool
) -> bool:
    """Run the role; return whether it was a trainer (`alone`) that another one replaced."""
    try:
        work()
    except TrainerReplaced:
        if not alone:
            raise
        return True
    except (StoreError, BrokerError, WeightsAway) as error:
        if stop.is_set() and isinstance(error, StoreUnavailable | BrokerError | WeightsAway):
            log.warning("Exited while a service was unavailable", error=str(error))
            return False
        if not supervised or error.exit_code != AgentRLError.exit_code:
            raise
        away = isinstance(error, StoreUnavailable | BrokerError)
        raise (ServiceAway if away else RoleUnhealthy)(str(error), hint=error.hint) from error
    return False


def _rest(config: Config, stop: threading.Event) -> None:
    """Wait, as a replaced trainer, until the run is over or `stop` is set.

    If it exited, a container engine would restart it, and the two would replace each other for
    ever.
    """
    gc.collect()  # the model
    warned_at = -math.inf
    with closing(open_store(config.store_url(), threads=1, stop=stop)) as store:
        while not stop.wait(REST_S):
            if time.monotonic() - warned_at > REMIND_S:
                log.warning("Replaced by another trainer; waiting for the run to end")
                warned_at = time.monotonic()
            run = store.ask(lambda session: runs.find_run(session, config.run.name))
            if run is None or run.state in RUN_OVER:
                return


@contextmanager
def _watch_process(config: Config, role: str, name: str, *, first: bool) -> Iterator[None]:
    """Serve metrics and traces of the role; of several ranks only the first."""
    run, process = config.run.name, f"{role}-{name}" if name else role
    with ExitStack() as stack:
        if first:
            stack.enter_context(exposition.serve_metrics(config.metrics, run, role, process))
            stack.enter_context(otlp.export_spans(config.tracing, run, role, process))
        yield


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM, SIGINT and, unless it is ignored (nohup), SIGHUP set."""
    stop = threading.Event()

    def set_stop(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, set_stop)
    return stop


def end_with_parent() -> None:
    """Ask Linux for SIGTERM when the supervisor dies, and end at once if it has already."""
    prctl: Callable[..., int] | None = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    parent = str(os.getppid())
    if os.environ.get(SUPERVISOR, parent) != parent:
        os.kill(os.getpid(), signal.SIGTERM)
