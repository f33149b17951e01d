"""Models of the Hugging Face Hub, as local directories: `hub:OWNER/NAME[@REVISION]`.

    model.path ─▶ run.home/model.json names it? ─▶ that directory
                          │ no
                          ▼
         snapshot_download (the Hub, or its cache) ─▶ directory, kept in model.json

All processes of a run read the same directory, even if a branch on the Hub changes. The token is
HF_TOKEN, never one stored by a login.
"""

import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from agentrl.checkpoints import manifest
from agentrl.core.config.config import Config
from agentrl.core.errors import ConfigError

PREFIX = "hub:"
RECORD = "model.json"
URL = re.compile(r"(?P<scheme>\w+://)(?:[^\s/?#]*@)?(?P<place>[^\s?#'\"]*)(?:[?#][^\s'\"]*)?")
NAME = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
DESCRIPTION = (
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "tokenizer*",
    "special_tokens_map.json",
    "chat_template.jinja",
    "vocab*",
    "merges.txt",
    "added_tokens.json",
)
WEIGHTS = "model*.safetensors"
CARD = "README.md"


class Record(msgspec.Struct, frozen=True):
    """The directory that a run uses for a Hub name."""

    model: str
    path: str


def resolve_model(config: Config) -> Config:
    """Return the configuration with a local `model.path`, fetched once and fixed for the run.

    Raises ConfigError that names the cause: name, network, permission, disk or weights.
    """
    if not config.model.path.startswith(PREFIX):
        return config
    found = _read_record(config)
    if found is None:
        found = fetch_model(config.model.path)
        _keep(config, found)
    return _at(config, found)


def describe_model(config: Config) -> Config:
    """Like `resolved`, but fetch no weights and write nothing to the run's home."""
    if not config.model.path.startswith(PREFIX):
        return config
    return _at(config, _read_record(config) or fetch_model(config.model.path, weights=False))


def fetch_model(model: str, *, weights: bool = True) -> Path:
    """Return the directory of a `hub:` name, from the Hub, or from its cache if it is unreachable.

    HF_ENDPOINT and HF_HUB_CACHE select another Hub and cache. Raises ConfigError.
    """
    match = NAME.fullmatch(model.removeprefix(PREFIX))
    if match is None:
        raise ConfigError(
            f"model.path: {model} is not a valid name", hint="use hub:OWNER/NAME[@REVISION]"
        )
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        hint = "pip install huggingface_hub, or name a directory"
        raise ConfigError(
            f"model.path: {model} needs huggingface_hub, which is not installed", hint=hint
        ) from error
    mask_logs()
    try:
        folder = snapshot_download(
            match["repo"],
            revision=match["revision"],
            cache_dir=os.environ.get("HF_HUB_CACHE"),
            endpoint=os.environ.get("HF_ENDPOINT"),
            token=os.environ.get("HF_TOKEN") or False,
            allow_patterns=[*DESCRIPTION, CARD, WEIGHTS] if weights else list(DESCRIPTION),
            ignore_patterns=["*/*"],
        )
    except Exception as error:  # huggingface_hub raises whatever its parts raise
        _refuse(model, error)
    path = Path(folder)
    if weights and (absent := absent_weights(path)):
        raise ConfigError(
            f"model.path: {model} has no {', '.join(absent[:3])}",
            hint="choose a model or a revision with safetensors weights",
        )
    return path


def repository(model: str) -> str:
    """Return OWNER/NAME of a `hub:` name; empty for any other."""
    match = NAME.fullmatch(model.removeprefix(PREFIX)) if model.startswith(PREFIX) else None
    return match["repo"] if match else ""


def weight_names(path: Path) -> Sequence[str]:
    """Return the weight files that a transformers directory needs."""
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        return ["model.safetensors"]
    return sorted(set(msgspec.json.decode(index.read_bytes()).get("weight_map", {}).values()))


def absent_weights(path: Path) -> Sequence[str]:
    """Return the weight files missing directly in a transformers directory."""
    return [name for name in weight_names(path) if not (path / Path(name).name).is_file()]


def model_digests(path: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of a snapshot that decides tokens: not of its card, nor of
    what another program fetched beside them.
    """
    needed = (*DESCRIPTION, WEIGHTS)
    names = {file.name for pattern in needed for file in path.glob(pattern)}
    return {name: manifest.file_sha256(path / name) for name in sorted(names)}


def mask_logs() -> None:
    """Hide what `without_secrets` removes in the Hub client's warnings of a retry."""
    for handler in logging.getLogger("huggingface_hub").handlers:
        handler.addFilter(_mask_record)


def _mask_record(record: logging.LogRecord) -> bool:
    record.msg, record.args = without_secrets(record.getMessage()), None
    return True


def without_secrets(text: str) -> str:
    """Return the text with its URLs, without their logins and queries, which hold signatures."""
    return URL.sub(r"\g<scheme>\g<place>", text)


def _refuse(model: str, error: Exception) -> NoReturn:
    """Raise ConfigError with the error of the Hub or its cache in one line."""
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    forbidden = "accept its terms on its page, then export HF_TOKEN=… of that account"
    match error:
        case errors.GatedRepoError():
            what, hint = f"gated ({status})", forbidden
        case errors.RevisionNotFoundError():
            what, hint = "no such revision", "name one of its branches, tags or commits"
        case errors.RepositoryNotFoundError():
            what, hint = f"no such model, or a private one ({status})", "export HF_TOKEN=…"
        case errors.LocalEntryNotFoundError():
            cause = error.__cause__
            status = getattr(getattr(cause, "response", None), "status_code", None)
            if status in (401, 403):
                what, hint = f"access denied ({status})", forbidden
            else:
                what = f"not in the cache, and the Hub is unreachable ({_cause(cause)})"
                hint = f"run `hf download {model.removeprefix(PREFIX)}` while online"
        case errors.HFValidationError():
            what, hint = "not a name on the Hub", "write hub:OWNER/NAME[@REVISION]"
        case _:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            what, hint = f"not fetched: {first}", "try again, or name a directory"
    raise ConfigError(f"model.path: {model}: {without_secrets(what)}", hint=hint) from error


def _cause(cause: BaseException | None) -> str:
    """Return why the Hub is unreachable."""
    if cause is None or type(cause).__name__ == "OfflineModeIsEnabled":
        return "HF_HUB_OFFLINE is set"
    return str(cause).splitlines()[0] if str(cause) else type(cause).__name__


def _read_record(config: Config) -> Path | None:
    """Return the directory that the run used before, if it still exists."""
    try:
        record = msgspec.json.decode((config.home() / RECORD).read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError):
        return None
    path = Path(record.path)
    if record.model != config.model.path or not (path / "config.json").is_file():
        return None
    return path


def _keep(config: Config, path: Path) -> None:
    home = config.home()
    try:
        home.mkdir(parents=True, exist_ok=True)
        partial = home / f"{RECORD}.{os.getpid()}"
        partial.write_bytes(msgspec.json.encode(Record(config.model.path, str(path))))
        partial.replace(home / RECORD)
    except OSError as error:
        raise ConfigError(
            f"run.home: {home} cannot be written to: {error.strerror}",
            hint="set run.home to a folder that you may write to",
        ) from error


def _at(config: Config, path: Path) -> Config:
    model = msgspec.structs.replace(config.model, path=str(path))
    return msgspec.structs.replace(config, model=model)
