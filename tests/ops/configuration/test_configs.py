import json
import re
import shutil
from pathlib import Path

import pytest
from external_run import POLICIES
from msgspec.structs import replace

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import Model
from agentrl.core.errors import ConfigError
from agentrl.db.registry import checkpoints
from agentrl.db.store import open_store
from agentrl.ops.configuration import configs
from agentrl.ops.configuration.configs import report
from agentrl.ops.doctor.doctor import examine
from agentrl.ops.runs.begin import begin
from agentrl.ops.supervisor.up import up
from agentrl.ops.warmstart import tokenizer
from agentrl.serving.engine_api import COLDEST, HOTTEST
from agentrl.serving.scripted import limits_of

ROOT = Path(__file__).parents[3]
TINY = ROOT / "models" / "tiny"
REWRITING = "{% if messages|length > 2 %}…{% endif %}" + tokenizer.TEMPLATE


def config(tmp_path: Path, more: str = "") -> Config:
    text = f'run.home = "{tmp_path}/run"\nmodel.path = "{TINY}"\ntasks.dbbench = {{}}\n'
    return config_loading.loads(text + more)


def test_a_template_of_ones_own_is_checked_and_stands_in_version_zero(tmp_path: Path) -> None:
    mine = tmp_path / "mine.jinja"
    mine.write_text(tokenizer.TEMPLATE + "{# mine #}")
    own = config(tmp_path, f'model.chat_template = "{mine}"\n')
    run_id = begin(own)
    store = open_store(own.store_url())
    with store.read() as session:
        (first,) = checkpoints.live_checkpoints(session, run_id)
    store.close()
    assert (Path(first.path) / "chat_template.jinja").read_text().endswith("{# mine #}")
    assert not (TINY / "chat_template.jinja").read_text().endswith("{# mine #}")


def test_a_template_that_rewrites_is_refused_with_the_key_that_mends_it(tmp_path: Path) -> None:
    mine = tmp_path / "mine.jinja"
    mine.write_text(REWRITING)
    with pytest.raises(ConfigError, match="rewrites earlier turns") as caught:
        configs.check(config(tmp_path, f'model.chat_template = "{mine}"\n'))
    assert "model.chat_template" in caught.value.hint
    assert not (tmp_path / "run").exists()


JUDGE = """
[tasks.dbbench.judge]
policy = "critic"
"""
ADDRESS = {"url": "http://h/v1", "external": 'key_env = "NO_SUCH_KEY"'}
JUDGED = POLICIES.format(policy="critic", **ADDRESS) + JUDGE


def _judged(tmp_path: Path, old: str = "", new: str = "") -> Config:
    return config_loading.loads(
        f'[run]\nhome = "{tmp_path}"\n[model]\npath = "{TINY}"\n' + JUDGED.replace(old, new)
    )


def test_a_judge_is_a_policy_whose_key_its_server_reads(tmp_path: Path) -> None:
    judged = _judged(tmp_path)
    configs.check(judged)
    assert judged.secret_names() == ["NO_SUCH_KEY"]
    assert judged.judge_policies() == {"critic"}
    configs.check(_judged(tmp_path, 'policy = "critic"', 'policy = "critic"\nscores = "turns"'))


def test_a_judge_scores_episodes_or_turns(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"judge\.scores: .*'turn'; known: episode, turns"):
        _judged(tmp_path, 'policy = "critic"', 'policy = "critic"\nscores = "turn"')


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('policy = "critic"', 'policy = "critik"', "policy: no .* critik; did you mean critic"),
        ('policy = "critic"', 'policy = "policy"', "policy: policy is not an external chat"),
        ('model = "big"', 'model = "big"\ntokens = true', "policy: critic is not an external chat"),
        ('policy = "critic"', 'policy = "critic"\nfunction = "a:b"', "both set"),
        ('policy = "critic"', 'function = "no.such:judge"', "no.such:judge: ModuleNotFoundError"),
        ('policy = "critic"', 'policy = "critic"\nlow = 1', "low: 1 is not below high, 1"),
        (
            'policy = "critic"',
            'policy = "critic"\npattern = "score"',
            "pattern: 0 capturing groups",
        ),
        ('policy = "critic"', 'policy = "critic"\nprompt = "no/such"', "prompt: no/such"),
    ],
)
def test_a_judge_that_cannot_work_is_refused_with_its_key(
    tmp_path: Path, old: str, new: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=rf"tasks\.dbbench\.judge.*{why}"):
        configs.check(_judged(tmp_path, old, new))


