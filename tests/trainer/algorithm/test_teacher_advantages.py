import math

import pytest
import torch

from agentrl.trainer.algorithm.teacher_advantages import teacher_advantages

HALF, QUARTER = math.log(0.5), math.log(0.25)


def test_the_advantages_have_the_values_worked_out_by_hand() -> None:
    current = torch.tensor([HALF, QUARTER, HALF, HALF])
    teacher = torch.tensor([QUARTER, HALF, HALF, 0.0])
    weights = torch.tensor([1.0, 2.0, 1.0, 0.0])  # no teacher scored the last token
    found = teacher_advantages(current, teacher, weights)
    assert found.tolist() == pytest.approx([-math.log(2), 2 * math.log(2), 0.0, 0.0])


def test_their_policy_gradient_is_that_of_the_reverse_kl_over_all_tokens() -> None:
    logits = torch.tensor([1.0, 0.2, -0.5], requires_grad=True)
    teacher = torch.tensor([0.2, 0.5, 0.3]).log()
    current = logits.log_softmax(-1)
    (expected,) = torch.autograd.grad((current.exp() * (current - teacher)).sum(), logits)
    current = logits.log_softmax(-1)
    advantages = teacher_advantages(current, teacher, torch.ones(3))
    loss = -(current.exp().detach() * advantages * current).sum()  # every token, as often as drawn
    (found,) = torch.autograd.grad(loss, logits)
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-6)


def test_an_impossible_token_has_a_finite_advantage() -> None:
    current, teacher = torch.tensor([HALF, HALF]), torch.tensor([-math.inf, -math.inf])
    found = teacher_advantages(current, teacher, torch.tensor([1.0, 0.0]))
    assert found.tolist() == [-20.0, 0.0]
