"""`agentrl policy` with vLLM for real, on the CPU: many adapters at once, weights in place.

One vLLM serves each half of the file, one test after the other in the order they are written.
"""

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_scrape import metrics_with_values, panel_metrics, read_dashboard, scrape
from running import eventually
from vllm_run import Exchange, VllmRun, vllm_run

from agentrl.workers.policies.client import CheckpointNotServed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
ADAPTERS = 4
TRACKS = ["current", *(f"lagged({lag})" for lag in range(1, ADAPTERS + 1))]
EXACT = 1e-4
SAMPLED = "vllm:generation_tokens_total{"


def sampled_tokens(port: int) -> float:
    """How many tokens vLLM says that it has sampled; 0 where a scrape came without it."""
    lines = [line for line in scrape(port).splitlines() if line.startswith(SAMPLED)]
    return float(lines[0].split()[-1]) if lines else 0.0


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory, vllm_python: Path) -> Iterator[VllmRun]:
    """Versions 0 … 4, of which the last four are adapters, all on one vLLM."""
    with vllm_run(tmp_path_factory.mktemp("pool"), vllm_python, 4, TRACKS) as run:
        for seed in range(ADAPTERS):
            run.publish(seed, 4)
        run.await_live(dict(zip(TRACKS, reversed(run.names), strict=True)))
        yield run


def test_every_request_of_a_mixed_load_has_its_own_policys_log_probabilities(
    pool: VllmRun,
) -> None:
    policies = list(pool.live().values())
    asked = pool.ask_many(range(80), policies)
    assert len({each.policy.checkpoint_id for each in asked}) == ADAPTERS + 1
    assert max(pool.off(each) for each in asked) <= EXACT
    strangers = [pool.off(each, pool.names[0]) for each in asked if each.policy.version]
    assert min(strangers) > EXACT  # it would have been seen


def test_temperature_0_takes_the_likeliest_token_and_tells_of_temperature_1(
    pool: VllmRun,
) -> None:
    source = random.Random(1)
    policies = list(pool.live().values())
    greedy = [pool.ask(policies[number % 5], source) for number in range(20)]
    greedy = [each for each in greedy if each.ask.temperature == 0.0]
    assert greedy
    assert max(pool.off(each) for each in greedy) <= EXACT


def test_what_it_counts_is_scraped_and_is_what_the_dashboard_asks_for(pool: VllmRun) -> None:
    pool.ask(pool.live()["current"], random.Random(5))
    text = scrape(pool.port)
    assert panel_metrics(read_dashboard(), r"\bvllm:[a-z_]+") <= metrics_with_values(text)
    line = next(x for x in text.splitlines() if x.startswith(SAMPLED))
    assert 'process="policy",run="v"' in line
    assert sampled_tokens(pool.port) > 0
    assert "agentrl_served_version{" in text


def test_an_adapter_that_says_something_else_is_refused_and_the_old_one_stays(
    pool: VllmRun,
) -> None:
    before = pool.live()["current"]
    ended = threading.Event()

    def load(seed: int) -> None:  # a probe shares its batch with requests
        source = random.Random(seed)
        while not ended.is_set():
            pool.ask(before, source)

    with ThreadPoolExecutor(4) as threads:
        loads = [threads.submit(load, seed) for seed in range(4)]
        try:
            assert "the probe text is 0.05" in pool.refused(pool.publish(99, 4, "lie"))
        finally:
            ended.set()
    assert [each.exception() for each in loads] == [None] * 4
    current = pool.live()["current"]
    assert current.checkpoint_id == before.checkpoint_id
    assert pool.off(pool.ask(current, random.Random(2))) <= EXACT


def test_a_killed_vllm_comes_back_with_all_of_them(pool: VllmRun) -> None:
    before = {track: policy.checkpoint_id for track, policy in pool.live().items()}
    policy = pool.live()["current"]
    os.kill(min(pool.vllm()), signal.SIGKILL)
    eventually(lambda: pool.live() == {}, within_s=60, text=pool.output.read_text)
    with pytest.raises(CheckpointNotServed):
        pool.ask(policy, random.Random(3))
    pool.await_live(before)
    asked = pool.ask_many(range(20), list(pool.live().values()))
    assert max(pool.off(each) for each in asked) <= EXACT


