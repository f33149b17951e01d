import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trajectories import finished, trajectories, trajectory

from agentrl.broker.messages import (
    CheckpointPublished,
    EpisodeFinished,
    Message,
    PoolChanged,
    RunEpisode,
    decode,
    encode,
)
from agentrl.core.errors import MessageError, MessageRefused
from agentrl.core.trajectory import BranchPoint, Judgement, Trajectory
from agentrl.core.trajectory_body import MAX_BYTES, check, decode_as_received

JUDGED_BEFORE = "19b6c20e5b15223f30059ffe0d1318fb93d4cdfc80058ff884014db4801b1416"
BEFORE = "be97c8cff1e99432307eab08c7bcee1846c0402b9bb2e7228d02248e84a3c46a"

published = st.builds(
    CheckpointPublished, run_id=st.text(), version=st.integers(0, 2**60), checkpoint_id=st.text()
)
changed = st.builds(PoolChanged, run_id=st.text())
command = st.builds(RunEpisode, run_id=st.text(), episode_id=st.text(), fence=st.integers(0, 2**60))
messages = st.one_of(
    published, changed, command, st.builds(EpisodeFinished, trajectory=trajectories)
)


def wire(content: object) -> bytes:
    return b"\x00" + msgspec.msgpack.encode(content)


@given(messages, st.sampled_from([0, 4096, 1 << 30]))
def test_every_message_survives_the_wire(message: Message, compress_above: int) -> None:
    assert decode(encode(message, compress_above=compress_above)) == message


@given(trajectories)
def test_a_body_has_one_hash_however_it_was_compressed(body: Trajectory) -> None:
    message = EpisodeFinished(trajectory=body)
    for compress_above in (0, 1 << 30):
        received = decode(encode(message, compress_above=compress_above))
        assert isinstance(received, EpisodeFinished)
        assert received.trajectory.sha256 == body.sha256


def test_a_body_without_rewards_of_steps_keeps_its_hash() -> None:
    recorded = "be97c8cff1e99432307eab08c7bcee1846c0402b9bb2e7228d02248e84a3c46a"
    assert trajectory().sha256 == recorded
    assert trajectory().step_rewards() == [0.0, 1.0]


def test_the_rewards_of_steps_travel_and_add_up_to_the_episodes() -> None:
    body = trajectory()
    first = msgspec.structs.replace(body.steps[0], reward=0.25)
    body = msgspec.structs.replace(body, steps=(first, *body.steps[1:]))
    received = decode(encode(EpisodeFinished(trajectory=body)))
    assert isinstance(received, EpisodeFinished)
    assert received.trajectory.step_rewards() == [0.25, 0.75]
    wrong = msgspec.structs.replace(first, reward=float("inf"))
    with pytest.raises(MessageError, match="the reward of a step or a branch is not finite"):
        check(msgspec.structs.replace(body, steps=(wrong, *body.steps[1:])))


def test_a_judgement_travels_with_its_episode_and_other_bodies_keep_their_hash() -> None:
    plain = trajectory()
    assert b"judgement" not in encode(EpisodeFinished(trajectory=plain), compress_above=1 << 30)
    judgement = Judgement(judge="critic", score=0.5, reply="so so", environment_reward=0.25)
    body = msgspec.structs.replace(plain, reward=0.75, judgement=judgement)
    received = decode(encode(EpisodeFinished(trajectory=body)))
    assert isinstance(received, EpisodeFinished)
    assert received.trajectory == body
    assert received.trajectory.sha256 == body.sha256
    assert (plain.environment_reward, body.environment_reward) == (1.0, 0.25)
    wrong = msgspec.structs.replace(judgement, score=float("nan"))
    with pytest.raises(MessageError, match="the judgement is not finite"):
        check(msgspec.structs.replace(body, judgement=wrong))


def test_scores_of_turns_travel_if_there_is_one_for_each_and_other_judgements_keep_their_hash() -> (
    None
):
    before = Judgement(judge="critic", score=0.5, reply="so so", environment_reward=0.25)
    body = msgspec.structs.replace(trajectory(), judgement=before)
    assert body.sha256 == JUDGED_BEFORE
    scored = msgspec.structs.replace(before, turn_scores=(0.25, 0.75))
    told = msgspec.structs.replace(body, judgement=scored)
    received = decode(encode(EpisodeFinished(trajectory=told)))
    assert isinstance(received, EpisodeFinished)
    assert received.trajectory == told
    assert (body.judge_scores(), told.judge_scores()) == ([None, None], [0.25, 0.75])
    first, second = told.steps
    branched = msgspec.structs.replace(second, branch=BranchPoint(begin=first.end))
    with pytest.raises(MessageError, match="the judge gave 2 scores of turns"):
        check(msgspec.structs.replace(told, steps=(first, branched)))
    for scores, why in (((0.5,), "1 scores"), ((), "0 scores"), ((0.0, float("inf")), "finite")):
        wrong = msgspec.structs.replace(scored, turn_scores=scores)
        with pytest.raises(MessageError, match=why):
            check(msgspec.structs.replace(told, judgement=wrong))


numbers = st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False))


