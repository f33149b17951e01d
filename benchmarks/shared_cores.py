"""Speed of the local engine and the trainer on the same cores, with and without our settings.

    python benchmarks/shared_cores.py [--model models/smollm2] [--dtype bfloat16] [--threads 2]
        [--trainer-threads 2] [--concurrent 32] [--seconds 60]

Two processes with as many threads each as there are cores: one plays episodes with the local
engine, the other makes updates. Each is measured alone and beside the other.

plain_*  with OpenMP's own waits of threads
ours_*   with those of core/processes/torch_environment.py
nice_*   the same, and the trainer has the niceness that it has on a CPU by default

*_engine, *_trainer   speed beside the other over the speed alone
*_sum                 of both: 1 if each has half of its speed alone; more, if one uses what the
                      other leaves
ours_vs_plain, nice_vs_ours   the sums' ratios
alone_engine, alone_trainer   speed alone, ours over plain: what our waits cost
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path

from agentrl.core.processes.process import lower_priority
from agentrl.core.processes.torch_environment import KERNEL_CACHES, THREAD_WAITS
from agentrl.ops.processes.trainer import CPU_NICE

START_S = 15.0  # for both processes to load
ROLES = ("engine", "trainer")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=Path("models/smollm2"))
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--trainer-threads", type=int, default=os.cpu_count())
    parser.add_argument("--concurrent", type=int, default=32, help="episodes at once")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--role", choices=ROLES, help=argparse.SUPPRESS)
    parser.add_argument("--begin", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--nice", type=int, default=0, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.role:
        print(run_role(chosen))
        return
    plain = {name: value for name, value in os.environ.items() if name not in THREAD_WAITS}
    environments = {"plain": plain | KERNEL_CACHES, "ours": plain | KERNEL_CACHES | THREAD_WAITS}
    alone = {
        (arm, role): measure((role,), environment, chosen)[role]
        for role in ROLES
        for arm, environment in environments.items()
    }
    beside = {arm: measure(ROLES, environment, chosen) for arm, environment in environments.items()}
    beside["nice"] = measure(ROLES, environments["ours"], chosen, CPU_NICE)
    found = {}
    for arm, speeds in beside.items():
        for role in ROLES:
            found[f"{arm}_{role}"] = (
                speeds[role] / alone["plain" if arm == "plain" else "ours", role]
            )
        found[f"{arm}_sum"] = sum(found[f"{arm}_{role}"] for role in ROLES)
    found["ours_vs_plain"] = found["ours_sum"] / found["plain_sum"]
    found["nice_vs_ours"] = found["nice_sum"] / found["ours_sum"]
    for role in ROLES:
        found[f"alone_{role}"] = alone["ours", role] / alone["plain", role]
    found = {name: round(value, 3) for name, value in found.items()}
    print(json.dumps(found))


def measure(
    roles: tuple[str, ...], environment: dict[str, str], chosen: argparse.Namespace, nice: int = 0
) -> dict[str, float]:
    """Return the speed of each role while all of them run, each in a session of its own.

    `nice`: of the trainer.
    """
    begin = time.time() + START_S
    options = [
        *("--model", str(chosen.model), "--dtype", chosen.dtype, "--threads", str(chosen.threads)),
        *("--concurrent", str(chosen.concurrent), "--seconds", str(chosen.seconds)),
        *("--trainer-threads", str(chosen.trainer_threads)),
        *("--begin", str(begin), "--nice", str(nice)),
    ]
    children = {
        role: subprocess.Popen(
            [sys.executable, __file__, *options, "--role", role],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        for role in roles
    }
    found = {
        role: float(child.communicate()[0].splitlines()[-1]) for role, child in children.items()
    }
    print(roles, found, flush=True)
    return found


def run_role(chosen: argparse.Namespace) -> float:
    """Return the tokens a second of one role, counted from `begin` for `seconds`."""
    import torch

    if chosen.role == "engine":
        torch.set_num_threads(chosen.threads)
        return engine_speed(chosen)
    torch.set_num_threads(chosen.trainer_threads)
    if chosen.nice:
        lower_priority(chosen.nice)
    return trainer_speed(chosen)


def engine_speed(chosen: argparse.Namespace) -> float:
    """Play episodes until the end; return the sampled tokens a second."""
    from engine import episodes
    from transformers import AutoConfig

    from agentrl.serving.engine_api import Completion, Request
    from agentrl.serving.local.engine import LocalEngine

    engine, sampled = LocalEngine("cpu", chosen.dtype), 0
    engine.load("policy", chosen.model)
    end = chosen.begin + chosen.seconds

    def count(future: Future[Completion]) -> None:
        nonlocal sampled
        if chosen.begin <= time.time() <= end:
            sampled += len(future.result().token_ids)

    class Counted:
        def submit(self, request: Request) -> Future[Completion]:
            future = engine.submit(request)
            future.add_done_callback(count)
            return future

    vocabulary = AutoConfig.from_pretrained(chosen.model).vocab_size
    while time.time() < end:
        episodes(Counted(), vocabulary, chosen.concurrent)
    engine.close()
    return sampled / float(chosen.seconds)


def trainer_speed(chosen: argparse.Namespace) -> float:
    """Make updates until the end; return the tokens a second of those that ended in time."""
    from helpers.random_models import ragged_batch

    from agentrl.core.config.sections.training import Trainer
    from agentrl.trainer.algorithm.presets import resolve_settings
    from agentrl.trainer.engines.learner import Hardware
    from agentrl.trainer.engines.torch_learner import TorchLearner

    settings = resolve_settings(Trainer())
    batch = ragged_batch(settings, 1)
    learner = TorchLearner(
        chosen.model, settings, Hardware("cpu", chosen.dtype, chosen.trainer_threads)
    )
    durations = []
    while (began := time.time()) < chosen.begin + chosen.seconds:
        learner.update(batch)
        if time.time() >= chosen.begin:
            durations.append(time.time() - began)
    return batch.tokens.size * len(durations) / sum(durations)


if __name__ == "__main__":
    main()
