import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from agentrl.cli.main import main
from agentrl.core.config.config import Config
from agentrl.core.config.sections.base import Section
from agentrl.core.config.sections.policies import PolicyServer
from agentrl.core.config.sections.tasks import Task
from agentrl.core.config.sections.training import Teacher
from agentrl.core.errors import ConfigError
from agentrl.ops.configuration import keys
from agentrl.trainer.algorithm import presets

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"
COMMAND = "agentrl config keys --markdown > docs/configuration.md"
EXAMPLE = Config(
    tasks={"NAME": Task()},
    policy=[PolicyServer(name="one")],
    teacher=[Teacher(name="one", checkpoint="one@1")],
)
FIELDS = {"section", "key", "type", "default", "meaning", "within", "by", "required"}
SOURCE = '''
PLACE = 1  # of no class


class Odd(Section):
    """Odd keys
    of one section.
    """

    width: float = 1.0
    """Width in metres."""
    names: list[str] = field(  # not a description
        default=["a"]
    )
    """Names that
    take two lines."""
    bare: int = 4

    def total(self) -> int:
        """Not the description of `bare`."""


class Bare(Section):
    last: int = 5
'''


class Inner(Section, frozen=True):
    """An inner section. It is small."""

    width: int = 1
    """Width in metres."""


class Outer(Section, frozen=True):
    """An outer section."""

    usual: Inner = Inner()
    wide: Inner = Inner(width=9)
    """The widest section."""


def found() -> dict[tuple[str, str], keys.Key]:
    """Every key by section and name."""
    return {(part.name, key.key): key for part in keys.key_sections() for key in part.keys}


def held(tree: dict[str, Any], section: str = "") -> Iterator[tuple[str, str, Any]]:
    """Section, key and value of all that a configuration holds; what is itself a section, too."""
    for key, value in tree.items():
        yield section, key, value
        inner = value[0] if isinstance(value, list) and value else value
        if isinstance(inner, dict) and inner:
            path = f"{section}.{key}".lstrip(".")
            yield from held(inner.get("NAME", inner), path)


def test_every_key_of_a_configuration_is_listed_with_its_default() -> None:
    listed = found()
    all_held = list(held(msgspec.to_builtins(EXAMPLE)))
    assert {(section, key) for section, key, _ in all_held} == set(listed)
    assert len(all_held) == len(listed) > 150
    for section, key, value in all_held:
        one = listed[section, key]
        if not (one.within or one.required or value is None):
            assert json.loads(one.default_text()) == value, (section, key)
        assert value is not None or one.by or one.default_text() == "absent", (section, key)


def test_every_key_says_what_it_means() -> None:
    mute = [f"{section}.{key}" for (section, key), one in found().items() if not one.meaning]
    assert not mute, "core/config/sections/: write a docstring below the key"


@pytest.mark.parametrize(
    ("section", "key", "kind", "default", "meaning"),
    [
        ("", "workers", "integer ≥ 1", "1", "Worker processes that `agentrl up` starts."),
        (
            "run",
            "stop_hours",
            "hours > 0",
            "absent",
            "The run ends this long after it was",
        ),
        ("run", "home", "text", '"runs/run"', "Folder for logs, checkpoints and the"),
        ("tasks", "horizons", "list of [integer ≥ 0, integer ≥ 1]", "[]", "Turn limits that grow"),
        ("dispatch", "group_size", "integer ≥ 2", "8", "Episodes per group, all of"),
        ("policy", "name", "name", "required", "Unique name."),
        ("trainer", "optimizer", '"adamw" or "sgd"', '"adamw"', "Optimizer."),
        ("trainer", "lora", "section [trainer.lora]", "", "Training of a LoRA adapter"),
        ("trainer.lora", "alpha", "number > 0", "16.0", "The adapter's output is scaled by"),
        ("trainer.deepspeed", "zero", "0, 1, 2 or 3", "2", "ZeRO stage. 1 shards"),
        ("eval", "nice", "integer 0…19", "10", "CPU niceness of the evaluator."),
        ("metrics", "port", "integer 0…65535", "0", "Port of the supervisor's metrics."),
    ],
)
def test_a_key_is_told_with_type_default_and_meaning(
    section: str, key: str, kind: str, default: str, meaning: str
) -> None:
    one = found()[section, key]
    assert (one.type, one.default_text()) == (kind, default)
    assert one.meaning.startswith(meaning)


