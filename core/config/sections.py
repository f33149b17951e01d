"""The sections of the configuration: every key with its type, default and description.

A component receives its own section; `core/config/config.py` has the whole.
"""

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from agentrl.core.errors import ConfigError

Dtype = Literal["float32", "bfloat16"]
Positive = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Above0 = Annotated[float, Meta(gt=0.0)]
AtLeast0 = Annotated[float, Meta(ge=0.0)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Above0

NAME = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,59}\Z"  # names become folders, queues and columns
Name = Annotated[str, Meta(pattern=NAME)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A section of the configuration. A component receives only its own section.

    The docstring under a key is its description in `agentrl config keys`.
    """


class Run(Section, frozen=True):
    """Name, folder and end of the run."""

    name: Name = "run"
    """Name of the run: up to 60 letters, digits, `.`, `_` and `-`; the first is not `.` or `-`."""
    home: str = "runs/run"
    """Folder for logs, checkpoints and the embedded database and queues."""
    checkpoints: str = ""
    """fsspec URL of the checkpoint storage, for machines that share no folder. Empty: a folder
    under `home`."""
    seed: int = 0
    """Seed of the order of items and of sampling."""
    stop_updates: Positive | None = None
    """The run ends at this version of the policy."""
    stop_hours: Above0 | None = None
    """The run ends this long after it was created."""
    stop_success: Share | None = None
    """The run ends when every task reaches this success over the last ten updates."""


class Store(Section, frozen=True):
    """The database."""

    url: str = "embedded"
    """SQLAlchemy URL of the database, or `embedded` for a SQLite file under `run.home`."""


class Broker(Section, frozen=True):
    """The message broker."""

    url: str = "embedded"
    """AMQP URL of RabbitMQ, or `embedded` for a queue file under `run.home`."""
    tasks_url: str = "embedded"
    """URL of the Celery broker, or `embedded` for files under `run.home`."""
    compress_above: Natural = 4096
    """Message bodies above this size in bytes are compressed."""


class ProcessRewards(Section, frozen=True):
    """Rewards of single turns by rule, in training episodes only (docs/credit.md)."""

    valid_call: float = 0.0
    """Reward of a turn with calls, if all of them are valid."""
    progress: float = 0.0
    """Reward for the whole way to the goal. A turn gets the share by which it advances, negative if
    it goes back. The task must report `progress`."""


class Judge(Section, frozen=True):
    """A model or a function that judges finished training episodes (docs/judges.md)."""

    policy: str = ""
    """Name of the `[[policy]]` with `engine = "external"` whose model judges. It never acts."""
    function: str = ""
    """Function that returns the score of an item and an episode: `package.module:function` or
    `path.py:function`."""
    prompt: str = ""
    """Jinja file with the model's prompt. Empty: a general rubric."""
    pattern: str = ""
    """Regular expression whose group is the score in the model's reply. The last match counts; of
    turns all do. Empty: a number after the word "score"."""
    scores: Literal["episode", "turns"] = "episode"
    """`turns`: one score for each turn, or one for an episode with branches."""
    low: float = 0.0
    """Lowest score that is accepted."""
    high: float = 1.0
    """Highest score that is accepted."""
    weight: float = 1.0
    """Factor of the score, which is added to the reward of the episode, or of the turn."""
    environment_weight: float = 1.0
    """Factor of the environment's rewards. 0: the score replaces them."""
    tries: Positive = 3
    """Requests of one attempt for a readable score. After them the attempt fails."""
    timeout_s: Seconds = 60.0
    """Time limit of one call of the function."""
    concurrency: Positive = 16
    """Requests of one worker process at the same time."""
    requests_per_minute: Positive | None = None
    """Rate limit of one worker process."""

    @property
    def is_set(self) -> bool:
        return bool(self.policy or self.function)


class Task(Section, frozen=True):
    """A task that the policy is trained on. At least one is required."""

    weight: Above0 = 1.0
    """Share of the groups, relative to the weights of the other tasks."""
    split: str = "train"
    """Split that is trained on."""
    eval_split: str = "test"
    """Split that is evaluated."""
    max_turns: Positive | None = None
    """Turn limit of an episode. Absent: the task's own."""
    horizons: list[tuple[Natural, Positive]] = []
    """Turn limits that grow: pairs [version, turns] (docs/curriculum.md)."""
    source: str = ""
    """ADAPTER:ARGUMENT of other people's environments. Empty: the task named NAME."""
    options: dict[str, Any] = {}
    """Options of the task or adapter, which its page describes."""
    process_rewards: ProcessRewards = ProcessRewards()
    judge: Judge = Judge()


class Dispatch(Section, frozen=True):
    """Admission of groups, and when an episode is sent again."""

    groups_per_update: Positive = 8
    """Groups per update. At most (max_staleness + 1) * groups_per_update are open."""
    group_size: Annotated[int, Meta(ge=2)] = 8
    """Episodes per group, all of the same item."""
    max_staleness: Natural = 4
    """Largest age of a token of the track `current`, in updates. Groups with older tokens are
    discarded."""
    max_lag: Natural = 64
    """The same limit for the tokens of all other tracks."""
    claim_timeout_s: Seconds = 30.0
    """A queued episode that no worker has claimed after this time is sent again."""
    body_timeout_s: Seconds = 60.0
    """A finished episode whose trajectory is missing after this time is played again."""
    max_attempts: Positive = 3
    """Attempts at one episode before it fails."""
    lease_s: Seconds = 15.0
    """After this time without renewal another dispatcher can take over."""
    tick_s: Seconds = 0.2
    """Time between two rounds of the dispatcher."""
    retire_at: Share | None = None
    """An item whose recent success reaches this share is not trained on again."""
    window: tuple[Share, Share] | None = None
    """Range [low, high] of recent success. Items outside it are paused."""
    window_pause: Positive = 2
    """Passes through the split for which an item is paused."""
    mixing: Literal["fixed", "progress"] = "fixed"
    """How tasks share the groups: by weight (`fixed`), or by weight times learning progress."""
    mixing_floor: Share = 0.05
    """Smallest share of a task with `mixing = "progress"`."""
    mixing_groups: Positive = 16
    """Groups in each of the two windows between which progress is measured."""


class Worker(Section, frozen=True):
    """Workers, which run the episodes."""

    concurrency: Positive = 64
    """Episodes of one worker process at the same time."""
    beat_s: Seconds = 2.0
    """Time between two heartbeats."""
    lease_s: Seconds = 15.0
    """After this time without a heartbeat a worker's episodes are given to others."""
    attempt_deadline_s: Seconds = 300.0
    """Time limit of one attempt. A policy server must sample `sampling.max_tokens` within it."""
    policy_wait_s: Seconds = 600.0
    """How long a step waits for a live policy."""
    completion_timeout_s: Seconds = 600.0
    """Time limit of one completion."""
    journal: Literal["steps", "off"] = "off"
    """`steps`: an episode whose worker ended continues where it was. `off`: it is played from the
    start."""


class Sampling(Section, frozen=True):
    """Which policy samples a step, and how (docs/sampling.md)."""

    strategy: Literal["current", "mixed", "uniform", "weighted", "adaptive"] = "mixed"
    """How the track of a step is drawn."""
    stale_share: Share = 0.25
    """Probability that `mixed` draws a lagged track."""
    weights: dict[str, AtLeast0] = {}
    """Weight of each track with `weighted`."""
    sticky_steps: Positive = 1
    """Steps for which a drawn policy is kept."""
    floor: Share = 0.05
    """Smallest weight of a live track with `adaptive`."""
    min_effective_sample_size: Share = 0.5
    """Smallest effective sample size that `adaptive` accepts, as a share of the batch's tokens."""
    max_kl: AtLeast0 = 0.1
    """Largest KL(μ ‖ π) that `adaptive` accepts, in nats per token."""
    window_groups: Positive = 64
    """Groups of each task from which `adaptive` learns."""
    temperature: AtLeast0 = 1.0
    """Sampling temperature. 0: greedy."""
    max_step_tokens: Positive = 64
    """Most tokens sampled in one step."""
    max_tokens: Positive = 2048
    """Most tokens in one trajectory, its first prompt included."""


class Model(Section, frozen=True):
    """The model that is trained."""

    path: str = "models/tiny"
    """Transformers directory, or `hub:OWNER/NAME[@REVISION]`, which is downloaded when the run
    begins."""
    chat_template: str = ""
    """Jinja file that replaces the model's chat template."""
    call_style: Literal["plain", "hermes", "qwen_xml", "glm", "json"] = "plain"
    """Format of tool calls in text (docs/environments.md)."""
    dtype: Dtype = "float32"
    """Data type of served weights, checkpoints and an adapter's frozen base. Trained weights are
    float32."""
    device: str = "cpu"
    """Device as torch names it: cpu, cuda, cuda:1."""


class Vllm(Section, frozen=True):
    """vLLM, which runs in its own Python environment."""

    python: str = ".venv-vllm/bin/python"
    """Python interpreter of that environment."""
    args: list[str] = []
    """Further command-line arguments."""
    env: dict[str, str] = {}
    """Further environment variables."""
    start_s: Seconds = 600.0
    """Time limit of the start."""
    call_s: Seconds = 60.0
    """Time limit of a call other than a completion."""
    max_adapters: Positive = 4
    """LoRA adapters in one batch."""
    cpu_adapters: Positive = 16
    """LoRA adapters in host memory."""
    context: Positive | None = None
    """Context length in tokens. Absent: the model's own."""


class External(Section, frozen=True):
    """A model behind an OpenAI-compatible API (docs/external-policies.md)."""

    url: str = ""
    """URL of the API, up to and including /v1."""
    model: str = ""
    """Name of the model at the API."""
    key_env: str = ""
    """Environment variable with the API key. Empty: none is sent."""
    tokens: bool = False
    """Whether the API accepts and returns token ids of our vocabulary with log-probabilities."""
    max_requests: Positive | None = None
    """Most requests in the whole run. Failed tries count."""
    max_tokens: Positive | None = None
    """Most tokens in the whole run, prompts and answers, as the API counts them."""
    requests_per_minute: Positive | None = None
    """Rate limit."""
    concurrency: Positive = 16
    """Requests at the same time."""
    retries: Natural = 4
    """Retries after a temporary failure."""
    timeout_s: Seconds = 60.0
    """Time limit of one try."""
    prompt_price: AtLeast0 | None = None
    """Price of a million prompt tokens."""
    answer_price: AtLeast0 | None = None
    """Price of a million answer tokens."""
    answer_tokens: Positive = 512
    """Most tokens in one answer, as the API counts them."""
    parameters: dict[str, Any] = {}
    """Further fields of each request. They override ours."""


class PolicyServer(Section, frozen=True):
    """A policy server process. Without any, one local server follows the tracks current and
    lagged(4).
    """

    name: Name
    """Unique name."""
    engine: str = "local"
    """Inference engine. `scripted` is for tests."""
    tracks: list[str] = msgspec.field(default_factory=lambda: ["current"])
    """Tracks that it follows: current, lagged(k), refreshed(k) or pinned(id)."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 0
    """Port to listen on. 0: any free one."""
    token_env: str = ""
    """Environment variable with the bearer token, the same for all policy servers. Required unless
    `host` is loopback."""
    max_batch: Positive = 128
    """Completions at the same time. With `engine = "local"`, of each checkpoint."""
    cache_tokens: Positive = 131_072
    """Tokens in the KV cache of `engine = "local"`."""
    threads: Positive = 1
    """CPU threads of `engine = "local"`."""
    beat_s: Seconds = 1.0
    """Time between two heartbeats."""
    lease_s: Seconds = 6.0
    """After this time without a heartbeat the server counts as dead."""
    drain_s: Seconds = 30.0
    """How long requests of a replaced checkpoint may go on. Then they are aborted."""
    tolerance: Above0 | None = None
    """A checkpoint whose median |Δlogp| on a fixed text exceeds this is rejected. Absent: 0.01, or
    0.15 with bfloat16."""
    vllm: Vllm = Vllm()
    external: External = External()


class Lora(Section, frozen=True):
    """Training of a LoRA adapter on the frozen model."""

    rank: Natural = 0
    """Rank of the adapter. 0: all weights are trained."""
    alpha: Above0 = 16.0
    """The adapter's output is scaled by alpha / rank."""
    targets: list[str] = msgspec.field(
        default_factory=lambda: [
            *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
        ]
    )
    """Linear modules that get an adapter."""


class DeepSpeed(Section, frozen=True):
    """Settings of `engine = "deepspeed"` (docs/deepspeed.md)."""

    zero: Literal[0, 1, 2, 3] = 2
    """ZeRO stage. 1 shards the optimizer state over the ranks, 2 also the gradients, 3 also the
    weights."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """What host memory holds: the optimizer state, or (with ZeRO 3) also the weights."""
    weights: Literal["float32", "model"] = "float32"
    """Type of the ranks' weights. `model`: `model.dtype`, with float32 master weights; needs ZeRO
    3."""
    timeout_s: Seconds = 60.0
    """Time limit of a collective operation."""
    extensions: str = ""
    """Folder of compiled extensions. Empty: ~/.cache/agentrl/extensions."""


class Trainer(Section, frozen=True):
    """The trainer (docs/algorithms.md). π is the trained policy, π_prox is π before the update, μ
    is the policy that sampled the token.
    """

    preset: Literal["default", "paper"] = "default"
    """Set of defaults for other keys."""
    learning_rate: Above0 | None = None
    """Learning rate after the warm-up."""
    weight_decay: float = 0.0
    """Weight decay of matrices."""
    warmup_updates: Natural = 0
    """Updates in which the learning rate rises from 0."""
    max_grad_norm: Above0 = 1.0
    """Gradients are clipped to this norm."""
    loss: str | None = None
    """Loss, which decides how the ratio is bounded."""
    old: Literal["behaviour", "proximal"] | None = None
    """Denominator of the ratio: μ (`behaviour`) or π_prox (`proximal`)."""
    clip_low: Above0 | None = None
    """The ratio is bounded below by 1 - clip_low."""
    clip_high: Above0 | None = None
    """The ratio is bounded above by 1 + clip_high."""
    dual_clip: Annotated[float, Meta(gt=1.0)] | None = None
    """Upper bound of the ratio in `ppo_clip` where the advantage is negative."""
    importance: Literal["none", "truncated", "icepop"] | None = None
    """How tokens are weighted by π_prox/μ. With `old = "behaviour"` the default is none."""
    min_weight: Share | None = None
    """`icepop` masks tokens with smaller weights."""
    max_weight: Annotated[float, Meta(ge=1.0)] | None = None
    """`truncated` caps larger weights at this; `icepop` masks their tokens."""
    mixed_sequences: bool = False
    """Whether `gspo` may train on trajectories of several policies."""
    kl_weight: AtLeast0 | None = None
    """Weight of the KL divergence to the run's first checkpoint."""
    rewards: bool = True
    """Whether rewards are trained on, or only [[teacher]]s teach (docs/teachers.md)."""
    credit: str | None = None
    """How the turns of an episode are credited (docs/credit.md)."""
    credit_options: dict[str, Any] = {}
    """Options of `credit`."""
    advantage: str | None = None
    """How the rewards of a group are compared."""
    normalise: Literal["none", "task", "environment"] | None = None
    """Whether advantages are normalised per task, over loss tokens (`task`) or over trajectories
    (`environment`)."""
    task_norm_min_tokens: Positive = 64
    """With `normalise = "task"`, tasks with fewer loss tokens in the batch are not normalised."""
    aggregate: Literal["token_mean", "group_mean"] | None = None
    """Whether every loss token has the same weight, or every group."""
    task_weights: dict[str, AtLeast0] = {}
    """Weight of each task in the loss. A task that is not named has 1."""
    abnormal_reward: float | None = None
    """Reward of the last turn of episodes that end as task_limit or invalid_action."""
    turn_penalty: float = 0.0
    """Subtracted from the reward for each step."""
    token_penalty: float = 0.0
    """Subtracted from the reward for each sampled token."""
    keep_share: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """Share of each task's groups that are trained on: those with the highest variance of
    rewards."""
    min_groups: Positive | None = None
    """Fewest groups in a batch. Absent: `dispatch.groups_per_update`."""
    max_groups: Positive | None = None
    """Most groups in a batch. Absent: twice `min_groups`."""
    micro_batch_tokens: Positive = 1536
    """Most tokens in one forward pass. A longer trajectory gets its own."""
    chunk_logits: Positive | None = None
    """Logits in memory at the same time. More are faster. Absent: 2^22 on a CPU, 2^27 on a GPU."""
    packing: bool = True
    """Whether trajectories share a forward pass, without attention between them."""
    gradient_checkpointing: bool = False
    """Whether activations are computed again: less memory, about a third more computing."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """Optimizer. `sgd` is plain gradient descent."""
    lora: Lora = Lora()
    engine: Literal["torch", "deepspeed"] = "torch"
    """`torch` is one process, `deepspeed` is `ranks` processes."""
    ranks: Positive = 1
    """Processes of `engine = "deepspeed"` on this machine."""
    deepspeed: DeepSpeed = DeepSpeed()
    inbox_bytes: Positive | None = None
    """Memory for received episodes, in bytes. Absent: one batch, at least 512 MiB."""
    snapshot_every: Positive = 10
    """Updates between two snapshots. The last two are kept."""
    stop_s: Seconds = 30.0
    """Time from SIGTERM to SIGKILL. An update with its checkpoint and snapshot must fit."""
    keep_checkpoints: Positive = 8
    """Newest checkpoints that are kept, beside those in use and those since the last snapshot."""
    threads: Positive = 1
    """CPU threads of each process."""


class Teacher(Section, frozen=True):
    """A model to which the policy is distilled (docs/teachers.md)."""

    name: Name
    """Unique name."""
    checkpoint: str
    """Directory, or a checkpoint of the store by its ID or as RUN@VERSION. It must have the
    policy's tokenizer."""
    tasks: list[str] = []
    """Tasks that it teaches. Empty: all. A task has at most one teacher."""
    weight: Above0 = 1.0
    """Weight of log π_teacher − log π, which is added to each token's advantage."""


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
    """Thresholds of the alarms, checked for each task at every update (docs/alarms.md)."""

    min_effective_sample_size: Share = 0.5
    """Smallest effective sample size, as a share of the loss tokens."""
    max_mismatch_kl: AtLeast0 = 0.05
    """Largest KL(μ ‖ π), in nats per token."""
    max_ratio: AtLeast0 = 100.0
    """Largest π/μ of a single token."""
    max_clip_fraction: Share = 0.3
    """Largest share of loss tokens with a clipped ratio."""
    min_entropy: AtLeast0 = 0.01
    """Smallest mean entropy, in nats per token."""
    max_entropy_fall: Share = 0.5
    """Largest fall of the entropy below its mean over the last ten updates, as a share of it."""
    max_grad_norm: AtLeast0 = 10.0
    """Largest gradient norm, as a multiple of `trainer.max_grad_norm`."""
    max_zero_spread_share: Share = 0.8
    """Largest share of groups without spread since the last update."""
    max_stale_share: Share = 0.2
    """Largest share of stale groups since the last update."""
    min_groups: Positive = 8
    """Fewest groups for the two alarms above."""
    off: list[AlarmName] = []
    """Alarms that are switched off."""


class Eval(Section, frozen=True):
    """Evaluation of checkpoints during training (docs/evaluation.md)."""

    every: Natural = 0
    """Updates between two evaluated versions. 0: none is evaluated."""
    tasks: list[str] = []
    """Tasks to evaluate. Empty: all."""
    splits: list[str] = []
    """Splits to evaluate. Empty: each task's `eval_split`."""
    items: Positive = 50
    """Items per task and split."""
    repeats: Positive = 1
    """Episodes per item."""
    temperature: AtLeast0 | None = None
    """Sampling temperature. Absent: `sampling.temperature`."""
    concurrency: Positive = 16
    """Episodes at the same time."""
    device: str = ""
    """Device of the evaluated model. Empty: `model.device`."""
    engine: Literal["local", "vllm"] = "local"
    """Inference engine, also of `agentrl eval`."""
    threads: Positive = 1
    """CPU threads of `engine = "local"`."""
    vllm: Vllm = Vllm()
    nice: Annotated[int, Meta(ge=0, le=19)] = 10
    """CPU niceness of the evaluator."""


class Dashboard(Section, frozen=True):
    """The web dashboard (docs/dashboard.md)."""

    proxies: list[str] = []
    """Addresses or networks of reverse proxies whose X-Forwarded-For header is trusted."""


class Envs(Section, frozen=True):
    """Environments, and the env server that runs them."""

    url: str = ""
    """URL of an env server. Empty: environments run inside the workers."""
    token_env: str = ""
    """Environment variable with the env server's bearer token. Required unless `host` is
    loopback."""
    host: str = "127.0.0.1"
    """Address on which the env server listens."""
    port: Port = 0
    """Port of the env server. 0: the port of `url`, or any free port."""
    protocol: Literal["agentrl", "openenv"] = "agentrl"
    """Protocol of the env server. `openenv` is for OpenEnv's clients; AgentRL's workers need
    `agentrl`."""
    concurrency: Positive = 64
    """Episodes of the env server at the same time."""
    controller: str = ""
    """URL of the original AgentRL's task controller, at which the env server registers."""
    advertise: str = ""
    """URL under which that controller reaches the env server. Empty: the server's own."""
    docker_image: str = "python:3.11-slim"
    """Docker image of the task `os` and of tasks with `container = true`."""
    idle_timeout_s: Seconds = 600.0
    """A session without a call for this long is cancelled."""
    call_timeout_s: Seconds = 240.0
    """Time limit of one call. A slower call fails its episode."""

    def names_worker(self) -> bool:
        """Return whether `url` is a task worker of the original system."""
        return self.url.rstrip("/").endswith("/api")


class Metrics(Section, frozen=True):
    """Prometheus metrics of every process (docs/monitoring.md)."""

    port: Port = 0
    """Port of the supervisor's metrics. Its processes use the ports after it. 0: no metrics."""
    host: str = "127.0.0.1"
    """Address on which each process listens."""
    token_env: str = ""
    """Environment variable with the bearer token. Required unless `host` is loopback."""
    look_s: Seconds = 5.0
    """Time between two queries for the dispatcher's gauges."""


class Tracing(Section, frozen=True):
    """OpenTelemetry traces of attempts (docs/monitoring.md)."""

    endpoint: str = ""
    """URL of an OTLP/HTTP collector, such as http://127.0.0.1:4318/v1/traces. Empty: no traces."""
    share: Share = 1.0
    """Share of attempts that are traced."""
    messages: bool = False
    """Whether traces hold the conversations: prompts, answers, calls and their results."""


class Logs(Section, frozen=True):
    """Logs of the processes, written to stderr."""

    format: Literal["auto", "json", "text"] = "auto"
    """Format of a line. `auto`: text on a terminal, otherwise JSON."""
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Lowest level that is written."""
    max_mib: Positive = 64
    """Size in MiB at which a log file is renamed to NAME.log.1."""


class Trackers(Section, frozen=True):
    """Experiment trackers that receive the metrics of the run (docs/trackers.md)."""

    use: list[str] = []
    """Trackers to use. Empty: none."""
    project: str = "agentrl"
    """Name of the MLflow experiment or the W&B project."""
    folder: str = ""
    """Folder for local files. Empty: `trackers` under `run.home`."""
    mlflow_url: str = ""
    """URL of an MLflow tracking server. Empty: local files."""
    wandb_online: bool = False
    """Whether W&B uploads at once, instead of writing files for `wandb sync`."""
    look_s: Seconds = 2.0
    """Time between two exports."""


def check_name(name: str, where: str) -> None:
    """Raise ConfigError if `name` cannot be the name of a run."""
    if not re.search(NAME, name):
        rule = "use up to 60 letters, digits, `.`, `_` and `-`; the first is not `.` or `-`"
        raise ConfigError(f"{where}: {name!r} is not a valid name", hint=rule)
