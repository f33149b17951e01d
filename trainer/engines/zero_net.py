"""The module that ZeRO shards: models with their heads, and functions computed inside its call."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import linear

from agentrl.core.errors import CheckpointError
from agentrl.trainer.model.token_scores import Scores, score_tokens
from agentrl.trainer.model.trainable_model import TrainableModel


class Scoring(nn.Module):
    """Scoring with the head's weights, as one module.

    Ranks have different numbers of chunks. As one module, ZeRO 3 gathers the head only once, before
    the first chunk. The weights are parameters of this module itself. If the head were a part of a
    leaf module, ZeRO 3 would reduce its gradient when the module's backward pass ends, and lose
    what a tied weight gets later as the embedding.
    """

    def __init__(self, head: nn.Module) -> None:
        """Raises CheckpointError if the head is not linear."""
        super().__init__()
        if not isinstance(head, nn.Linear):
            raise CheckpointError(f"{type(head).__name__}: DeepSpeed needs a linear head")
        self.weight, self.bias = head.weight, head.bias

    def forward(self, hidden: Tensor, temperature: Tensor, targets: Tensor, most: int) -> Scores:
        """See `score_tokens`."""
        head = partial(linear, weight=self.weight, bias=self.bias)
        return score_tokens(head, hidden, temperature, targets, most)


class Net(nn.Module):
    """The module that ZeRO shards: the model and, if the KL term needs it, the reference.

    It is called with a function to compute, because DeepSpeed's hooks are around its call.
    """

    def __init__(self, tuned: TrainableModel) -> None:
        super().__init__()
        self.model = tuned.model
        with tuned.reference() as reference:
            self.reference = None if reference is tuned.model or reference is None else reference
        if self.reference is not None:
            self.reference.requires_grad_(requires_grad=False)
        models = [each for each in (self.model, self.reference) if each is not None]
        self.scorings = nn.ModuleList([Scoring(each.get_output_embeddings()) for each in models])

    def forward(self, compute: Callable[[], Tensor]) -> Tensor:
        return compute()

    def score(self, head: nn.Module, *arguments: Any) -> Scores:
        """Replace `score_tokens`, through the module of this head."""
        scoring = next(each for each in self.scorings if each.weight is head.weight)
        scores: Scores = scoring(*arguments)
        return scores