def test_what_an_absent_key_of_the_trainer_is_depends_on_preset_loss_and_importance() -> None:
    listed = found()
    assert (
        listed["trainer", "clip_low"].default_text()
        == "0.2 (default, paper), 1.0 (cispo), 0.0003 (gspo)"
    )
    assert listed["trainer", "abnormal_reward"].default_text() == "absent (default), -0.2 (paper)"
    assert listed["trainer", "min_weight"].default_text() == "0.5 (icepop)"
    assert listed["trainer", "max_groups"].default_text() == "absent"
    assert set(presets.PRESETS["paper"]) <= {key for section, key in listed if section == "trainer"}


def test_a_section_has_the_defaults_of_the_place_where_it_stands() -> None:
    top, usual, wide = keys.key_sections(Outer)
    assert [key.meaning for key in top.keys] == ["An inner section.", "The widest section."]
    assert (usual.opens, usual.keys[0].default_text()) == ("[usual]", "1")
    assert (wide.opens, wide.keys[0].default_text()) == ("[wide]", "9")


def test_the_meaning_of_a_key_is_the_string_below_it() -> None:
    about, said = keys.read_key_texts(SOURCE)["Odd"]
    assert about == "Odd keys of one section."
    assert said == {"width": "Width in metres.", "names": "Names that take two lines.", "bare": ""}
    assert keys.read_key_texts(SOURCE)["Bare"] == ("", {"last": ""})


def test_types_are_plain_words_and_a_type_without_any_is_an_error() -> None:
    share = Annotated[float, Meta(ge=0.0, le=1.0)]
    assert keys.type_text(share) == "number 0…1"
    assert keys.type_text(Annotated[float, Meta(gt=1.5)] | None) == "number > 1.5"
    assert keys.type_text(Annotated[int, Meta(lt=9)]) == "integer < 9"
    assert keys.type_text(list[Literal["a", "b"]]) == 'list of "a" or "b"'
    assert keys.type_text(dict[str, bool]) == "table of boolean"
    for unknown in (bytes, int | str, list[int | str]):
        with pytest.raises(KeyError):
            keys.type_text(unknown)