TAUGHT = f"""
[[teacher]]
name = "one"
checkpoint = "{TINY}"
"""


def test_a_teacher_teaches_every_task_unless_it_names_some(tmp_path: Path) -> None:
    taught = config(tmp_path, f"trainer.rewards = false{TAUGHT}")
    configs.check(taught)
    assert taught.taught_tasks() == {"dbbench"}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("trainer.rewards = false", "rewards = false: nothing teaches dbbench"),
        (TAUGHT + TAUGHT, "teacher.name: 2 teachers are named one"),
        (TAUGHT + TAUGHT.replace("one", "two"), "teacher.tasks: one and two both teach dbbench"),
        (TAUGHT + 'tasks = ["dbench"]', "teacher.tasks of one.*dbench"),
        (TAUGHT.replace(str(TINY), "no/such"), "teacher.checkpoint of one: .*contains no model"),
        (TAUGHT.replace(str(TINY), "run@latest"), "teacher.checkpoint of one: run@latest changes"),
        (TAUGHT.replace(str(TINY), "hub:a/b"), "checkpoint of one: hub:a/b is not a checkpoint"),
        (TAUGHT.replace(str(TINY), "external()"), r"one: external\(\) is not a checkpoint"),
        (TAUGHT.replace(str(TINY), "external(a"), r"one: external\(a is not a checkpoint"),
        (
            TAUGHT.replace(str(TINY), "external(a)"),
            "checkpoint of one: a is not known; known: policy",
        ),
        (TAUGHT.replace(str(TINY), "external(policy)"), "one: policy is not an external policy"),
    ],
)
def test_a_teacher_that_cannot_teach_is_refused_with_its_key(
    tmp_path: Path, more: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        configs.check(config(tmp_path, more))


def test_an_adapter_or_an_external_policy_can_teach(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    configs.check(config(tmp_path, TAUGHT.replace(str(TINY), str(tmp_path))))
    external = TAUGHT.replace(str(TINY), "external(critic)")
    taught = _judged(tmp_path, JUDGED[JUDGED.index("[tasks") :], f"[tasks.dbbench]{external}")
    configs.check(taught)
    assert taught.teacher_policies() == taught.silent_policies() == {"critic"}


def test_a_policy_that_judges_has_no_weight_in_sampling(tmp_path: Path) -> None:
    sampling = '[sampling]\nstrategy = "weighted"\nweights = {"external(critic)" = 1.0}\n[[policy]]'
    with pytest.raises(ConfigError, match=r"sampling.weights: no server follows external"):
        configs.check(
            _judged(tmp_path, '[[policy]]\nname = "policy"', sampling + '\nname = "policy"')
        )


def test_a_valid_file_names_the_secrets_that_this_machine_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "my.toml"
    text = config_loading.to_toml(config(tmp_path))
    file.write_text(text.replace('url = "embedded"', 'url = "${NO_SUCH_STORE}"', 1))
    assert "missing on this machine: store.url: ${NO_SUCH_STORE} is not set. " in report(file)
    monkeypatch.setenv("NO_SUCH_STORE", "sqlite:///x.db")
    assert "missing" not in report(file)


@pytest.mark.parametrize("driver", ["postgres", "mysql", "sqlite+foo"])
def test_a_database_that_cannot_be_used_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    file = tmp_path / "my.toml"
    monkeypatch.setenv("STORE_PASSWORD", "hunter2")
    text = config_loading.to_toml(config(tmp_path))
    url = f"{driver}://u:${{STORE_PASSWORD}}@h/d"
    file.write_text(text.replace('url = "embedded"', f'url = "{url}"', 1))
    with pytest.raises(ConfigError) as refused:
        report(file)
    assert str(refused.value) == f"{file}: store.url: {driver}:// is not supported"
    assert "postgresql+psycopg://USER@HOST/DATABASE" in refused.value.hint


@pytest.mark.parametrize(
    ("key", "keys"),
    [
        ("model.device", 'model.device = "cuda:99"\n'),
        ("eval.device", 'eval.every = 2\neval.device = "cuda:99"\n'),
    ],
)
def test_up_and_doctor_refuse_a_device_that_this_machine_lacks(
    tmp_path: Path, key: str, keys: str
) -> None:
    file, own = tmp_path / "my.toml", config(tmp_path, keys)
    file.write_text(config_loading.to_toml(own))
    with pytest.raises(ConfigError, match=f"^{key}: this machine has no cuda:99"):
        up(file, detach=False)
    assert not (tmp_path / "run").exists()
    found = {finding.name: finding for finding in examine(own)}
    assert found["torch"].state == "missing"
    assert f"{key}: this machine has no cuda:99" in found["torch"].detail


def test_a_vllm_that_cannot_hold_its_tracks_is_refused_before_anything_is_made(
    tmp_path: Path,
) -> None:
    server = '[[policy]]\nname = "p"\nengine = "vllm"\ntracks = ["current", "lagged(4)"]\n'
    with pytest.raises(ConfigError, match="serves one track") as caught:
        configs.check(config(tmp_path, server))
    assert "trainer.lora.rank" in caught.value.hint
    configs.check(config(tmp_path, f"trainer.lora.rank = 4\n{server}"))
    assert not (tmp_path / "run").exists()


def test_a_model_of_which_the_text_model_is_a_part_is_refused_for_vllm(tmp_path: Path) -> None:
    text = json.loads((TINY / "config.json").read_text())
    model = _model(tmp_path, **dict.fromkeys(text) | {"text_config": text})
    configs.check(replace(config(tmp_path), model=model))
    assert limits_of(Path(model.path)) == limits_of(TINY)
    for server in (VLLM, "eval.every = 1\neval.engine = 'vllm'\n"):
        with pytest.raises(ConfigError, match=r"policy .*: .*model: vLLM .*text_config") as caught:
            configs.check(replace(config(tmp_path, server), model=model))
        assert "the text model alone" in caught.value.hint


VLLM = '[[policy]]\nname = "p"\nengine = "vllm"\n'
LOCAL_EVAL = f"eval.every = 1\n{VLLM}"
VLLM_EVAL = "[eval]\nevery = 1\nengine = 'vllm'\nvllm.context = 1000\n"
LONG, OLD = {"rope_type": "longrope"}, {"type": "su"}
ORIGINAL = {"original_max_position_embeddings": 1000}
WINDOW = "sliding window of 1000, the context of"


@pytest.mark.parametrize(
    ("described", "servers", "error"),
    [
        ({}, f"{VLLM}vllm.context = 1000\n", r"policy\.vllm\.context 1000 of p$"),
        ({}, VLLM_EVAL, r"eval\.vllm\.context 1000 of evaluator$"),
        ({"sliding_window": 1000, "use_sliding_window": None}, "", f"{WINDOW} policy$"),
        ({"sliding_window": 1000, "use_sliding_window": True}, LOCAL_EVAL, f"{WINDOW} evaluator$"),
        ({"sliding_window": 1000, "use_sliding_window": False}, "", ""),
        ({"sliding_window": 1000, "use_sliding_window": None}, VLLM, ""),
        ({"rope_parameters": {**LONG, **ORIGINAL}}, "", "1000 original positions"),
        ({"rope_parameters": {"full_attention": LONG}, **ORIGINAL}, "", "1000 original positions"),
        ({"rope_parameters": None, "rope_scaling": OLD, **ORIGINAL}, "", "1000 original positions"),
        ({"rope_parameters": {"rope_type": "dynamic", **ORIGINAL}}, "", ""),
    ],
)
def test_a_trajectory_longer_than_the_context_of_a_server_is_refused(
    tmp_path: Path, described: dict[str, object], servers: str, error: str
) -> None:
    model = _model(tmp_path, **described)
    for tokens in (1000, 1001):
        text = f"sampling.max_tokens = {tokens}\nsampling.max_step_tokens = 100\n{servers}"
        own = replace(config(tmp_path, text), model=model)
        if not error or tokens == 1000:
            configs.check(own)
            continue
        with pytest.raises(
            ConfigError, match=rf"sampling\.max_tokens: 1001 exceeds .*{error}"
        ) as no:
            configs.check(own)
        assert no.value.hint.startswith("set it to at most 1000, or ")


def test_a_vllm_that_would_use_the_long_frequencies_of_longrope_is_refused(tmp_path: Path) -> None:
    model = _model(tmp_path, rope_parameters=LONG, **ORIGINAL)
    limits = "sampling.max_tokens = 1000\nsampling.max_step_tokens = 100\n"
    own = config(tmp_path, f"{limits}{VLLM}vllm.context = 1000\n")
    configs.check(replace(own, model=model))
    for more, context in (("", 2048), ("vllm.context = 1500\n", 1500)):
        own = replace(config(tmp_path, f"{limits}{VLLM}{more}"), model=model)
        with pytest.raises(ConfigError, match=f"with a context of {context}, p uses") as caught:
            configs.check(own)
        assert caught.value.hint == "set policy.vllm.context to at most 1000"


def _model(tmp_path: Path, **described: object) -> Model:
    """A copy of the tiny model with other values in its config.json; None: without the key."""
    path = tmp_path / "model"
    shutil.copytree(TINY, path)
    stated = json.loads((path / "config.json").read_text()) | described
    kept = {key: value for key, value in stated.items() if value is not None}
    (path / "config.json").write_text(json.dumps(kept))
    return Model(path=str(path))


@pytest.mark.parametrize("text", ["{", "[]", '{"max_position_embeddings": "many"}'])
def test_a_malformed_description_of_the_model_is_one_clear_error(tmp_path: Path, text: str) -> None:
    model = tmp_path / "model"
    shutil.copytree(TINY, model)
    (model / "config.json").write_text(text)
    own = config(tmp_path).model
    broken = replace(config(tmp_path), model=replace(own, path=str(model)))
    with pytest.raises(ConfigError, match=re.escape(f"{model}/config.json: ")):
        configs.check(broken)
    found = {finding.name: finding for finding in examine(broken)}
    assert found["config"].state == "missing"


def test_an_argument_of_vllm_that_has_a_key_of_its_own_is_refused(tmp_path: Path) -> None:
    configs.check(config(tmp_path, f'{VLLM}vllm.args = ["--gpu-memory-utilization", "0.3"]\n'))
    for arguments in ('["--max-model-len", "256"]', '["--max_model_len=256"]'):
        with pytest.raises(ConfigError, match=r"policy\.vllm\.args: --max.model.len") as caught:
            configs.check(config(tmp_path, f"{VLLM}vllm.args = {arguments}\n"))
        assert caught.value.hint == "remove it and set policy.vllm.context"


def test_the_evaluators_vllm_is_checked_under_its_own_keys(tmp_path: Path) -> None:
    server = '[eval]\nengine = "vllm"\nvllm.python = "none"\nvllm.cpu_adapters = 1\n'
    text = f"trainer.lora.rank = 4\n{server}"
    idle, own = config(tmp_path, text), config(tmp_path, f"{text}every = 2\n")
    configs.check(idle)
    with pytest.raises(ConfigError, match=r"eval\.vllm\.cpu_adapters is 1"):
        configs.check(own)
    assert "vllm of evaluator" not in {finding.name for finding in examine(idle)}
    found = {finding.name: finding for finding in examine(own)}["vllm of evaluator"]
    assert found.state == "missing"
    assert found.detail.startswith("eval.vllm.python: there is no interpreter at ")


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ('sampling.strategy = "adaptive"\nsampling.floor = 0.5\n', "floor: 2 tracks with 0.5"),
        ('sampling.strategy = "weighted"\nsampling.weights."lagged(5)" = 1.0\n', r"lagged\(5\)"),
        ("sampling.weights.current = -1.0\n", r"sampling\.weights.* >= 0\.0"),
    ],
)
def test_weights_that_no_pool_could_have_are_refused(tmp_path: Path, more: str, error: str) -> None:
    configs.check(config(tmp_path, 'sampling.strategy = "adaptive"\n'))
    with pytest.raises(ConfigError, match=error):
        configs.check(config(tmp_path, more))


