"""Numbers worked out by hand for a decoder that is small enough to do so, and transformers' own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from memory_plans import CARD, config, plan_memory, sizes
from small_model import PARAMETERS, SMALL, small_model

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.config.sections.training import Lora
from agentrl.core.errors import AgentRLError, ConfigError
from agentrl.ops.configuration import model_spec
from agentrl.ops.doctor import memory
from agentrl.ops.doctor.machine import Machine
from agentrl.ops.doctor.memory import HOST
from agentrl.ops.doctor.memory_items import CONTEXT, GIB, gpu_share
from agentrl.ops.doctor.policy_memory import VLLM_WORK, least_of_vllm
from agentrl.ops.doctor.trainer_memory import activations
from agentrl.ops.supervisor.up import up
from agentrl.trainer.engines import zero_shards
from agentrl.trainer.model import attention

ROOT = Path(__file__).parents[3]
TINY = ROOT / "models" / "tiny"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return small_model(tmp_path)


@pytest.mark.parametrize(("lora", "wholes"), [("", 2), ("trainer.lora.rank = 2\n", 1)])
def test_packed_weights_of_a_cpu_in_bfloat16_come_beside_the_plain_ones(
    small: Path, lora: str, wholes: int
) -> None:
    one = 'policy = [{name = "p", tracks = ["current"]}]\n'
    for dtype, packed in (("bfloat16", wholes), ("float32", 0)):
        (plan,) = plan_memory(config(small, f'model.dtype = "{dtype}"\n{one}{lora}'))
        assert sizes(plan, "policy p").get("packed weights", 0) == packed * 2 * PARAMETERS


def test_full_fine_tuning_holds_sixteen_bytes_a_parameter(small: Path) -> None:
    card, _ = plan_memory(config(small, 'model.device = "cuda"\n'))
    held = sizes(card, "trainer")
    assert held["weights"] + held["gradients"] + held["moments"] == 16 * PARAMETERS
    assert held["reference"] == 0
    assert held["CUDA"] == CONTEXT


def test_ranks_hold_shards_of_what_one_process_holds(small: Path) -> None:
    """Four bytes each: masters, two moments, gradients, weights; of an odd number, rounded up."""
    text = 'model.device = "cuda"\ntrainer.engine = "deepspeed"\ntrainer.ranks = 2\n'
    cards = {"cuda:0": 24 * GIB, "cuda:1": 24 * GIB}
    half = -(-4 * PARAMETERS // 2)
    first, second, _ = plan_memory(config(small, f"{text}trainer.deepspeed.zero = 2\n"), cards)
    for plan, rank in ((first, 0), (second, 1)):
        held = sizes(plan, f"trainer rank {rank}")
        assert held["weights"] == 4 * PARAMETERS
        assert (held["gradients"], held["masters"], held["moments"]) == (half, half, 2 * half)
    chosen = f'{text}trainer.deepspeed = {{zero = 3, offload = "all"}}\n'
    first, _, host = plan_memory(config(small, chosen), cards)
    assert sizes(first, "trainer rank 0").keys().isdisjoint({"weights", "masters", "moments"})
    on_host = sizes(host, "trainer rank 1")
    assert (on_host["weights"], on_host["masters"], on_host["moments"]) == (half, half, 2 * half)
    read = "weights while read, or snapshot"
    assert read in sizes(host, "trainer rank 0")
    assert read not in on_host
    assert sizes(host, "trainer rank 0")["checkpoint"] == 4 * PARAMETERS
    assert "checkpoint" not in on_host
    low = f'{text}model.dtype = "bfloat16"\ntrainer.deepspeed = {{zero = 3, weights = "model"}}\n'
    first, *_ = plan_memory(config(small, low), cards)
    held = sizes(first, "trainer rank 0")
    assert (held["weights"], held["masters"]) == (PARAMETERS, half)


def test_what_is_sent_at_once_is_what_deepspeed_is_told(small: Path) -> None:
    text = 'model.device = "cuda"\ntrainer.engine = "deepspeed"\ntrainer.deepspeed.bucket = 100\n'
    chosen = config(small, text)
    card, _ = plan_memory(chosen)
    assert sizes(card, "trainer rank 0")["sent at once"] == 2 * 4 * 100
    told = zero_shards.deepspeed_config(chosen.trainer.deepspeed, 1.0, "float32")
    zero = told["zero_optimization"]
    assert (zero["reduce_bucket_size"], zero["allgather_bucket_size"]) == (100, 100)


def test_an_adapter_holds_a_frozen_base_and_sixteen_bytes_a_parameter_of_its_own(
    small: Path,
) -> None:
    text = 'model.dtype = "bfloat16"\nmodel.device = "cuda:1"\ntrainer.lora.rank = 2\n'
    text += 'trainer.lora.targets = ["q_proj"]\ntrainer.kl_weight = 0.1\n'
    card, host = plan_memory(config(small, text))
    assert card.device == "cuda:1"
    adapter = 2 * 2 * (8 + 8)
    assert sizes(host, "trainer")["checkpoint"] == 2 * adapter
    held = sizes(card, "trainer")
    assert held["weights"] == 2 * PARAMETERS + 4 * adapter
    assert (held["gradients"], held["moments"]) == (4 * adapter, 8 * adapter)
    assert held["reference"] == 0  # the base without its adapter


def test_without_packing_a_pass_has_one_trajectory(small: Path) -> None:
    text = "trainer.packing = false\nsampling.max_tokens = 100\ntrainer.micro_batch_tokens = "
    few, many = (
        next(part for part in plan.parts if part.what == "activations")
        for tokens in (10, 1000)
        for plan in plan_memory(config(small, f"{text}{tokens}\n"))
    )
    assert few == many
    assert many.lower == "sampling.max_tokens"


def test_a_kl_term_loads_the_model_once_more(small: Path) -> None:
    (host,) = plan_memory(config(small, "trainer.kl_weight = 0.1\n"))
    assert sizes(host, "trainer")["reference"] == 4 * PARAMETERS


def test_a_local_engine_holds_every_policy_and_the_next(small: Path) -> None:
    more = "worker.concurrency = 10\nsampling.max_tokens = 200\n[[policy]]\n"
    more += 'name = "p"\ntracks = ["current", "lagged(1)", "lagged(4)"]\ncache_tokens = 1000\n'
    (host,) = plan_memory(config(small, more))
    held = sizes(host, "policy p")
    assert held["weights"] == 4 * 4 * PARAMETERS
    token = 4 * 2 * 2 * 4  # bytes · keys and values · layers · width of the key heads
    assert held["prefix cache"] == 1000 * token
    # 10 rows, by doubling; one row more is spare; 200 tokens, by steps of 128
    one = (16 + 1) * 256 * token
    assert held["KV cache of running sequences"] == 4.5 * one  # half of a cache while one grows
    assert held["CUDA graphs"] == 0
    gpu = 'model.device = "cuda"\nmodel.dtype = "bfloat16"\n'
    card, _ = plan_memory(config(small, gpu + more))
    held = sizes(card, "policy p")
    assert held["CUDA graphs"] == 2 * PARAMETERS + 2 * 4 * 16 * SMALL["vocab_size"]
    without, _ = plan_memory(config(small, gpu + more + "graph_bytes = 0\n"))
    assert sizes(without, "policy p")["CUDA graphs"] == 0
    # caches of unloaded policies are kept; lengths in steps of 512
    assert held["KV cache of running sequences"] == 2 * 3 * (16 + 1) * 512 * token // 2


def test_an_evaluator_holds_a_policy_and_only_where_it_is_asked_for(small: Path) -> None:
    (plan,) = plan_memory(config(small, "[eval]\nevery = 2"))
    assert sizes(plan, "policy evaluator")["weights"] == 2 * 4 * PARAMETERS
    (without,) = plan_memory(config(small))
    assert sizes(without, "policy evaluator") == {}


@pytest.mark.parametrize(("low", "rank"), [(False, 0), (True, 0), (False, 4), (True, 4)])
@pytest.mark.parametrize(
    "name", ["Qwen2Config", "Qwen3Config", "Qwen3MoeConfig", "LlamaConfig", "Gemma3TextConfig"]
)
def test_activations_are_those_that_transformers_saves(
    tmp_path: Path, name: str, low: bool, rank: int
) -> None:
    import transformers

    wide = {"hidden_size": 64, "intermediate_size": 176, "num_attention_heads": 4, "head_dim": 16}
    experts = {"moe_intermediate_size": 48, "num_experts": 8, "num_experts_per_tok": 2}
    sized = {key: value for key, value in (SMALL | wide).items() if key != "model_type"}
    sized |= {"num_key_value_heads": 2} | (experts if "Moe" in name else {})
    getattr(transformers, name)(**sized).save_pretrained(tmp_path)
    lora = f"trainer.lora.rank = {rank}\n"
    if rank and "Moe" in name:  # adapters of experts are not trained
        lora += 'trainer.lora.targets = ["q_proj", "k_proj", "v_proj", "o_proj"]\n'
    chosen = config(tmp_path, lora + 'model.dtype = "bfloat16"\n' * low)
    predicted = activations(chosen, model_spec.read_spec(tmp_path))
    measured = _saved(tmp_path, chosen.trainer.lora, low)
    assert predicted == pytest.approx(measured, rel=0.06)


@pytest.mark.parametrize(("low", "rank"), [(False, 0), (True, 0), (False, 4), (True, 4)])
def test_gradient_checkpointing_keeps_inputs_of_layers_and_one_layer(
    small: Path, low: bool, rank: int
) -> None:
    text = f"trainer.lora.rank = {rank}\n" + 'model.dtype = "bfloat16"\n' * low
    found = model_spec.read_spec(small)
    whole = activations(config(small, text), found)
    less = activations(config(small, text + "trainer.gradient_checkpointing = true\n"), found)
    norm = 4 * 8 * (1 if rank else 2)
    inputs = 2 * 8 * (2 if low and rank else 4)  # layers · hidden · bytes
    assert less == inputs + norm + (whole - norm) // 2


def _saved(path: Path, lora: Lora, low: bool) -> float:
    """Bytes saved of a token, from two lengths so that what is constant falls out."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    described: Any = AutoConfig.from_pretrained(path)
    model: Any = AutoModelForCausalLM.from_config(described, attn_implementation="sdpa")
    attention.pack(model)
    if lora.rank:
        model = model.to(torch.bfloat16 if low else torch.float32)
        get_peft_model(model, LoraConfig(r=lora.rank, target_modules=lora.targets))
    found = [_saved_of(model, tokens, low) for tokens in (128, 256)]
    return (found[1] - found[0]) / 128


