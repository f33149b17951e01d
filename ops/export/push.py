"""`agentrl push`: uploads an exported dataset or checkpoint to a Hub.

DIR ─▶ dataset or model ─▶ repository, created if it is missing ─▶ commit

HF_ENDPOINT selects another Hub. The token is HF_TOKEN, or the content of the file HF_TOKEN_FILE,
never one stored by a login.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from agentrl.core.config.secrets import secret
from agentrl.core.errors import AgentRLError, ConfigError
from agentrl.ops.models import hub

TOKEN = "HF_TOKEN"  # noqa: S105 - the name of the variable
NAME = re.compile(r"[\w.-]+/[\w.-]+")
NUMBER = "[0-9]" * 5
# What a former push may have left under other names: shards of Parquet and of weights, by the names
# that exports give. The Hub's client compares with fnmatch, whose * crosses folders.
REPLACED = {
    "dataset": [f"data/train-{NUMBER}.parquet"],
    "model": [
        "model.safetensors",
        "model.safetensors.index.json",
        f"model-{NUMBER}-of-{NUMBER}.safetensors",
        "adapter_model.safetensors",
    ],
}


class PushError(AgentRLError):
    """The Hub is unreachable or refused the upload."""


def push(folder: Path, repository: str, *, public: bool) -> str:
    """Upload; return the message to print. Raises ConfigError, PushError.

    `public`: of a repository that is created; one that exists keeps its visibility.
    """
    kind = _kind(folder)
    if NAME.fullmatch(repository) is None:
        raise ConfigError(f"{repository} is not a repository's name", hint="use OWNER/NAME")
    token = secret(TOKEN)
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise ConfigError(
            "a push needs huggingface_hub, which is not installed",
            hint="pip install huggingface_hub",
        ) from error
    hub.mask_logs()
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token)
    try:
        made = api.create_repo(repository, repo_type=kind, private=not public, exist_ok=True)
        done = api.upload_folder(
            repo_id=repository,
            repo_type=kind,
            folder_path=folder,
            commit_message=f"Upload {folder.resolve().name} with agentrl",
            delete_patterns=REPLACED[kind],
        )
    except Exception as error:  # huggingface_hub raises whatever its parts raise
        _refuse(repository, api.endpoint, error)
    return f"{folder} is at {hub.without_secrets(made)}, commit {done.oid[:8]}"


def _kind(folder: Path) -> str:
    """Return the type of repository that a folder makes. Raises ConfigError."""
    if (folder / "README.md").is_file() and any(folder.glob("data/*.parquet")):
        return "dataset"
    if any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
        return "model"
    raise ConfigError(
        f"{folder} is neither a dataset nor a model directory",
        hint="write one with `agentrl export`",
    )


def _refuse(repository: str, endpoint: str, error: Exception) -> NoReturn:
    """Raise PushError with the cause in one line."""
    chain = list(_causes(error))
    status = next((each for each in map(_refused_token, chain) if each), None)
    if status is not None:
        what = f"{endpoint} refused the token ({status})"
        hint = f"export {TOKEN}=… with write permission for {repository.partition('/')[0]}"
    else:
        cause = (str(chain[-1]).strip() or type(chain[-1]).__name__).splitlines()[0]
        what, hint = f"{endpoint} did not take the upload: {cause}", "check HF_ENDPOINT, try again"
    raise PushError(f"{repository}: {hub.without_secrets(what)}", hint=hint) from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _refused_token(error: BaseException) -> int | None:
    """Return the status with which a request that carried the token was refused.

    Requests to the storage carry none: their URL is signed.
    """
    response: Any = getattr(error, "response", None)
    if response is None or response.status_code not in (401, 403):
        return None
    carried = "authorization" in response.request.headers
    return int(response.status_code) if carried else None