@pytest.mark.parametrize("key", ["sampling.temperature", "eval.temperature"])
def test_a_temperature_that_every_engine_refuses_is_refused(tmp_path: Path, key: str) -> None:
    for value in (0.0, COLDEST, HOTTEST):
        configs.check(config(tmp_path, f"{key} = {value}\n"))
    for value in (COLDEST * 0.99, HOTTEST * 1.01):
        with pytest.raises(ConfigError, match=rf"{key}: {value:g} is neither 0 nor in 0\.01…100"):
            configs.check(config(tmp_path, f"{key} = {value}\n"))


@pytest.mark.parametrize(
    ("track", "lag"), [("lagged(9)", 9), ("refreshed(10)", 9), ("pinned(run-v000001)", 0)]
)
def test_a_track_that_is_too_far_behind_to_be_trained_is_refused(
    tmp_path: Path, track: str, lag: int
) -> None:
    text = f'[[policy]]\nname = "p"\ntracks = ["current", "{track}"]\n[dispatch]\nmax_lag = '
    configs.check(config(tmp_path, f"{text}{lag}\n"))
    if lag:
        with pytest.raises(ConfigError, match=rf"max_lag: 8 is below 9, .*{track[:6]}"):
            configs.check(config(tmp_path, f"{text}8\n"))
        configs.check(config(tmp_path, f'{text}8\n[sampling]\nstrategy = "current"\n'))


