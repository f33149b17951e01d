import pytest

from agentrl.ops.experiments.figures import figures
from agentrl.ops.experiments.findings import (
    Check,
    Design,
    Drift,
    Lag,
    Mixture,
    Point,
    Skill,
    Training,
)
from agentrl.ops.experiments.formatting import chance
from agentrl.ops.experiments.verdict import compared, verdict

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
    found = figures(ARMS, [])
    current, mixed = found.trained["kg"]["current"], found.trained["kg"]["mixed"]
    assert current.passed["policy"][1].mean == pytest.approx(1 / 8)  # 0, 1/4, 0, 1/4
    assert current.passed["policy"][2].mean == pytest.approx(1 / 4)  # 0, 1/2, 0, 1/2
    assert mixed.passed["mixture"][1].mean == 1.0
    assert mixed.histories["mixture"].mean == 6.0
    assert current.versus == {}
    difference = mixed.versus["pass@1"]
    assert (difference.mean, difference.low) == pytest.approx((0.25, 0.25))  # in every seed
    assert mixed.versus["histories a group"].mean == 1.0
    assert mixed.versus["held-out success on the way"].mean == pytest.approx(0.1)


def test_the_current_policy_is_its_own_mixture() -> None:
    current = figures(ARMS, []).trained["kg"]["current"]
    assert current.passed["mixture"] == current.passed["policy"]


def test_costs_are_shares_of_tokens_and_of_weights() -> None:
    costs = figures(ARMS, []).costs
    assert costs["mixed"].lagged.mean == pytest.approx(0.25)
    assert costs["current"].lagged.mean == 0.0
    assert costs["mixed"].effective.mean == pytest.approx(0.8)
    assert costs["mixed"].tokens.mean == 110.0


def test_the_verdict_tells_what_intervals_show_and_no_more() -> None:
    found = figures(ARMS, [])
    (line,) = verdict(found)
    assert line.startswith("- **kg, mixed** against `current`: pass@1 +0.250 (")
    every = compared(found)  # pass@8 and pass@64 need more attempts than two
    assert [each.sign for each in every] == [1, 1, 1]
    assert chance(every).startswith("3 of 3 intervals exclude zero; ")
    alike = [training(arm, seed, [seed, 0]) for arm in ("current", "mixed") for seed in range(2)]
    assert verdict(figures(alike, [])) == [
        "- **kg, mixed** against `current`: no difference shown."
    ]
    alone = [training(arm, 0, [1, 0]) for arm in ("current", "mixed")]
    assert "one seed shows nothing" in verdict(figures(alone, []))[0]


def test_lags_are_means_of_a_training_then_of_trainings() -> None:
    def drift(seed: int, *divergences: float) -> Drift:
        lags = [Lag("kg", 5 * n, 10, each, 0.5, 3.0, 20) for n, each in enumerate(divergences)]
        return Drift(DESIGN, seed, 1.0, 60, lags, [])

    moved = figures(ARMS, [drift(0, 0.1, 0.3), drift(1, 0.4)]).lags["kg"][10]
    assert moved.divergence.mean == pytest.approx((0.2 + 0.4) / 2)
    assert (moved.pairs, moved.divergence.n) == (3, 2)
    assert moved.span == (0.1, 0.4)


def test_a_mixture_is_compared_with_the_last_policy_alone() -> None:
    def drift(seed: int, alone: int, mixed: int) -> Drift:
        found = [Mixture("kg", 0, [alone, 0], [3, 5]), Mixture("kg", 10, [mixed, 0], [4, 8])]
        return Drift(DESIGN, seed, 1.0, 60, [], found)

    found = figures(ARMS, [drift(0, 1, 2), drift(1, 0, 1)]).together["kg"]
    assert found[0].versus == {}
    assert found[10].versus[1].mean == pytest.approx(0.25)  # 1/2 − 1/4, 1/4 − 0
    assert found[10].versus[2].mean == pytest.approx(0.25)  # 1/2 − 1/2, 1/2 − 0
    assert found[10].histories.mean == 6.0
