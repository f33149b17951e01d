"""The trainer process: loads the run's first checkpoint into an engine and runs the training loop.

engine     processes
torch      this one                                     train(…, TorchLearner)
deepspeed  ranks; only the first opens the run          train(…, Rank0Coordinator) · follow · …
"""

import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.broker.events import EventPublisher
from agentrl.broker.queue_names import trainer_queue
from agentrl.checkpoints import checkpoint_store
from agentrl.checkpoints.checkpoint_store import TransferLimits
from agentrl.core.config.config import Config
from agentrl.core.errors import ConfigError
from agentrl.core.processes.process import lower_priority
from agentrl.core.processes.rank_place import find_rank_place
from agentrl.core.retry import FOREVER
from agentrl.db.registry import checkpoints
from agentrl.ops.runs.begin import OpenRun, open_checkpoint_store, open_run
from agentrl.ops.runs.teachers import registered_policies, resolve_teachers, with_teachers
from agentrl.trainer.algorithm.presets import Settings, batch_groups, inbox_bytes, resolve_settings
from agentrl.trainer.group_selection import InboxBounds
from agentrl.trainer.ledger_config import LedgerConfig

if TYPE_CHECKING:
    from agentrl.trainer.distillation import ResolvedTeacher
    from agentrl.trainer.engines.deepspeed_learner import DeepSpeedLearner
    from agentrl.trainer.engines.learner import Hardware, Learner
    from agentrl.trainer.engines.ranks import Ranks

CPU_NICE = 5  # between a policy server's 0 and the evaluator's 10
OVER = b"\0"  # told to ranks in place of a path


def run(config: Config, stop: threading.Event) -> None:
    """Train until the run is over or `stop`."""
    from agentrl.trainer.engines.learner import Hardware
    from agentrl.trainer.engines.torch_learner import TorchLearner

    if nice := choose_nice(config):
        lower_priority(nice)
    if config.trainer.engine == "deepspeed":
        _rank(config, stop)
        return
    with open_run(config, stop) as here:
        path = _fetch_checkpoint(_first(here), config, stop)
        hardware = Hardware.from_config(config.model, config.trainer)
        teachers = resolve_teachers(config, here.store)
        learner = TorchLearner(path, resolve_settings(config.trainer), hardware)
        policies = registered_policies(config, here.store, here.run_id, stop)
        learner_with_teachers = with_teachers(learner, teachers, path, config, hardware, policies)
        _train(config, here, learner_with_teachers, teachers, stop)


def choose_nice(config: Config) -> int:
    """Return the niceness of the trainer's processes."""
    if config.trainer.nice is not None:
        return config.trainer.nice
    servers = config.policy_servers()
    has_threaded_server = any(each.engine == "local" and each.threads > 1 for each in servers)
    return CPU_NICE if has_threaded_server and config.model.device == "cpu" else 0


def bounds(config: Config, filled: Settings) -> InboxBounds:
    """Return the limits of a batch."""
    fewest, most = batch_groups(config.trainer, config.dispatch)
    return InboxBounds(
        min_groups=fewest,
        max_groups=most,
        max_staleness=config.dispatch.max_staleness,
        max_lag=config.dispatch.max_lag,
        abnormal_reward=filled.abnormal_reward,
        max_attempts=config.dispatch.max_attempts,
        held_bytes=inbox_bytes(config.trainer, config.dispatch, config.sampling),
        taught_tasks=config.taught_tasks(),
        keep_share=filled.keep_share,
    )


def ledger_config(config: Config, teachers: Sequence["ResolvedTeacher"] = ()) -> LedgerConfig:
    """Return the ledger's part of the configuration. Checkpoints of `teachers` are kept, too."""
    fewest, _ = batch_groups(config.trainer, config.dispatch)
    return LedgerConfig(
        run=config.run,
        tasks=list(config.tasks),
        tracks=[
            *(track for server in config.policy_servers() for track in server.tracks),
            *(f"pinned({each.checkpoint})" for each in teachers if each.is_stored),
        ],
        alarms=config.alarms,
        min_groups=fewest,
        max_grad_norm=config.trainer.max_grad_norm,
        snapshot_every=config.trainer.snapshot_every,
        keep_checkpoints=config.trainer.keep_checkpoints,
    )