@given(trajectories, numbers, numbers, st.dictionaries(st.text(max_size=9), numbers, max_size=3))
def test_what_is_received_keeps_its_hash_however_often_it_travels(
    body: Trajectory, reward: float, score: float, metrics: dict[str, float]
) -> None:
    """Also where an environment wrote ints, which come back as floats."""
    body = decode_as_received(
        msgspec.structs.replace(body, reward=reward, score=score, metrics=metrics)
    )
    once = decode(encode(EpisodeFinished(trajectory=body)))
    assert isinstance(once, EpisodeFinished)
    twice = decode(encode(once))
    assert once == twice == EpisodeFinished(trajectory=body)
    assert once.trajectory.sha256 == body.sha256
    assert encode(once) == encode(twice)


@pytest.mark.parametrize("reward", [True, "1", None, float("nan")])
def test_a_body_that_no_reader_would_take_is_refused_before_it_travels(reward: float) -> None:
    with pytest.raises(MessageError, match="reward"):
        decode_as_received(msgspec.structs.replace(trajectory(), reward=reward))


def test_a_body_above_the_limit_is_refused_before_it_travels_however_well_it_compresses() -> None:
    large = trajectory(text="a" * (MAX_BYTES // 2 + 1))
    with pytest.raises(MessageRefused, match="the limit is"):
        encode(EpisodeFinished(trajectory=large))


@given(st.binary(max_size=400))
def test_random_bytes_are_refused_with_a_message_error(body: bytes) -> None:
    with pytest.raises(MessageError):
        decode(body)


@given(trajectories, st.data())
def test_a_truncated_body_is_refused(body: Trajectory, data: st.DataObject) -> None:
    whole = encode(EpisodeFinished(trajectory=body), compress_above=data.draw(st.integers(0, 999)))
    with pytest.raises(MessageError):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


def test_tokens_are_read_back_as_they_were_written() -> None:
    message = decode(encode(finished(), compress_above=0))
    assert isinstance(message, EpisodeFinished)
    body = message.trajectory
    assert body.tokens().tolist() == list(range(18))
    assert body.mask().tolist() == [0] * 5 + [1] * 3 + [0] * 4 + [1] * 6
    assert body.sampled_by().tolist() == [0] * 12 + [1] * 6
    assert body.behaviour()[5] == np.float32(-5 / 7)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"type": "PoolChanged", "v": 2, "run_id": "r"}, "version 2"),
        ({"type": "Unheard", "v": 1}, "Unheard"),
        ({"type": "PoolChanged", "run_id": "r", "colour": 1}, "colour"),
        ({"type": "PoolChanged"}, "run_id"),
        ([1, 2], "array"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(content: object, reason: str) -> None:
    with pytest.raises(MessageError, match=reason):
        decode(wire(content))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"token_ids": b"\0" * 7}, "token_ids has 7 bytes"),
        ({"logprobs": np.full(18, np.nan, "<f4").tobytes()}, "not finite"),
        ({"loss_mask": bytes(18)}, "loss_mask"),
        ({"policy_index": bytes([1] * 18)}, "policy_index disagrees"),
        ({"policies": ()}, "names policy 0"),
        ({"reward": float("nan")}, "reward or the score is not finite"),
        ({"score": float("inf")}, "reward or the score is not finite"),
    ],
)
def test_a_trajectory_that_contradicts_itself_is_refused(
    change: dict[str, object], reason: str
) -> None:
    with pytest.raises(MessageError, match=reason):
        check(msgspec.structs.replace(trajectory(), **change))


def test_the_tokens_of_an_untrainable_policy_are_masked() -> None:
    body = trajectory()
    teacher = msgspec.structs.replace(body.policies[1], trainable=False)
    assert (body.policies[1].masked, teacher.masked) == (False, True)
    acted = msgspec.structs.replace(body, policies=(body.policies[0], teacher))
    with pytest.raises(MessageError, match="loss_mask"):
        check(acted)
    mask = np.where(body.sampled_by() == 1, 0, body.mask()).astype(np.uint8)
    masked = msgspec.structs.replace(acted, loss_mask=mask.tobytes())
    with pytest.raises(MessageError, match="log-probability although its loss mask is 0"):
        check(masked)
    logprobs = (body.behaviour() * mask).astype("<f4")
    check(msgspec.structs.replace(masked, logprobs=logprobs.tobytes()))


def test_bodies_written_before_there_were_redrawn_steps_keep_their_hash() -> None:
    """The digest of this body as it was written then."""
    body = trajectory()
    assert body.sha256 == BEFORE
    redrawn = msgspec.structs.replace(body.steps[0], redrawn=1)
    other = msgspec.structs.replace(body, steps=(redrawn, *body.steps[1:]))
    assert other.sha256 != BEFORE
    received = decode(encode(EpisodeFinished(trajectory=other)))
    assert isinstance(received, EpisodeFinished)
    assert received.trajectory.steps[0].redrawn == 1


def test_a_span_that_broke_off_is_no_turn() -> None:
    body = trajectory()
    broken = msgspec.structs.replace(body.steps[0], finish_reason="abort", call="", answer="")
    assert body.turns == 2
    assert msgspec.structs.replace(body, steps=(broken, body.steps[1])).turns == 1


def test_a_compressed_bomb_is_refused_before_it_is_unpacked() -> None:
    frame = b"\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little")
    with pytest.raises(MessageError, match="limit"):
        decode(b"\x01" + frame)