def test_a_loss_of_sequences_is_refused_if_steps_of_an_episode_draw_their_policies(
    tmp_path: Path,
) -> None:
    mixed = 'trainer.loss = "gspo"\npolicy = [{name = "p", tracks = ["current", "lagged(4)"]}]\n'
    turns = r"up to 15 turns of dbbench draw from current, lagged\(4\)"
    for steps in (1, 14):
        with pytest.raises(ConfigError, match=turns):
            configs.check(config(tmp_path, f"{mixed}sampling.sticky_steps = {steps}\n"))
    for more in (
        "sampling.sticky_steps = 15\n",
        'sampling.strategy = "current"\n',
        "sampling.stale_share = 0.0\n",
        "trainer.mixed_sequences = true\n",
    ):
        configs.check(config(tmp_path, mixed + more))


@pytest.mark.parametrize("fewest", ["trainer.min_groups", "dispatch.groups_per_update"])
def test_a_batch_whose_most_groups_are_below_its_fewest_is_refused(
    tmp_path: Path, fewest: str
) -> None:
    configs.check(config(tmp_path, f"{fewest} = 8\ntrainer.max_groups = 8\n"))
    with pytest.raises(ConfigError, match=rf"trainer\.max_groups: 7 is below {fewest} = 8"):
        configs.check(config(tmp_path, f"{fewest} = 8\ntrainer.max_groups = 7\n"))


