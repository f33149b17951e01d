"""Importing a model: from each kind of source, into a directory that acts."""

import json
import shutil
from pathlib import Path

import pytest
from running import ROOT
from tokenizers import Tokenizer

from agentrl.core.config.sections.policies import Model
from agentrl.core.errors import CheckpointError, ConfigError
from agentrl.envs.contract import Message, ToolCall, strings
from agentrl.ops.configuration import configs
from agentrl.ops.models import hub
from agentrl.ops.models import model_source as sources
from agentrl.ops.models.check import check_model
from agentrl.ops.models.importer import import_model
from agentrl.workers.conversation import toolcalls
from agentrl.workers.conversation.template import TEMPLATE, ChatTemplate

LOOK = strings("look", "Look at a thing.", "thing")
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def test_a_template_that_hides_tools_is_replaced_by_one_that_shows_them(chatml: Path) -> None:
    out = chatml.parent / "out"
    card = import_model(str(chatml), out, dtype="float32", chat_template=None)
    template = ChatTemplate.load(out)
    template.check_append_only()
    prompt = template.render([Message("user", "Where is the cup?")], [LOOK], generate=True)
    assert '"name": "look"' in prompt
    assert "the chat template leaves out the tools" in card
    assert template.call_style() == "hermes"
    assert 'call_style = "hermes"' in card


def test_weights_of_a_directory_are_copied_byte_for_byte(chatml: Path) -> None:
    out = chatml.parent / "out"
    import_model(str(chatml), out, dtype="bfloat16", chat_template=None)
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (out / name).read_bytes() == (chatml / name).read_bytes()
    assert (chatml / TEMPLATE).read_text() == CHATML


@pytest.mark.parametrize("name", ["pytorch_model.safetensors", "weights/model.safetensors"])
def test_weights_that_only_the_index_names_are_copied_or_refused(chatml: Path, name: str) -> None:
    out, weights = chatml.parent / "out", chatml / name
    weights.parent.mkdir(exist_ok=True)
    (chatml / "model.safetensors").rename(weights)
    index = {"weight_map": {"model.norm.weight": name}}
    (chatml / "model.safetensors.index.json").write_text(json.dumps(index))
    if weights.parent == chatml:
        import_model(str(chatml), out, dtype="float32", chat_template=None)
        assert (out / name).read_bytes() == weights.read_bytes()
    else:  # a directory of ours has no folders
        with pytest.raises(ConfigError, match=f"{name} is missing"):
            import_model(str(chatml), out, dtype="float32", chat_template=None)


def test_a_template_of_ones_own_takes_the_place_of_the_models(chatml: Path) -> None:
    own = ROOT / "ops" / "models" / "tools_chatml.jinja"
    named = chatml.parent / "own.jinja"
    shutil.copyfile(own, named)
    out = chatml.parent / "out"
    card = import_model(str(chatml), out, dtype="float32", chat_template=named)
    assert (out / TEMPLATE).read_text() == own.read_text()
    assert "the file own.jinja" in card


def test_the_card_states_source_licence_and_hashes(chatml: Path) -> None:
    (chatml / hub.CARD).write_text("---\nlicense: apache-2.0\n---\n# It\n")
    out = chatml.parent / "out"
    card = import_model(str(chatml), out, dtype="float32", chat_template=None)
    assert card == (out / hub.CARD).read_text()
    assert f"| source | `{chatml}` |" in card
    assert "| licence | apache-2.0 |" in card
    assert "| quantisation | none |" in card
    assert card.count("sha256") >= 3


def test_without_chatml_tokens_no_template_is_supplied_and_nothing_is_left(tmp_path: Path) -> None:
    tiny = str(ROOT / "models" / "tiny")
    with pytest.raises(
        ConfigError, match="leaves out the tools, and the tokenizer lacks the tokens of our ChatML"
    ):
        import_model(tiny, tmp_path / "out", dtype="float32", chat_template=None)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_without_a_tokenizer_is_refused_and_nothing_is_left(chatml: Path) -> None:
    (chatml / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"chatml: tokenizer\.json is missing$"):
        import_model(str(chatml), chatml.parent / "out", dtype="float32", chat_template=None)
    assert not (chatml.parent / "out").exists()