def asked(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of `agentrl config keys`."""
    monkeypatch.setattr(sys, "argv", ["agentrl", "config", "keys", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_page_is_what_the_code_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert COMMAND in keys.HEAD
    assert asked(monkeypatch, "--markdown") == 0
    assert PAGE.read_text() == capsys.readouterr().out, f"write it anew: {COMMAND}"


def test_the_page_lists_every_key_that_is_no_section() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if re.match("- `[a-z_]+ = ", line)]
    keys_of_page = [row.split("`")[1].partition(" = ")[0] for row in rows]
    assert keys_of_page == [
        key
        for (section, key), one in found().items()
        if not one.within and section != "eval.vllm"  # which equals policy.vllm
    ]


def test_the_page_links_every_section_and_describes_equal_ones_once() -> None:
    text = PAGE.read_text()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    anchors = {heading.replace(".", "") for heading in headings} - {"Top of the file"}
    assert set(re.findall(r"\]\(#(\w+)\)", text)) == anchors
    assert "The keys and defaults are those of [policy.vllm](#policyvllm)." in text


def test_the_page_says_what_is_allowed_where_the_default_does_not_show_it() -> None:
    text = PAGE.read_text()
    for row in (
        '- `home = "runs/run"`: Folder',
        "- `seed = 0`: Seed",
        "- `stop_hours = absent` (hours): The run",
        "- `group_size = 8` (integer ≥ 2): Episodes",
        "- `stale_share = 0.25` (number 0…1): Probability",
        '- `mixing = "fixed"` ("fixed" or "progress"): How',
    ):
        assert f"\n{row}" in text


def test_all_keys_are_in_the_tables_and_in_the_array(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(monkeypatch) == 0
    tables = [table.splitlines() for table in capsys.readouterr().out.strip().split("\n\n")]
    default_text = [row.split()[0] for _, _, *rows in tables for row in rows]
    assert default_text == [key for _, key in found()]
    assert asked(monkeypatch, "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(one["section"], one["key"]) for one in listed] == list(found())
    assert all(set(one) == FIELDS for one in listed)


def test_the_array_holds_defaults_as_values(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(monkeypatch, "--json") == 0
    listed = {(one["section"], one["key"]): one for one in json.loads(capsys.readouterr().out)}
    assert listed["dispatch", "group_size"]["default"] == 8
    assert listed["trainer", "lora"]["default"] is None
    reward = listed["trainer", "abnormal_reward"]
    assert (reward["default"], reward["by"]) == (None, {"default": None, "paper": -0.2})
    assert [place for place, one in listed.items() if one["required"]] == [
        ("", "tasks"),
        ("policy", "name"),
        ("teacher", "name"),
        ("teacher", "checkpoint"),
    ]


def test_one_line_holds_a_row_where_there_is_no_terminal_and_a_narrow_one_cuts_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(monkeypatch, "trainer") == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "normalise  " in line]
    assert row.rstrip().endswith(found()["trainer", "normalise"].meaning)
    keys.print_keys("", as_json=False, markdown=False, width=60)
    said = capsys.readouterr().out
    assert "…" not in said.replace("0…1", "").replace("0…65535", "")
    begun = {line.split()[0] for line in said.splitlines() if line.strip()}
    assert {key for _, key in found()} <= begun
    assert max(map(len, said.splitlines())) <= 60


@pytest.mark.parametrize(
    ("asked_for", "section", "count"),
    [
        ("[trainer.lora]", "trainer.lora", 3),
        ("[[policy]]", "policy", 16),
        ("trainer.lora.rank", "trainer.lora", 1),
        ("workers", "", 1),
        ("tasks.dbbench", "tasks", 9),
        ("[tasks.a.process_rewards]", "tasks.process_rewards", 2),
        ("tasks.a.b.weight", "tasks", 1),
        ("[tasks.NAME.options]", "tasks", 1),
    ],
)
def test_a_section_may_be_asked_for_as_the_file_writes_it(
    asked_for: str, section: str, count: int
) -> None:
    (part,) = keys.choose_sections(asked_for)
    assert (part.name, len(part.keys)) == (section, count)
    if count == 1:
        assert part.keys[0].key == asked_for.strip("[]").rpartition(".")[2]


def test_an_array_is_no_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(monkeypatch, "--json", "--markdown") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "--json and --markdown exclude each other" in said.err


def test_one_section_is_a_table_an_array_or_a_piece_of_the_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(monkeypatch, "trainer.lora") == 0
    head, names, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("[trainer.lora] Training of a LoRA adapter")
    assert names.split() == ["key", "type", "default", "meaning"]
    assert [row.split()[0] for row in rows if row.strip()] == ["rank", "alpha", "targets"]
    assert asked(monkeypatch, "trainer.lora", "--json") == 0
    (rank, *_) = json.loads(capsys.readouterr().out)
    assert (rank["section"], rank["key"], rank["type"]) == ("trainer.lora", "rank", "integer ≥ 0")
    assert asked(monkeypatch, "trainer.lora", "--markdown") == 0
    assert f"\n{capsys.readouterr().out}\n" in PAGE.read_text()


def test_a_section_that_is_none_is_refused_with_the_nearest_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(monkeypatch, "trainer.lorra") == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == (
        "",
        "agentrl: unknown section or key trainer.lorra; did you mean trainer.lora?\n",
    )
    with pytest.raises(ConfigError, match="known: alarms, broker, dashboard, dispatch"):
        keys.choose_sections("xyz")
    with pytest.raises(ConfigError, match=r"did you mean dispatch\.group_size\?"):
        keys.choose_sections("dispatch.group_sise")
