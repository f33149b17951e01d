"""A program in the loop that trains: its tokens are those that were sent and sampled."""

import json
import random
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from agent_programs import Play
from policy_servers import CLAIMED, FixedPool, serve
from running import ROOT

from agentrl.core.config.sections import Sampling
from agentrl.core.trajectory import check
from agentrl.core.types import Status
from agentrl.db.registry.checkpoints import LivePolicy
from agentrl.serving.engine_api import ModelLimits as EngineLimits
from agentrl.serving.engine_api import Request
from agentrl.serving.scripted import ScriptedEngine
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.episode import EpisodeContext, EpisodeLimits, EpisodeLoop
from agentrl.workers.policies.client import PolicyClient
from agentrl.workers.policies.pool import Sampler

TALKS = """
messages, lengths = [user("?")], []
for turn in range(3):
    answer = json.loads(ask(messages)[1])
    usage = answer["usage"]
    reason = answer["choices"][0]["finish_reason"]
    lengths.append([usage["prompt_tokens"], usage["completion_tokens"], reason])
    messages += [answer["choices"][0]["message"], user("and " + item["id"])]
open(item["into"], "w").write(json.dumps([m.get("content") for m in messages] + lengths))
print("blue")
"""


def test_text_goes_to_a_program_and_tokens_to_the_trajectory(play: Play, tmp_path: Path) -> None:
    template = ChatTemplate.load(ROOT / "models" / "tiny")
    turns: list[tuple[list[int], list[int]]] = []

    def script(request: Request) -> Sequence[int]:
        source = random.Random(len(turns))
        tokens = [source.randrange(10, 500) for _ in range(6 + 10 * (len(turns) == 1))]
        tokens = [*tokens, *sorted(request.stop_ids)[:1]]
        turns.append((request.prompt, tokens[: request.max_tokens]))
        return tokens

    engine = ScriptedEngine(script, limits=EngineLimits(1024, 4096))
    environment = play(TALKS)
    with serve(engine, {"c": ("current", Path())}) as server, closing(PolicyClient()) as client:
        context = EpisodeContext(
            template=template,
            style="plain",
            stop_ids=sorted(template.stop_ids),
            sampling=Sampling(max_step_tokens=12, max_tokens=400),
            client=client,
            clock=time.time,
            stop=threading.Event(),
        )
        pool = FixedPool(LivePolicy("s", server.url, "current", "c", 0))
        sampler = Sampler(pool, context.sampling, "seed")
        body = EpisodeLoop(CLAIMED, "run", environment, sampler, context).run(
            EpisodeLimits(8, 60.0, 5.0)
        )
    check(body)
    assert (body.status, body.reward, body.score) == (Status.COMPLETED, 1.0, 0.5)
    tokens = body.tokens().tolist()
    assert [(tokens[: s.start], tokens[s.start : s.end]) for s in body.steps] == turns
    told = json.loads((tmp_path / "told.json").read_text())
    assert told[7:] == [[s.start, s.end - s.start, s.finish_reason] for s in body.steps]
    assert [each[2] for each in told[7:]] == ["stop", "length", "stop"]
    for text, (_, sampled) in zip(told[1:6:2], turns, strict=True):
        ended = sampled[-1] in template.stop_ids
        assert text == template.decode(sampled[:-1] if ended else sampled)
