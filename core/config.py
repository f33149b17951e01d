"""One way to configure: a TOML file, overridden by AGENTRL__SECTION__KEY, becomes one Config.

Every key with its unit and default; `core/loading.py` reads and writes them.
Secrets stay out of it: `${NAME}` in a URL is replaced where it is used, from the environment or
from the file that the variable NAME_FILE names.
Paths are relative to the directory in which a command is started.
"""

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import Meta

from agentrl.core import logging
from agentrl.core.errors import ConfigError

Dtype = Literal["float32", "bfloat16"]
Positive = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Above0 = Annotated[float, Meta(gt=0.0)]
AtLeast0 = Annotated[float, Meta(ge=0.0)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Above0

NESTED = 3  # a variable's value may name variables, so many levels deep
_NAMED = re.compile(r"\$\{(?P<name>\w+)\}")
_PRIVATE = re.compile(r"^AGENTRL_|PASSWORD|SECRET")
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")
_LOGIN = re.compile(r"://[^/\s@]*:[^/\s@]*@")  # of a URL
_SECRET_FILE = re.compile(r"(PASSWORD|TOKEN|SECRET|KEY|URL)_FILE\Z")

NAME = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,59}\Z"  # names become folders, queues and columns
Name = Annotated[str, Meta(pattern=NAME)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the configuration; a component receives only its own."""


class Run(Section, frozen=True):
    """What is run and when it ends. `home`: folder of logs, checkpoints and the embedded stores.

    `checkpoints`: a URL that fsspec understands, for hosts that share no folder.
    """

    name: Name = "run"  # up to 60 of A-Z a-z 0-9 . _ -, beginning with none of . -
    home: str = "runs/run"
    checkpoints: str = ""  # under `home` where empty
    seed: int = 0  # of the order of items, and of what policies draw
    stop_updates: Positive | None = None  # version at which it is completed
    stop_hours: Above0 | None = None  # since the run was made
    stop_success: Share | None = None  # success of every task, over the last ten updates


class Store(Section, frozen=True):
    """The database. `url`: an SQLAlchemy URL, or `embedded`: SQLite under `run.home`."""

    url: str = "embedded"


class Broker(Section, frozen=True):
    """Queues. `url`: amqp URL, or `embedded`; `tasks_url`: Celery's, or `embedded` (filesystem)."""

    url: str = "embedded"
    tasks_url: str = "embedded"
    compress_above: Natural = 4096  # bytes; bodies above it travel as zstd


class Task(Section, frozen=True):
    """One task of the mixture. `options` go to the task's own source, which checks them."""

    weight: Above0 = 1.0  # its share of the groups is this over the sum of all
    split: str = "train"  # whose items are trained on
    eval_split: str = "test"  # whose items are measured
    max_turns: Positive | None = None  # the task's own limit where absent
    horizons: list[tuple[Natural, Positive]] = []  # [version, turns]: from it on at most so many
    options: dict[str, Any] = {}


class Dispatch(Section, frozen=True):
    """Admission. Groups are admitted while open < (max_staleness + 1) * groups_per_update."""

    groups_per_update: Positive = 8  # fewest that an update learns from: see trainer.min_groups
    group_size: Annotated[int, Meta(ge=2)] = 8  # episodes of one group, all of one item
    max_staleness: Natural = 4  # updates; also the bound at train time, for tokens of `current`
    max_lag: Natural = 64  # updates; the bound at train time for tokens of lagged policies
    claim_timeout_s: Seconds = 30.0  # a queued row not claimed by then is sent again
    body_timeout_s: Seconds = 60.0  # a finished row whose body is missing by then is re-issued
    max_attempts: Positive = 3  # at one episode, before it is failed
    lease_s: Seconds = 15.0  # the dispatcher's own row lease
    tick_s: Seconds = 0.2  # between two rounds of the dispatcher
    retire_at: Share | None = None  # items whose recent success reaches it leave the stream
    window: tuple[Share, Share] | None = None  # [low, high] of recent success; items outside rest
    window_pause: Positive = 2  # passes through the split that an item rests
    mixing: Literal["fixed", "progress"] = "fixed"  # by weight, or by weight times progress
    mixing_floor: Share = 0.05  # of `progress`: least share of each task
    mixing_groups: Positive = 16  # of `progress`: groups of each of its two windows


class Worker(Section, frozen=True):
    """Episode workers. `concurrency`: episodes at once in one process."""

    concurrency: Positive = 64
    beat_s: Seconds = 2.0  # between two heartbeats
    lease_s: Seconds = 15.0  # without a heartbeat for so long, its episodes are re-issued
    attempt_deadline_s: Seconds = 300.0  # of one attempt: above sampling.max_tokens ÷ tokens/s
    policy_wait_s: Seconds = 60.0  # how long a step waits for a live policy
    completion_timeout_s: Seconds = 600.0  # of one completion, from the request to its last token


class Sampling(Section, frozen=True):
    """Which policy samples a step (docs/sampling.md). `strategy`: how its track is drawn."""

    strategy: Literal["current", "mixed", "uniform", "weighted", "adaptive"] = "mixed"
    stale_share: Share = 0.25  # of `mixed`: chance of all lagged tracks together
    weights: dict[str, AtLeast0] = {}  # of `weighted`: track -> weight
    sticky_steps: Positive = 1  # steps for which a drawn policy stays
    floor: Share = 0.05  # of `adaptive`: least weight of each live track
    min_effective_sample_size: Share = 0.5  # of `adaptive`: share of the batch's tokens
    max_kl: AtLeast0 = 0.1  # of `adaptive`: KL(μ ‖ π), nats a token
    window_groups: Positive = 64  # of `adaptive`: groups of each task that it learns from
    temperature: AtLeast0 = 1.0  # of the softmax; 0: greedy
    max_step_tokens: Positive = 64  # sampled tokens of one step
    max_tokens: Positive = 2048  # tokens of one trajectory, its prompt and all answers


class Model(Section, frozen=True):
    """The policy that is trained. `path`: a transformers directory with tokenizer and template,
    or `hub:OWNER/NAME[@REVISION]`, fetched when a run begins. `dtype`: of what is served, of the
    products of training and of an adapter's base; weights that are trained are float32.
    """

    path: str = "models/tiny"
    chat_template: str = ""  # a Jinja file that takes the place of the model's own template
    call_style: Literal["plain", "hermes", "qwen_xml", "glm", "json"] = "plain"  # of tool calls
    dtype: Dtype = "float32"
    device: str = "cpu"  # as torch names it: cpu, cuda, cuda:1


class Vllm(Section, frozen=True):
    """vLLM in an environment of its own, started and watched by what serves with it.

    `args`: appended to its command line; `env`: added to its environment.
    """

    python: str = ".venv-vllm/bin/python"  # that environment's interpreter
    args: list[str] = []
    env: dict[str, str] = {}
    start_s: Seconds = 600.0  # until it answers
    call_s: Seconds = 60.0  # of each call that is not a completion
    max_adapters: Positive = 4  # adapters in one batch
    cpu_adapters: Positive = 16  # adapters in memory
    context: Positive | None = None  # tokens of prompt and completion; the model's own where absent


class External(Section, frozen=True):
    """A model behind somebody else's OpenAI-compatible API (docs/external-policies.md)."""

    url: str = ""  # up to and including /v1
    model: str = ""  # its name there
    key_env: str = ""  # variable with the key; empty: none is sent
    tokens: bool = False  # it takes and returns token ids of our vocabulary, with log-probabilities
    max_requests: Positive | None = None  # of the run, tries that failed among them
    max_tokens: Positive | None = None  # of the run, prompts and answers, by its own count
    requests_per_minute: Positive | None = None  # evenly spread
    concurrency: Positive = 16  # requests at once
    retries: Natural = 4  # of what may pass: 408, 409, 425, 429, 5xx, lost lines
    timeout_s: Seconds = 60.0  # of one try
    prompt_price: AtLeast0 | None = None  # of a million tokens it reads
    answer_price: AtLeast0 | None = None  # of a million tokens it writes
    answer_tokens: Positive = 512  # its own, that it may write in one answer
    parameters: dict[str, Any] = {}  # more fields of its requests, or others instead of ours


class PolicyServer(Section, frozen=True):
    """A server process. `tracks`: what it follows: current, lagged(k), refreshed(k), pinned(id)."""

    name: Name  # its own among the servers; `agentrl policy --name` takes it
    engine: str = "local"  # scripted: for tests
    tracks: list[str] = msgspec.field(default_factory=lambda: ["current"])
    host: str = "127.0.0.1"  # where it listens
    port: Port = 0  # 0: any free port
    token_env: str = ""  # variable with the bearer token, one for all; required off loopback
    max_batch: Positive = 128  # completions at once; local: of each checkpoint
    cache_tokens: Positive = 131_072  # of `local`: tokens of kept KV, all policies
    beat_s: Seconds = 1.0  # between two heartbeats
    lease_s: Seconds = 6.0  # without a heartbeat for so long, it counts as gone
    drain_s: Seconds = 30.0  # of a checkpoint that is replaced; then its requests are aborted
    tolerance: Above0 | None = None  # median |Δlogp| of a known text; 0.01, in bfloat16 0.15
    vllm: Vllm = Vllm()
    external: External = External()


class Lora(Section, frozen=True):
    """Training an adapter on the frozen model instead of its weights."""

    rank: Natural = 0  # of the adapter; 0: the weights are trained
    alpha: Above0 = 16.0  # an adapter's change is scaled by alpha / rank
    targets: list[str] = msgspec.field(  # names of linear modules
        default_factory=lambda: [
            *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
        ]
    )


class DeepSpeed(Section, frozen=True):
    """Of `engine = "deepspeed"` (docs/deepspeed.md). `zero`: what is sharded over ranks: nothing,
    moments (1), gradients too (2), weights too (3).
    """

    zero: Literal[0, 1, 2, 3] = 2
    offload: Literal["none", "optimizer", "all"] = "none"  # to the host; all: weights too, ZeRO 3
    timeout_s: Seconds = 60.0  # of a rank's wait for another, but for commands
    extensions: str = ""  # folder of built extensions; ~/.cache/agentrl/extensions where empty


class Trainer(Section, frozen=True):
    """Learning (docs/algorithms.md). Presets are in trainer/algorithm/presets.py; what is written
    in the file wins. π is the policy that is trained, π_prox is π before the update, μ is the one
    that sampled.

    `dual_clip`: of ppo_clip, the ratio's cap where the advantage is negative; `importance`: weighs
    tokens by π_prox/μ, by default not where `old` is behaviour.
    `advantage`: the reward minus the mean of its group, the same over the group's deviation, or the
    reward minus the mean of the others; `normalise`: advantages of each task, less their mean
    and over their deviation (0.1 at least), of its loss tokens (`task`) or its trajectories
    (`environment`); `aggregate`: every loss token weighs the same, or every group.
    `inbox_bytes`: bound of the episodes held in memory, at least those of a batch; absent: those of
    a batch, 512 MiB at least. `chunk_logits`: more of them make the head faster; absent: 2^22 on a
    CPU, 2^27 on a GPU. Some copies of them are held in float32.
    """

    preset: Literal["default", "paper"] = "default"  # gives what is absent below
    learning_rate: Above0 | None = None  # of the optimizer, after the warm-up
    weight_decay: float = 0.0  # of matrices; norms and biases are spared
    warmup_updates: Natural = 0  # in which the learning rate rises linearly
    max_grad_norm: Above0 = 1.0  # a gradient beyond this norm is scaled down to it
    loss: str | None = None  # what bounds the ratio, and how
    old: Literal["behaviour", "proximal"] | None = None  # the ratio is π/μ, or π/π_prox
    clip_low: Above0 | None = None  # the ratio is bounded below by 1 - clip_low
    clip_high: Above0 | None = None  # the ratio is bounded above by 1 + clip_high
    dual_clip: Annotated[float, Meta(gt=1.0)] | None = None
    importance: Literal["none", "truncated", "icepop"] | None = None
    min_weight: Share | None = None  # of icepop: tokens below it are masked
    max_weight: Annotated[float, Meta(ge=1.0)] | None = None  # where truncated caps, icepop masks
    mixed_sequences: bool = False  # gspo may train trajectories of several policies
    kl_weight: AtLeast0 | None = None  # of the KL to the run's first checkpoint
    advantage: str | None = None
    normalise: Literal["none", "task", "environment"] | None = None
    task_norm_min_tokens: Positive = 64  # of `task`: one with fewer loss tokens is left as it is
    aggregate: Literal["token_mean", "group_mean"] | None = None
    task_weights: dict[str, AtLeast0] = {}  # of its loss tokens; 1 if unnamed
    abnormal_reward: float | None = None  # in place of that of task_limit and invalid_action
    turn_penalty: float = 0.0  # taken from the reward for each step
    token_penalty: float = 0.0  # taken from the reward for each sampled token
    min_groups: Positive | None = None  # fewest of a batch; dispatch.groups_per_update where absent
    max_groups: Positive | None = None  # most of a batch; twice min_groups where absent
    micro_batch_tokens: Positive = 1536  # most of one forward pass; a longer trajectory alone
    chunk_logits: Positive | None = None  # logits held at once
    packing: bool = True  # several trajectories in one forward pass, none of which sees another
    gradient_checkpointing: bool = False  # less memory of a pass, for a third more computing
    optimizer: Literal["adamw", "sgd"] = "adamw"  # sgd: plain gradient descent
    lora: Lora = Lora()
    engine: Literal["torch", "deepspeed"] = "torch"  # one process, or `ranks` processes
    ranks: Positive = 1  # processes of `engine = "deepspeed"` on this machine
    deepspeed: DeepSpeed = DeepSpeed()
    inbox_bytes: Positive | None = None  # of episodes in memory
    snapshot_every: Positive = 10  # updates between two snapshots, of which the last two are kept
    stop_s: Seconds = 30.0  # from SIGTERM to SIGKILL: an update, its checkpoint, a snapshot
    keep_checkpoints: Positive = 8  # the newest; those since the last snapshot or needed stay, too
    threads: Positive = 1  # of torch on the CPU, in each of its processes


AlarmName = Literal[
    "skipped",
    "snapshot_failed",
    "grad_norm",
    "effective_sample_size",
    "mismatch_kl",
    "max_ratio",
    "clip_fraction",
    "entropy",
    "entropy_fall",
    "zero_spread_share",
    "stale_share",
]


class Alarms(Section, frozen=True):
    """What updates may say of each task before people are told (docs/alarms.md)."""

    min_effective_sample_size: Share = 0.5  # of the task's tokens
    max_mismatch_kl: AtLeast0 = 0.05  # KL(μ ‖ π), nats a token
    max_ratio: AtLeast0 = 100.0  # largest π/μ of a token
    max_clip_fraction: Share = 0.3  # of the task's tokens
    min_entropy: AtLeast0 = 0.01  # nats a token
    max_entropy_fall: Share = 0.5  # below its mean of late, as a share of that
    max_grad_norm: AtLeast0 = 10.0  # times trainer.max_grad_norm
    max_zero_spread_share: Share = 0.8  # filtered, of the task's groups since the last update
    max_stale_share: Share = 0.2  # too old, of the task's groups since the last update
    min_groups: Positive = 8  # fewest that the two shares of groups are taken of
    off: list[AlarmName] = []  # never raised


class Eval(Section, frozen=True):
    """Measuring checkpoints while the run trains, by a process of its own (docs/evaluation.md)."""

    every: Natural = 0  # updates between two versions that are measured; 0: none, no process
    tasks: list[str] = []  # all where empty
    splits: list[str] = []  # each task's eval_split where empty
    items: Positive = 50  # of each task and split
    repeats: Positive = 1  # episodes of each item
    temperature: AtLeast0 | None = None  # sampling.temperature where absent; 0: greedy
    concurrency: Positive = 16  # episodes at once
    device: str = ""  # where it serves; model.device where empty
    engine: Literal["local", "vllm"] = "local"  # of `agentrl eval`, too
    vllm: Vllm = Vllm()
    nice: Annotated[int, Meta(ge=0, le=19)] = 10  # of its process; 10: a tenth of another's weight


class Dashboard(Section, frozen=True):
    """Of `agentrl dashboard` (docs/dashboard.md)."""

    proxies: list[str] = []  # addresses, networks: their X-Forwarded-For names the browser


class Envs(Section, frozen=True):
    """Where environments run. `url`: an env server; in the worker where it is empty."""

    url: str = ""
    token_env: str = ""  # variable with its bearer token; required off loopback
    host: str = "127.0.0.1"  # where it listens
    port: Port = 0  # 0: that of `url`, or any free port
    concurrency: Positive = 64  # episodes at once in it
    controller: str = ""  # URL of a controller of the original system, told that we are there
    advertise: str = ""  # URL under which it reaches this server; its own where empty
    docker_image: str = "python:3.11-slim"  # of os; of tasks that say `container = true`
    idle_timeout_s: Seconds = 600.0  # a session without a call for this long is reaped
    call_timeout_s: Seconds = 240.0  # of one call of an environment; its episode fails after it

    def names_worker(self) -> bool:
        """Whether `url` is a task worker's of the original system: the address it registers."""
        return self.url.rstrip("/").endswith("/api")


class Metrics(Section, frozen=True):
    """Figures for Prometheus, of every process (docs/watching.md).

    `port`: of the supervisor, whose processes take the ports after it, one each; or of a process
    that was started alone.
    """

    port: Port = 0  # 0: no metrics
    host: str = "127.0.0.1"  # where each process listens
    token_env: str = ""  # variable with the bearer token; required off loopback
    look_s: Seconds = 5.0  # between two looks of the dispatcher at the rows


class Tracing(Section, frozen=True):
    """Traces of attempts (docs/watching.md). `endpoint`: a collector's, OTLP over HTTP."""

    endpoint: str = ""  # such as http://127.0.0.1:4318/v1/traces; empty: none
    share: Share = 1.0  # of attempts that are traced


class Logs(Section, frozen=True):
    """What processes write on stderr: a JSON object a line, or text."""

    format: Literal["auto", "json", "text"] = "auto"  # auto: text on a terminal alone
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"  # the least that is written
    max_mib: Positive = 64  # of one process's file under run.home: then it becomes NAME.log.1


class Trackers(Section, frozen=True):
    """Where else the figures of the run go (docs/trackers.md). `use` empty: nowhere."""

    use: list[str] = []
    project: str = "agentrl"  # MLflow's experiment, W&B's project
    folder: str = ""  # of what is kept here; `trackers` under run.home where empty
    mlflow_url: str = ""  # a tracking server; files where empty
    wandb_online: bool = False  # else a file for `wandb sync`
    look_s: Seconds = 2.0  # between two looks at the rows


class Config(Section, frozen=True):
    """The whole configuration of one run."""

    tasks: dict[str, Task]
    run: Run = Run()
    store: Store = Store()
    broker: Broker = Broker()
    dispatch: Dispatch = Dispatch()
    worker: Worker = Worker()
    workers: Positive = 1  # worker processes that `agentrl up` starts
    sampling: Sampling = Sampling()
    model: Model = Model()
    policy: list[PolicyServer] = []  # one local server of current and lagged(4) where absent
    trainer: Trainer = Trainer()
    alarms: Alarms = Alarms()
    envs: Envs = Envs()
    eval: Eval = Eval()
    metrics: Metrics = Metrics()
    tracing: Tracing = Tracing()
    logs: Logs = Logs()
    trackers: Trackers = Trackers()
    dashboard: Dashboard = Dashboard()

    def policy_servers(self) -> list[PolicyServer]:
        """The servers to start; one local server for current and lagged(4) where none is named.

        One of an external model follows no track.
        """
        if not self.policy:
            return [PolicyServer(name="policy", tracks=["current", "lagged(4)"])]
        replace = msgspec.structs.replace
        return [replace(s, tracks=[]) if s.engine == "external" else s for s in self.policy]

    def policy_server(self, name: str = "") -> PolicyServer:
        """The server of that name, the first where empty. Raises ConfigError."""
        servers = {server.name: server for server in self.policy_servers()}
        if name and name not in servers:
            raise ConfigError(f"no [[policy]] is named {name}; known: {', '.join(servers)}")
        return servers[name] if name else next(iter(servers.values()))

    def policy_token_env(self) -> str:
        """The variable of the pool's token, empty for none. Raises ConfigError where they differ:
        every server of a pool is sent the same token.
        """
        names = sorted({server.token_env for server in self.policy_servers()})
        if len(names) > 1:
            raise ConfigError(
                f"policy.token_env: servers of one pool name {' and '.join(map(repr, names))}",
                hint="give every [[policy]] the same token_env",
            )
        return names[0]

    def secret_names(self) -> list[str]:
        """The variables whose values the processes of the run will ask for, sorted."""
        servers = self.policy_servers()
        names = {server.token_env for server in servers} | {self.envs.token_env}
        names |= {server.external.key_env for server in servers if server.engine == "external"}
        names |= {self.metrics.token_env} if self.metrics.port else set()
        return sorted(names - {""})

    def as_evaluated(self) -> "Config":
        """With the evaluator's own device and number of episodes at once."""
        replace = msgspec.structs.replace
        return replace(
            self,
            worker=replace(self.worker, concurrency=self.eval.concurrency),
            model=replace(self.model, device=self.eval.device or self.model.device),
        )

    def eval_server(self) -> PolicyServer:
        """What the evaluator serves on, in its own process."""
        asked = self.eval
        return PolicyServer(
            name="evaluator", engine=asked.engine, tracks=["pinned"], vllm=asked.vllm
        )

    def home(self) -> Path:
        return Path(self.run.home).resolve()

    def cache(self) -> Path:
        """The folder of local copies of checkpoints that lie under a URL."""
        return self.home() / "cache"

    def store_url(self) -> str:
        if self.store.url == "embedded":
            return f"sqlite:///{self.home() / 'store.db'}"
        return with_secrets(self.store.url, "store.url")

    def broker_url(self) -> str:
        if self.broker.url == "embedded":
            return f"sqlite:///{self.home() / 'queue.db'}"
        return with_secrets(self.broker.url, "broker.url")

    def tasks_url(self) -> str:
        if self.broker.tasks_url == "embedded":
            return f"filesystem://{self.home() / 'celery'}"
        return with_secrets(self.broker.tasks_url, "broker.tasks_url")


def with_secrets(url: str, where: str) -> str:
    """`${NAME}` replaced by the value of NAME (see `_value`), which may name others in turn.

    A value before the @ of a URL is percent-encoded here: a password may hold any character, and
    stands in its variable as it is. Raises ConfigError for a name that is not set.
    """

    def value(match: re.Match[str]) -> str:
        found = _value(match["name"])
        if found is None:
            name = match["name"]
            raise ConfigError(f"{where}: ${{{name}}} is not set", hint=_exported(name))
        before, after = match.string[: match.start()], match.string[match.end() :]
        in_login = "://" in before and "/" not in before.partition("://")[2] and "@" in after
        if in_login and not _NAMED.search(found):
            if _ENCODED.search(found):
                _warn_of_encoded(where, match["name"])
            return quote(found, safe="")
        return found

    for _ in range(NESTED):
        replaced = _NAMED.sub(value, url)
        if replaced == url:
            break
        url = replaced
    return url


@cache
def _warn_of_encoded(where: str, variable: str) -> None:
    """Once for each variable. No error: a password may hold such signs as they are."""
    logging.configure_unless_done()
    logging.get_logger().warning(
        "A variable seems to hold a percent-encoded password; it must hold the password itself",
        variable=variable,
        of=where,
    )


def secret(variable: str) -> str:
    """The value of a variable (see `_value`); empty where none is named. Raises ConfigError."""
    value = (_value(variable) or "") if variable else ""
    if variable and not value:
        raise ConfigError(f"{variable} is not set", hint=_exported(variable))
    if not (value.isascii() and value.isprintable() and value == value.strip()):
        raise ConfigError(  # the refusal of a library would show it
            f"{variable} holds what no header can, such as a line end or a space at an end",
            hint="letters, digits and signs of ASCII alone",
        )
    return value


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program that is not ours: nothing of AGENTRL_, no password or login."""
    return {
        name: value
        for name, value in environ.items()
        if not _PRIVATE.search(name)
        and (not _LOGIN.search(value) or name.lower().endswith("_proxy"))
    }


def secret_files() -> list[str]:
    """The files that variables such as POSTGRES_PASSWORD_FILE name."""
    named = (path for name, path in os.environ.items() if _SECRET_FILE.search(name))
    return sorted({path for path in named if Path(path).is_file()})


def _value(name: str) -> str | None:
    """The environment variable, else the content of the file that NAME_FILE names, without the
    line end that editors add; None where neither is set. Raises ConfigError.
    """
    if name in os.environ or f"{name}_FILE" not in os.environ:
        return os.environ.get(name)
    path = os.environ[f"{name}_FILE"]
    try:
        return Path(path).read_text("utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError(f"{name}_FILE: {path}: {why}", hint="name a readable file") from error


def _exported(name: str) -> str:
    return f"export {name}=…"


def check_name(name: str, where: str) -> None:
    """Raise ConfigError for what cannot be the name of a run."""
    if not re.search(NAME, name):
        rule = "up to 60 of A-Z a-z 0-9 . _ -, beginning with none of . -"
        raise ConfigError(f"{where} {name!r} is no name", hint=rule)