def _saved_of(model: Any, tokens: int, low: bool) -> int:
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    held: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage
        return tensor

    keep: Callable[[Any], Any] = lambda tensor: tensor  # noqa: E731
    low_precision = torch.autocast("cpu", dtype=torch.bfloat16, enabled=low)
    with torch.autograd.graph.saved_tensors_hooks(pack, keep), low_precision:
        attention.hidden_states(model, torch.zeros(tokens, dtype=torch.long), (tokens // 2,) * 2)
    return sum(storage.nbytes() for storage in held.values())


VLLM = 'model.device = "cuda"\nmodel.dtype = "bfloat16"\n[[policy]]\nname = "p"\nengine = "vllm"\n'


def vllm(small: Path, more: str = "") -> Config:
    return config(small, VLLM + more)


def test_vllm_takes_its_share_of_the_whole_card(small: Path) -> None:
    card, _ = plan_memory(vllm(small, 'vllm.args = ["--gpu-memory-utilization=0.5"]\n'))
    assert sizes(card, "policy p") == {"50% of the card": 12 * GIB, "CUDA": CONTEXT}
    assert card.fits
    full, _ = plan_memory(vllm(small))
    assert not full.fits  # vLLM's own default leaves too little
    assert "--gpu-memory-utilization in policy.vllm.args" in full.hint()
    assert "of 24.0 GiB" in full.words()


def test_two_servers_of_one_card_share_it_and_those_of_two_do_not(small: Path) -> None:
    share = 'vllm.args = ["--gpu-memory-utilization", "0.5"]\n'
    second = f'[[policy]]\nname = "q"\nengine = "vllm"\n{share}'
    both, _ = plan_memory(vllm(small, share + second))
    assert not both.fits
    elsewhere = second + 'vllm.env = { CUDA_VISIBLE_DEVICES = "1" }\n'
    cards = {"cuda:0": 24 * GIB, "cuda:1": 16 * GIB}
    first, other, _ = plan_memory(vllm(small, share + elsewhere), cards)
    assert (first.fits, other.fits) == (True, True)
    assert sizes(other, "policy q")["50% of the card"] == 8 * GIB


def test_a_share_too_small_for_its_vllm_is_refused(small: Path) -> None:
    card, _ = plan_memory(vllm(small, 'vllm.args = ["--gpu-memory-utilization=0.01"]\n'))
    assert not card.fits
    assert "policy p: vLLM needs 1.0 GiB, but its share is 0.2 GiB" in card.words()
    assert "raise --gpu-memory-utilization" in card.hint()


def test_vllm_splits_weights_and_context_over_the_cards_it_is_given(small: Path) -> None:
    def least(more: str) -> int:
        chosen = vllm(small, more)
        return least_of_vllm(chosen, chosen.policy[0], model_spec.read_spec(small)) - VLLM_WORK

    split = 'vllm.args = ["--tensor-parallel-size=2"]\n'
    assert least(split) == least("") // 2
    first, second, _ = plan_memory(vllm(small, split), {"cuda:0": 24 * GIB, "cuda:1": 16 * GIB})
    assert sizes(first, "policy p")["92% of the card"] == int(0.92 * 24 * GIB)
    assert sizes(second, "policy p")["92% of the card"] == int(0.92 * 16 * GIB)
    named = split + 'vllm.env = { CUDA_VISIBLE_DEVICES = "3,5,7" }\n'
    assert [plan.device for plan in plan_memory(vllm(small, named), {})][1:3] == [
        "cuda:3",
        "cuda:5",
    ]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('vllm.args = ["-tp", "two"]\n', "two is not a number of GPUs"),
        (
            'vllm.args = ["-tp", "2"]\nvllm.env = { CUDA_VISIBLE_DEVICES = "1" }\n',
            "size is 2, but CUDA_VISIBLE_DEVICES names 1",
        ),
    ],
)
def test_a_split_that_cannot_be_is_one_clear_error(small: Path, more: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"policy p: .*{words}"):
        plan_memory(vllm(small, more))