def test_what_stands_there_is_not_overwritten(chatml: Path) -> None:
    with pytest.raises(CheckpointError, match="exists already"):
        import_model(str(chatml), chatml, dtype="float32", chat_template=None)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("nowhere", "no such model file or directory"),
        ("package:no-such-package", "not installed"),
        ("package:pytest", "contains no GGUF file"),
    ],
)
def test_a_source_without_a_model_is_refused_by_name(source: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        sources.resolve(source)
    assert source.partition(":")[2] in str(caught.value)


def test_a_directory_with_two_gguf_files_is_ambiguous(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=r"a\.gguf, b\.gguf"):
        sources.resolve(str(tmp_path))
    (tmp_path / "b.gguf").unlink()
    assert sources.resolve(str(tmp_path)).path == tmp_path / "a.gguf"


def test_a_real_model_shows_tools_and_its_calls_are_read_back(smollm2: Path) -> None:
    template = ChatTemplate.load(smollm2)
    template.check_append_only()
    template.check_shows_tools()
    assert template.call_style() == "hermes"
    call = ToolCall("look", {"thing": "cup"})
    assert toolcalls.parse(toolcalls.render(call, "hermes"), [LOOK], "hermes") == [call]
    assert "de-quantised" in (smollm2 / hub.CARD).read_text()


@pytest.fixture
def chatml(tmp_path: Path) -> Path:
    """A small model with ChatML tokens, whose template leaves out the tools."""
    folder = tmp_path / "chatml"
    shutil.copytree(ROOT / "models" / "tiny", folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / TEMPLATE).write_text(CHATML)
    (folder / hub.CARD).unlink()
    return folder


def test_a_real_model_is_fit_to_train_and_its_noise_in_bfloat16_is_measured(smollm2: Path) -> None:
    found = {finding.name: finding for finding in check_model(smollm2)}
    assert {finding.state for finding in found.values()} == {"ok"}
    assert found["weights"].detail == "LlamaForCausalLM, 134,515,008 parameters"
    assert 'model.call_style = "hermes"' in found["call style"].detail
    median = float(found["bfloat16"].detail.split("median ")[1].split(",")[0])
    assert 0 < median < 0.1


def test_a_model_of_plain_calls_needs_no_template_that_shows_tools() -> None:
    found = {finding.name: finding for finding in check_model(ROOT / "models" / "tiny")}
    assert "tools" not in found
    assert {finding.state for finding in found.values()} == {"ok"}


def test_a_model_that_the_local_engine_refuses_is_a_finding(chatml: Path) -> None:
    from transformers import Lfm2Config, Lfm2ForCausalLM

    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    layers = ["conv", "full_attention"]
    config = Lfm2Config(vocab_size=300, layer_types=layers, pad_token_id=0, **shape, **heads)
    Lfm2ForCausalLM(config).save_pretrained(chatml)
    found = next(each for each in check_model(chatml) if each.name == "local engine")
    assert (found.state, found.hint) == ("absent", 'set policy.engine = "vllm"')
    assert "layers other than attention" in found.detail


def test_a_template_that_hides_tools_is_a_finding_with_its_remedy(chatml: Path) -> None:
    found = {finding.name: finding for finding in check_model(chatml)}
    assert found["tools"].state == "missing"
    assert "model.chat_template" in found["tools"].hint
    assert found["call style"].state == "absent"


def test_tokens_that_the_model_does_not_embed_are_refused(chatml: Path) -> None:
    found = {finding.name: finding for finding in check_model(chatml)}
    assert found["tokens"].state == "missing"
    assert "resize_token_embeddings" in found["tokens"].hint
    with pytest.raises(ConfigError, match=r"<\|im_end\|> has the ID"):
        configs.check_model(chatml, Model(path=str(chatml), call_style="plain"))


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a transformers directory"):
        list(check_model(tmp_path))
