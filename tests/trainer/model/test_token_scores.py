import math

import pytest
import torch
from torch import Tensor, nn
from torch_device import DEVICE

from agentrl.trainer.model.token_scores import score_tokens

K, WIDTH, VOCABULARY = 11, 6, 9


def _given() -> tuple[nn.Linear, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, VOCABULARY, bias=False, dtype=torch.float64, device=DEVICE)
    hidden = torch.randn(K, WIDTH, dtype=torch.float64, requires_grad=True, device=DEVICE)
    targets = torch.randint(0, VOCABULARY, (K,), device=DEVICE)
    return head, hidden, torch.rand(K, device=DEVICE) + 0.5, targets


def test_scores_of_two_equal_logits_are_a_coins() -> None:
    head = nn.Linear(1, 2, bias=False, device=DEVICE)
    nn.init.zeros_(head.weight)
    one = torch.ones(1, device=DEVICE)
    found, entropy = score_tokens(head, one[None], one, torch.zeros_like(one).long(), 1)
    assert found.tolist() == pytest.approx([-math.log(2)])
    assert entropy.tolist() == pytest.approx([math.log(2)])


@pytest.mark.parametrize("most", [100, 4, 1])
def test_scores_and_their_gradients_are_those_of_a_plain_log_softmax(most: int) -> None:
    head, hidden, temperature, targets = _given()
    weights = torch.linspace(-1, 1, K, device=DEVICE)
    every = (head(hidden).float() / temperature[:, None]).log_softmax(-1)
    plain = every.gather(-1, targets[:, None])[:, 0]
    expected = torch.autograd.grad((plain * weights).sum(), [hidden, head.weight])
    found, entropy = score_tokens(head, hidden, temperature, targets, most)
    assert torch.allclose(found, plain, atol=1e-6)
    assert torch.allclose(entropy, -(every.exp() * every).sum(-1), atol=1e-6)
    assert not entropy.requires_grad
    gradients = torch.autograd.grad((found * weights).sum(), [hidden, head.weight])
    for one, other in zip(expected, gradients, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def _largest(most: int) -> int:
    """Elements of the largest tensor that is kept for the backward pass."""
    head, hidden, temperature, targets = _given()
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        score_tokens(head, hidden, temperature, targets, most)
    return max(kept)


def test_logits_beyond_one_part_are_not_kept_but_computed_again() -> None:
    assert _largest(K) == K * VOCABULARY
    rows: list[int] = []
    head, hidden, temperature, targets = _given()

    def counted(states: Tensor) -> Tensor:
        rows.append(states.shape[0])
        logits: Tensor = head(states)
        return logits

    found, _ = score_tokens(counted, hidden, temperature, targets, 4)
    assert rows == [4, 4, 3]
    torch.autograd.backward(found.sum())
    assert sorted(rows) == [3, 3, 4, 4, 4, 4]


def test_no_token_scores_nothing_with_a_gradient_of_zero() -> None:
    head, hidden, temperature, targets = _given()
    found, _ = score_tokens(head, hidden[:0], temperature[:0], targets[:0], 5)
    torch.autograd.backward(found.sum())
    assert head.weight.grad is not None
    assert not head.weight.grad.any()