def test_without_the_card_it_is_told_what_is_needed(small: Path) -> None:
    card, host = plan_memory(vllm(small), cards={})
    assert card.room is None
    assert card.fits
    assert "has no cuda:0" in card.words()
    assert "at least" in sizes(card, "policy p")
    assert host.device == HOST


@pytest.mark.parametrize("text", ["0", "1.5", "half", ""])
def test_what_is_no_share_is_one_clear_error(small: Path, text: str) -> None:
    chosen = vllm(small, f'vllm.args = ["--gpu-memory-utilization", "{text}"]\n')
    with pytest.raises(AgentRLError, match=r"policy p: .*is not between 0 and 1"):
        gpu_share(chosen.policy[0])


def test_a_cache_of_no_size_is_one_clear_error(small: Path) -> None:
    more = '[[policy]]\nname = "p"\nengine = "vllm"\n[policy.vllm.env]\n'
    more += 'VLLM_CPU_KVCACHE_SPACE = "half"\n'
    with pytest.raises(
        ConfigError, match=r"policy p: .*VLLM_CPU_KVCACHE_SPACE half is not a number of GiB"
    ):
        plan_memory(config(small, more), cards={})


def test_up_refuses_what_cannot_fit_before_anything_starts(small: Path) -> None:
    file = small.parent / "run.toml"
    more = '[[policy]]\nname = "p"\ncache_tokens = 1_000_000_000_000\n'
    file.write_text(config_loading.to_toml(config(small, more)))
    with pytest.raises(ConfigError, match=r"memory: this machine needs .* GiB of") as caught:
        up(file, detach=False)
    assert caught.value.hint.startswith("change policy.cache_tokens")
    with pytest.raises(ConfigError, match="memory"):
        up(file, detach=True)
    assert not (small.parent / "run").exists()


