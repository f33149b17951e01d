"""`agentrl serve`: serves one checkpoint until told to stop.

name ─▶ Target ─▶ local engine, verified ─▶ ChatPolicy ◀─ ModelServer ◀─ HTTP
"""

from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agentrl.core import config_loading, logging
from agentrl.core.config.config import Config
from agentrl.core.config.secrets import secret
from agentrl.core.errors import ConfigError, PolicyError
from agentrl.envs.gateway.model_server import Address, ModelServer
from agentrl.ops.evaluation.serve_target import Servers
from agentrl.ops.evaluation.target import Target, fit_config, resolve
from agentrl.ops.models import hub
from agentrl.ops.processes.entry import stop_on_signals
from agentrl.ops.serve.chat_policy import ChatPolicy
from agentrl.workers.attempt_errors import EpisodeStopped
from agentrl.workers.conversation.template import ChatTemplate
from agentrl.workers.conversation.toolcalls import Style

LOOK_S = 1.0  # between two looks at the engine


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """What is served where. `name`: that clients ask for; empty: the checkpoint's own.

    `token_env`: variable with the bearer token. Empty `device`, `dtype`, `style`: the
    configuration's; without one, those of `[model]` and the style that the chat template writes.
    `threads`: of torch on the CPU; 0: `eval.threads`.
    """

    checkpoint: str
    config: Path | None = None
    name: str = ""
    host: str = "127.0.0.1"
    port: int = 8000
    token_env: str = ""
    device: str = ""
    dtype: str = ""
    threads: int = 0
    style: Style | None = None


def serve(request: ServeRequest) -> None:
    """Serve until a signal. Raises ConfigError, StoreError, CheckpointError, PolicyError."""
    logging.configure("serve")
    address = Address(request.host, request.port, secret(request.token_env))
    with closing(ModelServer(address)) as server:
        _serve(request, server)


def _serve(request: ServeRequest, server: ModelServer) -> None:
    config, target = _resolve(request)
    stop = stop_on_signals()  # before, a signal ends the process: fetching heeds no event
    template = ChatTemplate.load(Path(config.model.path), config.model.chat_template)
    style = request.style or _style(request, config, template)
    template.check(style)
    name = request.name or _name(target)
    with suppress(EpisodeStopped), closing(Servers(stop)) as servers:  # told to stop while it loads
        engine = servers.load_engine(config, target)
        policy = ChatPolicy(engine, target.checkpoint_id, template, style)
        server.start(name, policy.reply)
        print(f"{name} is served on {server.url}/v1; call style {style}", flush=True)
        while not stop.wait(LOOK_S):
            if not engine.alive():
                raise PolicyError("the engine's thread ended")


def _resolve(request: ServeRequest) -> tuple[Config, Target]:
    """Return the checkpoint, and the configuration that serves it with the local engine."""
    named = request.config is not None or request.checkpoint.startswith(hub.PREFIX)
    if not named and not Path(request.checkpoint).is_dir():
        raise ConfigError(
            f"{request.checkpoint} is not a directory",
            hint="add --config CONFIG to find a checkpoint by name",
        )
    config = config_loading.load(request.config) if request.config else Config(tasks={})
    model = msgspec.structs.replace(
        config.model,
        device=request.device or config.model.device,
        dtype=request.dtype or config.model.dtype,
    )
    evaluation = msgspec.structs.replace(
        config.eval, engine="local", threads=request.threads or config.eval.threads
    )
    config = msgspec.structs.replace(config, model=model, eval=evaluation)
    target = resolve(request.checkpoint, config)
    if target.external is not None:
        raise ConfigError(f"{request.checkpoint} is an external model, which is served already")
    return fit_config(config, target), target


def _style(request: ServeRequest, config: Config, template: ChatTemplate) -> Style:
    found = None if request.config else template.call_style()
    return found or config.model.call_style


def _name(target: Target) -> str:
    """Return RUN@VERSION of a checkpoint of a run, the directory's name of any other."""
    return target.checkpoint_id if target.run_id is None else target.name
