"""`agentrl replay --policy`: another policy continues a recorded episode from a step.

target ─▶ served here ─┐
stored body ─▶ Tape up to the step ─▶ EpisodeLoop ─▶ the rest, sampled anew, so often as asked
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import fmean, stdev

import msgspec

from agentrl.broker.messages import EpisodeFinished, encode
from agentrl.checkpoints import manifest
from agentrl.core.config import Config
from agentrl.core.errors import ConfigError, EnvironmentFailure
from agentrl.core.statistics import interval
from agentrl.core.trajectory import StepRecord, Trajectory
from agentrl.core.types import SOLVED
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.db.store import open_store
from agentrl.db.transitions.recordings import Recording
from agentrl.ops.configuration.configs import check_model
from agentrl.ops.evaluation.checkpoint_lease import held
from agentrl.ops.evaluation.server import served
from agentrl.ops.evaluation.target import Target, resolve
from agentrl.ops.replay.command import LOOSE
from agentrl.ops.replay.recorded_episode import Successor, Tape
from agentrl.ops.replay.replayer import Replayer, opened, recorded, replaying
from agentrl.ops.tables import console, plain

SHOWN = 60  # characters of a call or an answer in a table


@dataclass(frozen=True, slots=True)
class Wish:
    """Options of a continuation. `policy`: as for `agentrl eval`. `step`: the first sampled one.

    `temperature`: None: as configured; 0: greedy. `out`: a file for the encoded trajectory.
    """

    policy: str
    step: int
    temperature: float | None = None
    repeats: int = 1
    out: Path | None = None


def go_on(path: Path, episode_id: str, wish: Wish, *, as_json: bool) -> None:
    """Continue the episode and print it; only the requested file is written.

    Raises StoreError, MessageError, ConfigError, ItemError, PolicyError, and EnvironmentFailure if
    the fresh environment does not reach the recorded state.
    """
    with opened(path) as (config, store):
        recording, body = recorded(store, episode_id)
        if not 0 <= wish.step < len(body.steps):
            last = len(body.steps) - 1
            raise ConfigError(f"--from-step {wish.step}: the episode has the steps 0 to {last}")
        target = resolve(wish.policy, config)
        own = _for(config, target)
        with (
            _held(config, target),
            served(own, target) as policy,
            replaying(config) as replayer,
        ):
            found = _continued(replayer, recording, body, policy, wish)
    if wish.out is not None:
        wish.out.write_bytes(encode(EpisodeFinished(trajectory=found[0])))
    told = described(body, found, wish, target.checkpoint_id)
    if as_json:
        print(msgspec.json.encode(told).decode())
    else:
        _show(body, found, wish, told)


@contextmanager
def _held(config: Config, target: Target) -> Iterator[None]:
    """Keep retention from deleting a checkpoint of the run; other targets need no lease."""
    if target.run_id is None:
        yield
        return
    with closing(open_store(config.store_url())) as store, held(store, target):
        yield


def described(
    body: Trajectory, found: Sequence[Trajectory], wish: Wish, checkpoint_id: str
) -> Mapping[str, object]:
    """Return the result as a JSON object.

    `reward_low`, `reward_high`: 95 % interval of the mean.
    """
    rewards = [each.reward for each in found]
    around = 1.96 * stdev(rewards) / len(rewards) ** 0.5 if len(rewards) > 1 else None
    mean = fmean(rewards)
    return {
        "episode_id": body.episode_id,
        "task": body.task,
        "item_id": body.item_id,
        "from_step": wish.step,
        "checkpoint_id": checkpoint_id,
        "temperature": found[0].steps[wish.step].temperature,
        "recorded": _end(body),
        "reward": mean,
        "reward_low": None if around is None else mean - around,
        "reward_high": None if around is None else mean + around,
        "success": fmean(each.score >= SOLVED for each in found),
        "continuations": [
            {**_end(each), "steps": [_step(each, step) for step in each.steps[wish.step :]]}
            for each in found
        ],
    }


def _for(config: Config, target: Target) -> Config:
    """Serve the target. Raises ConfigError if its tokenizer differs."""
    model = manifest.base_of(target.path) or target.path
    check_model(model, config.model)
    ours = Path(config.model.path) / "tokenizer.json"
    if (model / "tokenizer.json").read_bytes() != ours.read_bytes():
        raise ConfigError(
            f"{model} has another tokenizer than {config.model.path}, so it cannot read its tokens",
            hint="give a checkpoint of the same model, or external(NAME)",
        )
    section = msgspec.structs.replace(config.model, path=str(model))
    return msgspec.structs.replace(config, model=section, policy=[])


def _continued(
    replayer: Replayer, recording: Recording, body: Trajectory, policy: LivePolicy, wish: Wish
) -> Sequence[Trajectory]:
    limits = replayer.limits(recording)
    sampling, temperature = replayer.kit.sampling, wish.temperature
    if temperature is not None:
        sampling = msgspec.structs.replace(sampling, temperature=temperature)
    own = dataclasses.replace(replayer.kit, sampling=sampling)

    def one(repeat: int) -> Trajectory:
        successor = Successor(policy, replayer.kit.client)
        tape = Tape(body, own.template, successor, wish.step)
        name = f"{body.episode_id}+{wish.step}.{repeat}"
        played = replayer.play(tape, recording, own, limits, name)
        _refuse_other(tape, wish.step)
        steps = (*body.steps[: wish.step], *played.steps[wish.step :])
        return msgspec.structs.replace(played, steps=steps)

    with ThreadPoolExecutor(replayer.config.worker.concurrency) as pool:
        try:
            return list(pool.map(one, range(wish.repeats)))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _refuse_other(tape: Tape, step: int) -> None:
    """Raise if the replay did not reach the recorded state."""
    body = tape.recorded
    for each in tape.differences:
        if each.field == "done" or (each.field == "messages" and body.task not in LOOSE):
            raise EnvironmentFailure(
                f"episode {body.episode_id}: the environment differs before step {step}",
                hint=f"see the difference with `agentrl replay CONFIG {body.episode_id}`",
            )
    if not tape.succeeded:
        raise ConfigError(
            f"the limits of the configuration end episode {body.episode_id} before step {step}",
            hint="raise sampling.max_tokens or max_turns of the task",
        )


def _end(body: Trajectory) -> dict[str, object]:
    return {
        "status": body.status,
        "reward": body.reward,
        "score": body.score,
        "turns": body.turns,
        "tokens": len(body),
    }


def _step(body: Trajectory, step: StepRecord) -> Mapping[str, object]:
    used = body.policies[step.policy_index]
    return {
        "checkpoint_id": used.checkpoint_id,
        "version": used.version,
        "tokens": step.end - step.start,
        "logprob": float(body.behaviour()[step.start : step.end].sum()),
        "finish_reason": step.finish_reason,
        "call": step.call,
        "answer": step.answer,
    }


def _show(
    body: Trajectory, found: Sequence[Trajectory], wish: Wish, told: Mapping[str, object]
) -> None:
    print(f"{body.task} {body.item_id}, {told['checkpoint_id']} from step {wish.step}")
    if len(found) > 1:
        _show_rewards(found, told)
        return
    table = plain("step", "recorded", "answer", "now", "answer")
    for number, (then, now) in enumerate(zip_longest(body.steps, found[0].steps)):
        cells = ("=", "") if number < wish.step else _cells(now)
        table.add_row(str(number), *_cells(then), *cells)
    console().print(table)
    print(f"recorded: {_words(body)}\nnow:      {_words(found[0])}")


def _show_rewards(found: Sequence[Trajectory], told: Mapping[str, object]) -> None:
    table = plain("reward", "episodes", "statuses")
    for reward, count in sorted(Counter(each.reward for each in found).items()):
        statuses = Counter(each.status.value for each in found if each.reward == reward)
        words = ", ".join(f"{name} {n}" for name, n in sorted(statuses.items()))
        table.add_row(f"{reward:g}", str(count), words)
    console().print(table)
    solved = sum(each.score >= SOLVED for each in found)
    low, high = interval(solved, len(found))
    rewards = f"{told['reward']:.3f} ({told['reward_low']:.3f} to {told['reward_high']:.3f})"
    print(f"mean reward {rewards}, success {solved}/{len(found)} ({low:.1%} – {high:.1%})")


def _cells(step: StepRecord | None) -> tuple[str, str]:
    return ("", "") if step is None else (_short(step.call), _short(step.answer))


def _words(body: Trajectory) -> str:
    return f"{body.status}, reward {body.reward:g}, score {body.score:g}, {body.turns} turns"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 1]}…"