def test_memory_that_other_processes_use_is_said_and_refuses_nothing(small: Path) -> None:
    shape = model_spec.read_spec(small)
    free = {"cuda:0": 10 * GIB, HOST: 63 * GIB}
    machine = Machine(64 * GIB, CARD, free)
    half = vllm(small, 'vllm.args = ["--gpu-memory-utilization=0.5"]\n')
    card, host = memory.memory_plans(half, shape, machine)
    assert card.fits
    assert card.words().endswith("of 24.0 GiB; only 10.0 GiB are free now")
    assert card.hint().startswith("if other programs use it")
    assert (host.fits, host.is_crowded, host.hint()) == (True, False, "")


KEYS = st.fixed_dictionaries(
    {
        "trainer.micro_batch_tokens": st.integers(1, 10**5),
        "trainer.lora.rank": st.integers(1, 256),
        "sampling.max_tokens": st.integers(1, 10**5),
        "worker.concurrency": st.integers(1, 500),
        "workers": st.integers(1, 9),
    }
)


@given(KEYS, st.sampled_from(["cpu", "cuda"]), st.data())
def test_more_of_anything_never_needs_less(
    tmp_path_factory: pytest.TempPathFactory, keys: dict[str, int], device: str, data: st.DataObject
) -> None:
    model = tmp_path_factory.getbasetemp() / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(SMALL))
    key = data.draw(st.sampled_from(sorted(keys)))

    def total(values: dict[str, int]) -> int:
        more = "".join(f"{name} = {value}\n" for name, value in sorted(values.items()))
        chosen = config(model, f'model.device = "{device}"\n{more}')
        return sum(plan.total for plan in plan_memory(chosen))

    assert total(keys | {key: 2 * keys[key]}) >= total(keys)