def send_home(config: Config) -> None:
    """Stop the other ranks of a finished run; they cannot read the database."""
    with _join_ranks(config) as ranks:
        ranks.broadcast(OVER)


def _join_ranks(config: Config) -> AbstractContextManager["Ranks"]:
    """Connect the ranks. Raises RankLost, ConfigError."""
    from agentrl.trainer.engines.ranks import join_ranks

    own = find_rank_place(os.environ)
    if own is None:
        raise ConfigError(
            "RANK and WORLD_SIZE are not set", hint="start all ranks with `agentrl trainer CONFIG`"
        )
    return join_ranks(own, config.trainer.deepspeed.timeout_s, config.model.device)


def _rank(config: Config, stop: threading.Event) -> None:
    """Run one rank. A signal stops the first, which stops the others."""
    from agentrl.trainer.engines.rank0 import Rank0Coordinator, follow_rank0

    with _join_ranks(config) as ranks:
        if ranks.rank:
            message = ranks.receive()
            if message != OVER:
                follow_rank0(_part(config, message.decode(), ranks, stop), ranks)
            return
        with open_run(config, stop) as here:
            first = _first(here)
            teachers = resolve_teachers(config, here.store)
            ranks.broadcast(first.encode())
            with closing(
                Rank0Coordinator(
                    _part(config, first, ranks, stop), ranks, config.trainer.optimizer_steps
                )
            ) as learner:
                path, hardware = _fetch_checkpoint(first, config, stop), _hardware(config, ranks)
                policies = registered_policies(config, here.store, here.run_id, stop)
                learner_with_teachers = with_teachers(
                    learner, teachers, path, config, hardware, policies
                )
                _train(config, here, learner_with_teachers, teachers, stop)


def _part(config: Config, first: str, ranks: "Ranks", stop: threading.Event) -> "DeepSpeedLearner":
    """`first`: path in the row of the run's first checkpoint."""
    from agentrl.trainer.engines.deepspeed_learner import DeepSpeedLearner

    path, hardware = _fetch_checkpoint(first, config, stop), _hardware(config, ranks)
    return DeepSpeedLearner(
        path, resolve_settings(config.trainer), hardware, config.trainer.deepspeed, ranks
    )


def _hardware(config: Config, ranks: "Ranks") -> "Hardware":
    """Return the hardware of this rank."""
    from agentrl.trainer.engines.learner import Hardware

    kind = config.model.device.partition(":")[0]
    device = kind if kind == "cpu" else f"{kind}:{ranks.local}"
    return Hardware.from_config(config.model, config.trainer, device)


def _first(run: OpenRun) -> str:
    return run.store.ask(lambda session: checkpoints.live_checkpoints(session, run.run_id)[0].path)


def _fetch_checkpoint(first: str, config: Config, stop: threading.Event) -> Path:
    """Return the first checkpoint's directory; wait for an unavailable storage until `stop`."""
    patient = TransferLimits(fetch_s=FOREVER)
    return checkpoint_store.make_patience(stop).call(
        lambda: checkpoint_store.fetch(first, config.cache(), stop, patient)
    )


def _train(
    config: Config,
    run: OpenRun,
    learner: "Learner",
    teachers: Sequence["ResolvedTeacher"],
    stop: threading.Event,
) -> None:
    from agentrl.trainer.inbox import Inbox
    from agentrl.trainer.lease import trainer_lease
    from agentrl.trainer.ledger import Ledger
    from agentrl.trainer.loop import train
    from agentrl.trainer.machine_use import MachineUse

    filled = resolve_settings(config.trainer)
    announcer = EventPublisher(run.broker, run.run_id)
    consumer = run.broker.consumer(trainer_queue(run.run_id))
    inbox = Inbox(run.store, consumer, run.run_id, bounds(config, filled))
    kept_in = open_checkpoint_store(config, run.run_id, stop)
    machine = MachineUse()
    ledger = Ledger(
        ledger_config(config, teachers),
        run.run_id,
        run.store,
        announcer.announce,
        kept_in,
        machine=machine.read,
    )
    try:
        with trainer_lease(run.store, run.run_id, lambda: ledger.epoch):
            train(inbox, learner, ledger, filled, stop)
    finally:
        machine.close()
        consumer.close()
        announcer.close()
