import pytest

from agentrl.experiments.cross_policy.measures import compare_arms, compare_lags
from agentrl.experiments.cross_policy.report import COMPARED
from agentrl.experiments.findings import (
    Check,
    Design,
    Drift,
    Lag,
    Mixture,
    Point,
    Skill,
    Training,
)
from agentrl.experiments.report.comparison import verdict

DESIGN = Design(100, 8, 2, 2, 1, 2, 2, {})


def training(arm: str, seed: int, solved: list[int], within: float = 3.0) -> Training:
    """Two items, two attempts each, one update."""
    tracks = {"current": 0.75, "refreshed(8)": 0.25} if arm == "mixed" else {"current": 1.0}
    metrics = {"effective_sample_size": 0.8, "mismatch_k3_lagged": 0.1}
    point = Point(1, 110, {"kg": 0.5}, {"kg": 0.25}, {"kg": 7}, {"kg": 9}, tracks, metrics)
    checks = [Check(0, 0, {"kg": 0.1}), Check(110, 1, {"kg": 0.1 + 0.1 * sum(solved)})]
    skills = [Skill("policy", "kg", solved, [4, 6])]
    if arm == "mixed":
        skills.append(Skill("mixture", "kg", [2, 2], [5, 7]))
    return Training(DESIGN, arm, seed, 1.0, 8, [point], checks, skills, {"kg": within})


ARMS = [
    *(training("current", seed, [seed % 2, 0]) for seed in range(4)),
    *(training("mixed", seed, [1 + seed % 2, 0], within=4.0) for seed in range(4)),
]


def test_estimates_are_over_seeds_and_differences_within_them() -> None:
    found = compare_arms(ARMS)

    def mean(name: str, arm: str) -> float:
        each = found.estimate(name, arm, "kg")
        assert each is not None
        return each.mean

    assert mean("pass@1", "current") == pytest.approx(1 / 8)  # 0, 1/4, 0, 1/4
    assert mean("pass@2", "current") == pytest.approx(1 / 4)  # 0, 1/2, 0, 1/2
    assert mean("mixture pass@1", "mixed") == 1.0
    assert found.estimate("mixture pass@1", "current", "kg") is None
    assert found.difference("pass@1", "current", "kg") is None
    (compared,) = found.differences(COMPARED, ["kg"])
    difference = compared.differences["pass@1"]
    assert (difference.mean, difference.low) == pytest.approx((0.25, 0.25))  # in every seed
    assert compared.differences["histories a group"].mean == 1.0
    assert compared.differences["held-out success on the way"].mean == pytest.approx(0.1)


def test_only_seeds_that_both_arms_have_are_compared() -> None:
    found = compare_arms([*ARMS[:2], ARMS[5], training("mixed", 9, [2, 2])])
    difference = found.difference("pass@1", "mixed", "kg")
    assert difference is not None
    assert (difference.mean, difference.n) == (0.25, 1)  # seed 1: 2/4 − 1/4
    assert compare_arms([ARMS[0], ARMS[5]]).difference("pass@1", "mixed", "kg") is None


def test_costs_are_shares_of_tokens_and_of_weights() -> None:
    found = compare_arms(ARMS)
    names = ("lagged tokens", "effective sample size", "tokens")
    mixed = [found.values(name, "mixed")[0] for name in names]
    assert mixed == pytest.approx([0.25, 0.8, 110.0])
    assert found.values("lagged tokens", "current")[0] == 0.0


def test_the_verdict_tells_what_intervals_show_and_no_more() -> None:
    def lines(trainings: list[Training]) -> list[str]:
        found = compare_arms(trainings).differences(COMPARED, ["kg"])
        return [line for line in verdict(found) if line][1:]

    shown, chance = lines(ARMS)  # pass@8 and pass@64 need more attempts than two
    assert shown.startswith("- **kg, mixed** against `current`: pass@1 +0.250 (")
    assert chance.startswith("3 of 3 intervals exclude zero; ")
    alike = [training(arm, seed, [seed, 0]) for arm in ("current", "mixed") for seed in range(2)]
    assert lines(alike)[0] == "- No difference from `current` shown: kg, mixed."
    alone = [training(arm, 0, [1, 0]) for arm in ("current", "mixed")]
    assert "one seed shows nothing" in lines(alone)[0]


def test_many_comparisons_without_a_difference_are_counted_and_not_named() -> None:
    arms = ("current", "a", "b", "c", "d")
    alike = [training(arm, seed, [seed, 0]) for arm in arms for seed in range(2)]
    found = compare_arms(alike).differences(COMPARED, ["kg"])
    assert "- No difference from `current` shown in 4 comparisons." in list(verdict(found))


def test_every_value_is_written_once_by_arm_seed_and_task() -> None:
    rows = compare_arms(ARMS[3:5]).as_csv().splitlines()
    assert rows[0] == "arm,seed,task,measure,value"
    assert "current,3,kg,pass@1,0.25" in rows
    assert "mixed,0,,tokens,110" in rows
    assert len(rows) == len(set(rows))


def test_lags_are_means_of_a_training_then_of_trainings() -> None:
    def drift(seed: int, *divergences: float) -> Drift:
        lags = [Lag("kg", 5 * n, 10, each, 0.5, 3.0, 20) for n, each in enumerate(divergences)]
        return Drift(DESIGN, seed, 1.0, 60, lags, [])

    found = compare_lags([drift(0, 0.1, 0.3), drift(1, 0.4)])
    assert found.values("KL by lag", "10", "kg") == pytest.approx({0: 0.2, 1: 0.4})


def test_a_mixture_is_compared_with_the_last_policy_alone() -> None:
    def drift(seed: int, alone: int, mixed: int) -> Drift:
        found = [Mixture("kg", 0, [alone, 0], [3, 5]), Mixture("kg", 10, [mixed, 0], [4, 8])]
        return Drift(DESIGN, seed, 1.0, 60, [], found)

    found = compare_lags([drift(0, 1, 2), drift(1, 0, 1)])
    assert found.values("together pass@1", "0", "kg") == {0: 0.25, 1: 0.0}
    difference = found.difference("together pass@1", "10", "kg")
    assert difference is not None
    assert difference.mean == pytest.approx(0.25)  # 1/2 − 1/4, 1/4 − 0
    assert found.values("histories an item", "10", "kg") == {0: 6.0, 1: 6.0}
