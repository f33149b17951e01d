"""Updates of the real trainer, recomputed."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from planted_run import PlantedRun
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from agentrl.broker.messages import EpisodeFinished, decode
from agentrl.cli.main import app
from agentrl.core.errors import ConfigError, MessageError, StoreError
from agentrl.ops.replay.whatif import whatif

pytestmark = pytest.mark.slow

NOT_RECOMPUTED = {"seconds", "commit_wait_s", "grad_norm", "learning_rate"}
MACHINE = {"cpu_share", "memory_share", "gpu_share", "gpu_memory_share"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlantedRun]:
    with PlantedRun.begun(tmp_path_factory.mktemp("learned")) as world:
        world.learn_twice()
        yield world


def asked(
    trained: PlantedRun, capsys: pytest.CaptureFixture[str], *names: str, **options: Any
) -> list[Any]:
    score = options.pop("score", True)
    changes = [f"{key.replace('__', '.')}={value}" for key, value in options.items()]
    whatif(trained.path, names, changes, score=score, as_json=True)
    found: list[Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_runs_own_configuration_gives_what_is_stored(
    trained: PlantedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    for found in asked(trained, capsys, "1", "2"):
        [(text,)] = trained.ask(
            "SELECT metrics FROM updates WHERE version = :v", v=found["version"]
        )
        stored = json.loads(text)
        of_environment = "/turns"  # the metric of the planted trajectories
        others = {
            each
            for each in stored
            if each in MACHINE or "staleness" in each or each.endswith(of_environment)
        }
        assert set(stored) - set(found["was"]["metrics"]) == NOT_RECOMPUTED | others
        for name in set(stored) - NOT_RECOMPUTED - others:
            assert found["was"]["metrics"][name] == pytest.approx(stored[name], abs=1e-6), name
        assert found["now"] == found["was"]
        assert found["off"][1] < 1e-6
    assert found["was"]["metrics"]["effective_sample_size"] < 0.99, "the policy had moved"


def test_clipping_at_later_optimizer_steps_is_unknown(
    trained: PlantedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    [found] = asked(trained, capsys, "1", trainer__optimizer_steps=2)
    for name, clipped in (("was", 0.0), ("now", None)):
        assert {row["clipped"] for row in found[name]["rows"].values()} == {clipped}
        in_metrics = [each for each in found[name]["metrics"] if each.endswith("clip_fraction")]
        assert bool(in_metrics) == (clipped is not None)
    assert found["off"][1] < 1e-6


def test_advantages_are_those_of_the_other_normalisation(
    trained: PlantedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """By hand: of rewards 0, 1, 0, 1 each is ½ from the mean; of 0, 0, 0, 1 three are ¼, one ¾."""
    [found] = asked(trained, capsys, "1", trainer__normalise="none", score=False)
    rows = found["now"]["rows"]
    assert rows["dbbench"]["advantage"] == pytest.approx(0.5)
    assert rows["alfworld"]["advantage"] == pytest.approx(0.375)
    was = found["was"]["rows"]
    assert was["dbbench"]["advantage"] == pytest.approx(1.0)
    assert was["alfworld"]["advantage"] == pytest.approx(0.375 / np.sqrt(0.1875))
    assert [was[task]["share"] for task in ("alfworld", "dbbench", "")] == pytest.approx(
        [1 / 3, 2 / 3, 1.0]
    )
    [weighed] = asked(trained, capsys, "1", trainer__task_weights="{alfworld = 4.0}", score=False)
    assert weighed["now"]["rows"]["alfworld"]["share"] == pytest.approx(4 / 6)


def test_groups_are_filtered_and_stale_by_the_other_bounds(
    trained: PlantedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    [first] = asked(trained, capsys, "1", trainer__abnormal_reward="-0.2", score=False)
    was, now = (first[key]["rows"]["dbbench"] for key in ("was", "now"))
    assert (was["groups"], was["filtered"]) == (2, 1)
    assert now["filtered"] == 0, "an abnormal end is worth less than an orderly failure"
    assert first["now"]["rows"][""]["groups"] == 3, "max_groups"
    [half] = asked(trained, capsys, "1", trainer__keep_share="0.5", score=False)
    rows = half["now"]["rows"]["dbbench"]
    assert (rows["groups"], rows["filtered"]) == (1, 2)
    share = "dbbench/zero_spread_share"
    assert half["now"]["metrics"][share] == half["was"]["metrics"][share], "they have spread"
    [second] = asked(trained, capsys, "2", dispatch__max_staleness="0")
    rows = second["now"]["rows"]
    assert [(rows[t]["groups"], rows[t]["stale"]) for t in ("dbbench", "alfworld")] == [
        (0, 1),
        (0, 1),
    ]
    assert (rows[""]["loss_tokens"], rows[""]["share"]) == (0, 0.0)
    assert second["was"]["rows"][""]["stale"] == 0


def ratios(trained: PlantedRun) -> NDArray[np.float64]:
    """π/μ of the loss tokens of update 2, by transformers alone."""
    [(path,)] = trained.ask("SELECT path FROM checkpoints WHERE version = 1")
    model = AutoModelForCausalLM.from_pretrained(path)
    found = []
    for group in ("dbbench-4", "alfworld-5"):
        for member in range(4):
            name = f"{trained.run_id}-{group}-{member}"
            [(wire,)] = trained.ask("SELECT body FROM trajectories WHERE episode_id = :g", g=name)
            message = decode(wire)
            assert isinstance(message, EpisodeFinished)
            body = message.trajectory
            tokens = torch.from_numpy(body.tokens().astype(np.int64))
            with torch.no_grad():
                every = torch.log_softmax(model(tokens[None]).logits[0, :-1].double(), dim=-1)
            current = every.gather(-1, tokens[1:, None])[:, 0].numpy()
            found.append(np.exp(current - body.behaviour()[1:])[body.mask()[1:] == 1])
    return np.concatenate(found)


def test_weights_and_clipping_are_those_of_the_policy_that_learned(
    trained: PlantedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = ratios(trained)
    [found] = asked(trained, capsys, "2", trainer__old="behaviour", trainer__importance="none")
    was, now = (found[key]["rows"][""] for key in ("was", "now"))
    assert was["loss_tokens"] == weights.size
    share = weights.mean() ** 2 / (weights**2).mean()
    assert now["effective_sample_size"] == pytest.approx(share, rel=1e-4)
    assert now["clipped"] > was["clipped"] == 0.0, "π is its own proximal policy"
    ordered = np.sort(weights)[1:-1]  # a bound amid the widest gap, where rounding decides nothing
    place = int(np.diff(ordered).argmax())
    middle = float(ordered[place : place + 2].mean())
    [uncut] = asked(trained, capsys, "2", trainer__importance="none")
    assert uncut["now"]["rows"][""]["effective_sample_size"] == 1.0
    bounds = {"trainer__importance": "icepop", "trainer__min_weight": str(middle)}
    [masked] = asked(trained, capsys, "2", **bounds)
    kept = np.where(weights >= middle, weights, 0.0)
    row = masked["now"]["rows"][""]
    assert row["weighted"] == pytest.approx((weights < middle).mean(), abs=1 / weights.size)
    assert row["effective_sample_size"] == pytest.approx(
        kept.mean() ** 2 / (kept**2).mean(), rel=0.05
    )


def test_the_table_shows_what_was_and_what_would_be(
    trained: PlantedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    result = CliRunner().invoke(
        app, ["whatif", str(trained.path), "1", "--no-score", "--set", "trainer.normalise=none"]
    )
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("update 1 (")
    assert [line.split()[0] for line in lines[1:5]] == ["task", "alfworld", "dbbench", "all"]
    assert "1.000 → 0.500" in lines[3]
    needed = "ESS, weighted and clipped need the weights of the previous checkpoint"
    assert lines[5] == needed


def test_what_cannot_be_recomputed_is_one_clear_error(
    trained: PlantedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StoreError, match="run learned has no update 7"):
        asked(trained, capsys, "7")
    with pytest.raises(ConfigError, match=r"trainer\.normalize; did you mean normalise"):
        asked(trained, capsys, "1", trainer__normalize="none")
    with pytest.raises(ConfigError, match="no value"):
        whatif(trained.path, ["1"], ["trainer.loss"], score=False, as_json=True)
    with pytest.raises(ConfigError, match=r"trainer\.loss"):
        asked(trained, capsys, "1", trainer__loss="sharp")
    group_id = f"{trained.run_id}-dbbench-1"
    named = {"g": f"{group_id}-0"}
    [(kept,)] = trained.ask("SELECT body FROM trajectories WHERE episode_id = :g", **named)
    emptied = "UPDATE trajectories SET body = :b WHERE episode_id = :g"  # as `db prune` does
    for removed in (emptied, "DELETE FROM trajectories WHERE episode_id = :g"):
        trained.sql(removed, **named, **({"b": b""} if removed == emptied else {}))
        [found] = asked(trained, capsys, "1", score=False)
        assert (found["lost"], found["was"]["rows"]["dbbench"]["filtered"]) == (1, 0)
    learned = {"g": f"{trained.run_id}-dbbench-0-0"}
    trained.sql("UPDATE trajectories SET body = :b WHERE episode_id = :g", b=kept[:9], **learned)
    with pytest.raises(MessageError, match=learned["g"]):
        asked(trained, capsys, "1")
    trained.sql(emptied, b=b"", **learned)
    with pytest.raises(StoreError, match=f"{learned['g']}: the trajectory is not stored any more"):
        asked(trained, capsys, "1")
    trained.sql("UPDATE checkpoints SET state = 'deleted' WHERE version = 1")
    [unscored] = asked(trained, capsys, "2")
    assert unscored["scored"] is False
    assert unscored["was"]["rows"][""]["clipped"] is None
    assert unscored["off"][1] < 1e-6
    whatif(trained.path, ["2"], [], score=True, as_json=False)
    assert "the previous checkpoint, which were deleted (trainer.keep" in capsys.readouterr().out