def test_sigterm_ends_server_and_vllm_in_time(pool: VllmRun) -> None:
    pool.process.send_signal(signal.SIGTERM)
    assert pool.process.wait(60) == 0
    assert pool.vllm() == []
    assert pool.live() == {}


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory, vllm_python: Path) -> Iterator[VllmRun]:
    """Version 0, whole, exchanged in place."""
    with vllm_run(tmp_path_factory.mktemp("single"), vllm_python, 0, ["current"]) as run:
        run.await_live({"current": run.names[0]})
        yield run


class Load:
    """Requests of eight threads to whatever is live, two of them longer than a swap waits."""

    def __init__(self, run: VllmRun) -> None:
        self.run = run
        self.asked: list[Exchange] = []
        self.ended = threading.Event()
        self._long: dict[int, str] = {}  # by thread: the policy it asks now
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(8)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for thread in self._threads:
            thread.join(200)

    def await_answer(self, name: str) -> None:
        def answered() -> bool:
            return any(each.policy.checkpoint_id == name for each in list(self.asked))

        self._await(answered)

    def await_long(self, name: str) -> None:
        """Until both long requests are of a policy, and well on their way."""
        self._await(lambda: list(self._long.values()) == [name, name])
        enough = sampled_tokens(self.run.port) + 200
        self._await(lambda: sampled_tokens(self.run.port) >= enough)

    def _ask(self, seed: int) -> None:
        source, long = random.Random(seed), seed < 2
        while not self.ended.is_set():
            with suppress(CheckpointNotServed):
                for policy in self.run.live().values():
                    if long:
                        self._long[seed] = policy.checkpoint_id
                    most = 1000 if long else 40
                    self.asked.append(self.run.ask(policy, source, most, whole=long))
            self.ended.wait(0.02)

    def _await(self, what: Callable[[], bool]) -> None:
        eventually(what, within_s=180, text=self.run.output.read_text)


def test_weights_are_exchanged_under_load_and_no_answer_mixes_versions(single: VllmRun) -> None:
    with Load(single) as load:
        for seed in range(3):
            load.await_answer(single.names[-1])
            load.await_long(single.names[-1])
            single.await_live({"current": single.publish(seed, 0)})
        load.await_answer(single.names[-1])
    asked = load.asked
    assert {each.policy.checkpoint_id for each in asked} == set(single.names)
    parts = [each for each in asked if each.answer.finish_reason == "abort"]
    assert parts
    assert max(single.off(each) for each in asked) <= EXACT
    first = [each for each in asked if each.policy.version == 0 and len(each.answer.token_ids) > 4]
    assert min(single.off(each, single.names[1]) for each in first) > EXACT


def test_a_torn_and_a_lying_checkpoint_are_refused_and_the_old_one_serves(single: VllmRun) -> None:
    good = single.names[-1]
    assert "SHA-256" in single.refused(single.publish(11, 0, "torn"))
    assert single.live()["current"].checkpoint_id == good
    assert "the probe text is 0.05" in single.refused(single.publish(12, 0, "lie"))
    single.await_live({"current": good})
    asked = single.ask_many(range(10), list(single.live().values()))
    assert max(single.off(each) for each in asked) <= EXACT


def test_a_load_that_fails_half_way_leaves_the_old_weights_without_a_restart(
    single: VllmRun,
) -> None:
    good = single.live()["current"].checkpoint_id
    processes = single.vllm()
    assert "could not be loaded: vLLM, /collective_rpc: 500" in single.refused(
        single.publish(13, 0, "half")
    )
    single.await_live({"current": good}, within_s=60)
    assert single.vllm() == processes
    asked = single.ask_many(range(10), list(single.live().values()))
    assert max(single.off(each) for each in asked) <= EXACT


def test_a_killed_policy_server_leaves_no_vllm(single: VllmRun) -> None:
    assert single.vllm()
    single.process.kill()
    single.process.wait()
    eventually(lambda: single.vllm() == [], within_s=60, text=lambda: str(single.vllm()))
