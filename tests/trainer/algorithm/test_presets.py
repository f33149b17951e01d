import msgspec
import pytest

from agentrl.core.config.sections.episodes import Dispatch, Sampling
from agentrl.core.config.sections.policies import Model
from agentrl.core.config.sections.training import DeepSpeed, Lora, Trainer
from agentrl.core.errors import ConfigError
from agentrl.trainer.algorithm.presets import (
    Importance,
    chunk_logits,
    inbox_bytes,
    resolve_settings,
)
from agentrl.trainer.engines.learner import Hardware


def test_the_default_is_decoupled_centred_and_without_kl() -> None:
    chosen = resolve_settings(Trainer())
    assert chosen.old == "proximal"
    assert (chosen.clip.low, chosen.clip.high, chosen.clip.dual) == (0.2, 0.28, 3.0)
    assert chosen.importance == Importance("truncated", most=2.0)
    assert (chosen.kl_weight, chosen.advantage, chosen.abnormal_reward) == (0.0, "centred", None)
    assert (chosen.normalise, chosen.aggregate, chosen.loss) == ("task", "token_mean", "ppo_clip")


def test_the_paper_preset_is_the_papers() -> None:
    chosen = resolve_settings(Trainer(preset="paper"))
    assert chosen.old == "behaviour"
    assert (chosen.clip.low, chosen.clip.high, chosen.clip.dual) == (0.2, 0.2, 3.0)
    assert chosen.importance.kind == "none"
    assert (chosen.kl_weight, chosen.learning_rate) == (1e-4, 1e-6)
    assert (chosen.advantage, chosen.normalise) == ("std", "task")
    assert chosen.abnormal_reward == -0.2


def test_what_the_configuration_names_wins() -> None:
    config = Trainer(preset="paper", kl_weight=0.0, normalise="none", clip_high=0.3)
    chosen = resolve_settings(config)
    assert (chosen.kl_weight, chosen.normalise, chosen.clip.high) == (0.0, "none", 0.3)
    assert chosen.clip.low == 0.2


@pytest.mark.parametrize(
    "config",
    [Trainer(old="behaviour", max_weight=2.0), Trainer(preset="paper", importance="icepop")],
)
def test_the_behaviour_ratio_refuses_importance_weights(config: Trainer) -> None:
    with pytest.raises(ConfigError, match="importance and max_weight cannot be used"):
        resolve_settings(config)


def test_the_paper_preset_with_the_proximal_ratio_corrects_for_the_policy_that_sampled() -> None:
    chosen = resolve_settings(Trainer(preset="paper", old="proximal"))
    assert chosen.importance == Importance("truncated", most=2.0)


def test_the_behaviour_ratio_drops_the_cap_of_the_preset() -> None:
    assert resolve_settings(Trainer(old="behaviour")).importance == Importance("none")


@pytest.mark.parametrize("config", [Trainer(loss="grpo"), Trainer(advantage="grpo")])
def test_who_asks_for_grpo_hears_which_keys_are_grpo(config: Trainer) -> None:
    with pytest.raises(ConfigError, match=r'there is no \w+ named "grpo"') as caught:
        resolve_settings(config)
    assert 'loss = "ppo_clip" with advantage = "std"' in caught.value.hint


def test_a_loss_brings_the_bounds_of_its_own_ratio() -> None:
    gspo, cispo = (
        resolve_settings(Trainer(loss="gspo")),
        resolve_settings(Trainer(loss="cispo", clip_high=3.0)),
    )
    assert (gspo.clip.low, gspo.clip.high) == (3e-4, 4e-4)
    assert (cispo.clip.low, cispo.clip.high) == (1.0, 3.0)


def test_weights_are_bounded_as_their_kind_says() -> None:
    assert resolve_settings(Trainer(importance="icepop")).importance == Importance(
        "icepop", 0.5, 5.0
    )
    chosen = resolve_settings(Trainer(importance="icepop", min_weight=0.2, max_weight=3.0))
    assert chosen.importance == Importance("icepop", 0.2, 3.0)
    assert resolve_settings(Trainer(max_weight=4.0)).importance == Importance("truncated", most=4.0)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (Trainer(ranks=2), "trainer.ranks: the engine torch has only one process"),
        (Trainer(deepspeed=DeepSpeed(zero=0, offload="optimizer")), "ZeRO 0 offloads nothing"),
        (Trainer(deepspeed=DeepSpeed(zero=2, offload="all")), "only ZeRO 3 offloads"),
        (Trainer(engine="deepspeed", deepspeed=DeepSpeed(weights="model")), "only ZeRO 3 supports"),
        (Trainer(deepspeed=DeepSpeed(zero=3, weights="model")), "only ZeRO 3 supports"),
        (
            Trainer(
                engine="deepspeed", deepspeed=DeepSpeed(zero=3, weights="model"), lora=Lora(rank=4)
            ),
            "the base of an adapter always has",
        ),
    ],
)
def test_an_engine_that_contradicts_itself_is_refused(config: Trainer, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve_settings(config)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (Trainer(min_weight=0.5), "min_weight"),
        (Trainer(importance="none", max_weight=2.0), "max_weight"),
        (Trainer(loss="gspo", dual_clip=3.0), "dual_clip"),
        (Trainer(loss="cispo", clip_low=1.5), "clip_low"),
        (Trainer(credit="turn", turn_penalty=0.1), "turn_penalty"),
    ],
)
def test_a_number_that_nothing_reads_is_refused(config: Trainer, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"trainer\.{key}"):
        resolve_settings(config)


def test_a_gpu_holds_more_logits_at_once_than_a_cpu() -> None:
    assert chunk_logits(Trainer(), "cpu") == 2**22
    assert chunk_logits(Trainer(), "cuda:1") == 2**27
    assert chunk_logits(Trainer(chunk_logits=1000), "cuda") == 1000
    hardware = Hardware.from_config(Model(device="cuda", dtype="bfloat16"), Trainer(threads=2))
    assert hardware == Hardware("cuda", "bfloat16", 2, 2**27)


def test_the_inbox_holds_what_a_batch_may_need() -> None:
    """4 groups of 8 episodes of 2048 tokens, 18 bytes each: 1,179,648 bytes."""
    trainer, dispatch, sampling = Trainer(min_groups=4, max_groups=4), Dispatch(), Sampling()
    assert inbox_bytes(trainer, dispatch, sampling) == 512 * 1024 * 1024
    long = Sampling(max_tokens=2_000_000)
    assert inbox_bytes(trainer, dispatch, long) == 4 * 8 * 2_000_000 * 18
    enough = msgspec.structs.replace(trainer, inbox_bytes=1_179_648)
    assert inbox_bytes(enough, dispatch, sampling) == 1_179_648
    little = msgspec.structs.replace(trainer, inbox_bytes=1_179_647)
    with pytest.raises(ConfigError, match=r"trainer\.inbox_bytes 1179647.*may need 1179648"):
        inbox_bytes(little, dispatch, sampling)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (Trainer(loss="gspi"), "trainer.loss: gspi is not known; did you mean gspo"),
        (Trainer(advantage="mean"), "trainer.advantage: mean is not known; known: centred, "),
    ],
)
def test_a_loss_or_advantage_that_no_file_has_is_refused(config: Trainer, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve_settings(config)