@pytest.mark.parametrize(
    ("named", "error"),
    [
        ('"current", "laged(4)"', r"^policy\.tracks of p: unknown track 'laged\(4\)'"),
        ('"current", "current"', r"^policy\.tracks of p: current is named 2 times"),
    ],
)
def test_tracks_that_no_server_could_follow_name_their_key(
    tmp_path: Path, named: str, error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        configs.check(config(tmp_path, f'[[policy]]\nname = "p"\ntracks = [{named}]\n'))


@pytest.mark.parametrize(
    ("more", "error", "hint"),
    [
        ("worker.beat_s = 30", r"^worker\.lease_s: 15 is less than 2 \* beat_s = 60", "7.5"),
        ("dispatch.tick_s = 8", r"^dispatch\.lease_s: 15 is less than 2 \* tick_s = 16", "7.5"),
        (
            '[[policy]]\nname = "p"\nbeat_s = 4',
            r"^policy\.lease_s of p: 6 is less than 2 \* beat_s = 8",
            "3",
        ),
    ],
)
def test_a_lease_that_can_end_between_two_renewals_is_refused(
    tmp_path: Path, more: str, error: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=error) as caught:
        configs.check(config(tmp_path, more))
    assert caught.value.hint.endswith(f"to at most {hint}")


def test_a_lease_of_two_heartbeats_is_long_enough(tmp_path: Path) -> None:
    configs.check(config(tmp_path, "worker.beat_s = 7.5\ndispatch.tick_s = 7.5\n"))


def test_a_run_whose_workers_would_meet_openenv_is_refused(tmp_path: Path) -> None:
    openenv = 'envs.protocol = "openenv"\n'
    configs.check(config(tmp_path, openenv))
    with pytest.raises(ConfigError, match="workers cannot play episodes on http://env:7100"):
        configs.check(config(tmp_path, f'{openenv}envs.url = "http://env:7100"\n'))


@pytest.mark.parametrize(
    ("section", "more"),
    [
        ("policy", '[[policy]]\nname = "p"\nhost = "0.0.0.0"\n'),
        ("envs", 'envs.url = "http://env:7100"\nenvs.host = "0.0.0.0"\n'),
        ("metrics", 'metrics.port = 9464\nmetrics.host = "0.0.0.0"\n'),
    ],
)
def test_a_server_off_loopback_without_a_token_is_refused(
    tmp_path: Path, section: str, more: str
) -> None:
    with pytest.raises(ConfigError, match=f"^the {section} server needs a bearer token: 0.0.0.0"):
        configs.check(config(tmp_path, more))
    separator = "" if section == "policy" else f"{section}."
    configs.check(config(tmp_path, f'{more}{separator}token_env = "TOKEN"\n'))


def test_containers_without_an_env_server_are_refused_by_every_verb(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    model = f'[model]\npath = "{ROOT / "models" / "tiny"}"\n'
    file.write_text(f'[run]\nhome = "{tmp_path / "home"}"\n{model}[tasks.os.options]\nitems = 4\n')
    config = config_loading.load(file)
    [finding] = [each for each in examine(config) if each.name == "config"]
    assert finding.state == "missing"
    needs = r"tasks\.os runs in containers, which need an env server"
    assert re.search(needs, finding.detail)
    for verb in (lambda: report(file), lambda: up(file, detach=False), lambda: begin(config)):
        with pytest.raises(ConfigError, match=needs):
            verb()
    assert not (tmp_path / "home").exists()


def test_an_option_is_named_after_its_task_once(tmp_path: Path) -> None:
    more = '[tasks.kg.options]\ndifficulty = "gigantic"\n'
    with pytest.raises(
        ConfigError, match=r"^tasks\.kg: option difficulty: .*gigantic.*known: easy"
    ):
        configs.check(config(tmp_path, more))


def test_an_origin_without_a_training_split_says_so() -> None:
    text = '[tasks.dbbench.options]\norigin = "agentbench"\n'
    with pytest.raises(ConfigError, match=r"^tasks\.dbbench\.split: no split train") as refused:
        configs.check_tasks(config_loading.loads(text))
    assert refused.value.hint.startswith("origin agentbench has no training split")
