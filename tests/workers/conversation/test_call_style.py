"""The style of calls is found in a chat template, and the template's own calls are read back.

`templates/` holds published templates; templates of our own write calls in other families' formats.
"""

import json
from pathlib import Path

import pytest

from agentrl.core.errors import ConfigError
from agentrl.envs.contract import Tool, ToolCall
from agentrl.ops.warmstart import tokenizer
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.conversation.toolcalls import Style, parse, render

WEATHER = Tool(
    "get_weather",
    "The weather of a place.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "hourly": {"type": "boolean"},
            "units": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city"],
    },
)
CALLS = [
    ToolCall("get_weather", {"city": "Oslo"}),
    ToolCall("get_weather", {"city": 'the "old"\ntown, Zürich', "days": 2, "hourly": True}),
    ToolCall("get_weather", {"city": "True", "hourly": False, "units": ["°C", "m/s"]}),
]
CHATML = ("<|im_start|>", "<|im_end|>")
LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
MISTRAL = ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[ARGS]")
GLM = ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
PUBLISHED: dict[str, tuple[Style, tuple[str, ...]]] = {
    "qwen2.5": ("hermes", CHATML),
    "qwen3": ("hermes", CHATML),
    "qwen3.5": ("qwen_xml", CHATML),
    "glm-4.5": ("glm", GLM),
}
OWN: dict[str, tuple[Style | None, tuple[str, ...], str]] = {
    "SmolLM2": (
        "hermes",
        CHATML,
        "<tool_call>[{{ {'name': f.name, 'arguments': f.arguments} | tojson }}]</tool_call>",
    ),
    "Llama 3.1": (
        "json",
        LLAMA,
        '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}',
    ),
    "Mistral 7B v0.3": (
        "json",
        MISTRAL,
        "[TOOL_CALLS] [{{ {'name': f.name, 'arguments': f.arguments, 'id': '1'} | tojson }}]",
    ),
    "Mistral Small 3": (
        "plain",
        MISTRAL,
        "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}",
    ),
    "Python's syntax": (
        None,
        LLAMA,
        "[{{ f.name }}({% for k, v in f.arguments | items %}{{ k }}={{ v | tojson }}{% endfor %})]",
    ),
    "no call": (None, CHATML, ""),
}
SKELETON = """\
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor -%}
{%- for message in messages -%}
{{ BEGIN ~ message.role ~ '\\n' ~ message.content -}}
{%- for call in message.tool_calls or [] %}{% set f = call.function %}CALL{% endfor -%}
{{ END }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ BEGIN ~ 'assistant\\n' }}{% endif -%}
"""


def load(folder: Path, text: str, specials: tuple[str, ...]) -> ChatTemplate:
    """Load a template with a tokenizer that has its family's special tokens."""
    trained = tokenizer.train(["look at the mug on the desk 1"], 300)
    trained.add_special_tokens(list(specials))
    tokenizer.save(trained, folder)
    named = {"bos_token": specials[0], "eos_token": specials[1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    (folder / "chat_template.jinja").write_text(text)
    return ChatTemplate.load(folder)


def read_published(name: str) -> str:
    return (Path(__file__).parent / "templates" / f"{name}.jinja").read_text("utf-8")


def load_published(folder: Path, name: str) -> ChatTemplate:
    return load(folder, read_published(name), PUBLISHED[name][1])


def load_own(folder: Path, name: str) -> ChatTemplate:
    _, specials, call = OWN[name]
    text = SKELETON.replace("BEGIN", repr(specials[0])).replace("END", repr(specials[1]))
    return load(folder, text.replace("CALL", call), specials)


def assert_speaks(template: ChatTemplate, style: Style) -> None:
    """The style is found; what the template writes, and what we write, are read as the call."""
    assert template.call_style() == style
    for call in CALLS:
        assert parse(template.render_call(call, [WEATHER]), [WEATHER], style) == [call]
        assert parse(render(call, style), [WEATHER], style) == [call]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_style_of_a_published_template_is_found_and_its_calls_are_read(
    tmp_path: Path, name: str
) -> None:
    assert_speaks(load_published(tmp_path, name), PUBLISHED[name][0])


@pytest.mark.parametrize("name", [name for name, (style, *_) in OWN.items() if style])
def test_the_style_of_a_family_is_found_and_its_calls_are_read(tmp_path: Path, name: str) -> None:
    style = OWN[name][0]
    assert style
    assert_speaks(load_own(tmp_path, name), style)


@pytest.mark.parametrize("name", [name for name, (style, *_) in OWN.items() if not style])
def test_an_unknown_format_has_no_style(tmp_path: Path, name: str) -> None:
    assert load_own(tmp_path, name).call_style() is None


def test_the_style_is_found_where_the_generation_prompt_opens_a_thought(tmp_path: Path) -> None:
    text = read_published("qwen2.5")
    prompt = "{{- '<|im_start|>assistant\\n' }}"
    assert text.count(prompt) == 1
    thinking = text.replace(prompt, "{{- '<|im_start|>assistant\\n<think>\\n' }}")
    assert load(tmp_path, thinking, CHATML).call_style() == "hermes"


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "qwen3.5"])
def test_a_published_template_that_appends_and_shows_tools_passes(
    tmp_path: Path, name: str
) -> None:
    load_published(tmp_path, name).check(PUBLISHED[name][0])


def test_glm_is_refused_because_it_adds_an_empty_thought_to_earlier_turns(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rewrites earlier turns"):
        load_published(tmp_path, "glm-4.5").check("glm")


def test_mistral_7b_is_refused_because_it_asks_for_the_id_of_a_call(tmp_path: Path) -> None:
    text = read_published("mistral-7b-v0.3")
    with pytest.raises(ConfigError, match="chat template failed: Tool call IDs") as caught:
        load(tmp_path, text, MISTRAL)
    assert "model.chat_template" in caught.value.hint
