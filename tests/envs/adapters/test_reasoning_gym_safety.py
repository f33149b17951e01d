"""What a scorer of reasoning-gym may see; the package itself is not needed."""

import pytest

from agentrl.envs.adapters.reasoning_gym.safety import is_safe


@pytest.mark.parametrize(
    ("dataset", "answer", "wanted"),
    [
        ("spiral_matrix", "1 2 3", True),
        ("spiral_matrix", "[1, 2, -3]", True),
        ("spiral_matrix", "oracle_answer", False),
        ("spiral_matrix", "[1 for _ in range(9)]", False),
        ("n_queens", " __import__('os').system('true')", False),
        ("countdown", "(3 + 4) * 5 - 6 / 2", True),
        ("countdown", "9**9**9", False),
        ("countdown", "(9**99)**99", False),
        ("countdown", "99999999!", False),
        ("countdown", "open('/etc/passwd')", False),
        ("simple_integration", "x**3/3 + C", True),
        ("intermediate_integration", "x**2*exp(-x)/2 - sin(x)**2", True),
        ("intermediate_integration", "x.__class__", False),
        ("chain_sum", "__import__('os')", True),
        ("chain_sum", "1e1000000000", True),
        ("coin_flip", "7/32", True),
        ("coin_flip", "3.0517578125e-05", True),
        ("coin_flip", "1e1000000000", False),
        ("coin_flip", "1E-1,000,000,000", False),
        ("coin_flip", " 1e+1_0_0_0_0", False),
    ],
)
def test_a_scorer_sees_only_what_it_can_evaluate_soon_and_without_code(
    dataset: str, answer: str, wanted: bool
) -> None:
    assert is_safe(dataset, answer) == wanted
