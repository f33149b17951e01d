from pathlib import Path

import pytest

from agentrl.ops.warmstart import tokenizer
from agentrl.workers.conversation.template import ChatTemplate


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of 300 tokens and its template, without weights."""
    folder = tmp_path_factory.mktemp("policy")
    tokenizer.save(tokenizer.train(["look at the mug on the desk 1"], 300), folder)
    return folder


@pytest.fixture(scope="session")
def template(model_dir: Path) -> ChatTemplate:
    return ChatTemplate.load(model_dir)
