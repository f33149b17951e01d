"""Runs inside vLLM's workers, in its environment: what `reload_weights` leaves stale on a CPU.

vLLM packs a linear layer's weights for the CPU once they are loaded, the head's too. Where the head
is tied to the embedding a checkpoint has no tensor of its own for it, so a reload packs it not
again: it goes on with the former weights. A program of its own: it imports nothing of ours.
"""

from typing import Any

HEAD, EMBEDDING = "ParallelLMHead", "VocabParallelEmbedding"


class Heads:
    """vLLM adds it to its worker class (`--worker-extension-cls`)."""

    model_runner: Any

    def refresh_head(self) -> None:
        """Pack the head anew from the weights that it now has."""
        model = self.model_runner.get_model()
        named = [(type(module).__name__, module) for module in model.modules()]
        embeddings = [module for name, module in named if name == EMBEDDING]
        for name, head in named:
            if name != HEAD:
                continue
            if getattr(model.config, "tie_word_embeddings", False) and embeddings:
                head.weight = embeddings[0].weight
            head.quant_method.process_weights_after_loading(head)
