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
    """Name of the run: up to 60 letters, digits, `.`, `_` and `-`. It starts with a letter, a digit
    or `_`."""
    home: str = "runs/run"
    """Folder for logs, checkpoints and the embedded database and queues."""
    checkpoints: str = ""
    """URL of the checkpoint storage, in the form that fsspec understands, for machines that share
    no folder. Empty: a folder under `home`."""
    seed: int = 0
    """Seed of the order of items and of sampling."""
    stop_updates: Positive | None = None
    """The run is completed at this version of the policy."""
    stop_hours: Above0 | None = None
    """The run is completed this long after it was created."""
    stop_success: Share | None = None
    """The run is completed when the success of every task over the last ten updates reaches this
    share."""


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
    """Message bodies above this size (bytes) are compressed with zstd."""


class ProcessRewards(Section, frozen=True):
    """Rewards of single turns by rule (docs/credit.md), added to the task's own in training
    episodes. Evaluations do not count them.
    """

    valid_call: float = 0.0
    """Reward of a turn with calls, all of known tools and with arguments that fit."""
    progress: float = 0.0
    """Reward for the whole way to the goal. A turn gets the share by which it advances, negative if
    it goes back. Only for tasks that report `progress`."""


class Judge(Section, frozen=True):
    """A judge of finished training episodes: a model or a function (docs/judges.md). Evaluations do
    not ask it.
    """

    policy: str = ""
    """Name of the `[[policy]]` with `engine = "external"` whose model judges. A policy that judges
    never acts."""
    function: str = ""
    """Function that judges: `package.module:function` or `path.py:function`. It is called with the
    item and the episode, and returns the score."""
    prompt: str = ""
    """Jinja file with the prompt for the model. Empty: a general rubric."""
    pattern: str = ""
    """Regular expression with one group: the score in the model's reply. The last match counts.
    Empty: a number after the word "score"."""
    low: float = 0.0
    """Lowest score. A score below it is not accepted."""
    high: float = 1.0
    """Highest score. A score above it is not accepted."""
    weight: float = 1.0
    """The score times this is added to the reward of the episode."""
    environment_weight: float = 1.0
    """The rewards of the environment are multiplied by this. 0: the score replaces them."""
    tries: Positive = 3
    """Requests of one attempt for a score that can be read. After them the attempt has failed."""
    timeout_s: Seconds = 60.0
    """Time limit of one call of the function. The model has those of its policy."""
    concurrency: Positive = 16
    """Requests of one worker process at the same time."""
    requests_per_minute: Positive | None = None
    """Rate limit of one worker process. The limits of the policy hold for the whole run."""

    @property
    def is_set(self) -> bool:
        return bool(self.policy or self.function)


class Task(Section, frozen=True):
    """One task that the policy is trained on."""

    weight: Above0 = 1.0
    """Share of the groups that this task gets, relative to the weights of the other tasks."""
    split: str = "train"
    """Split whose items are trained on."""
    eval_split: str = "test"
    """Split whose items are used for evaluation."""
    max_turns: Positive | None = None
    """Turn limit of an episode. Absent: the task's own limit."""
    horizons: list[tuple[Natural, Positive]] = []
    """Turn limits that grow with training: pairs [version, turns]. From that version on an episode
    has at most that many turns."""
    source: str = ""
    """Other people's environments, as ADAPTER:ARGUMENT. Empty: the task named NAME."""
    options: dict[str, Any] = {}
    """Options of the task itself. The page of the task or adapter describes them."""
    process_rewards: ProcessRewards = ProcessRewards()
    judge: Judge = Judge()


class Dispatch(Section, frozen=True):
    """Admission of groups, and when an episode is sent again."""

    groups_per_update: Positive = 8
    """Number of groups per update. Groups are admitted while fewer than (max_staleness + 1) *
    groups_per_update are open."""
    group_size: Annotated[int, Meta(ge=2)] = 8
    """Episodes per group. All episodes of a group play the same item."""
    max_staleness: Natural = 4
    """Largest age of a token sampled by the track `current`, in updates. A group with older tokens
    is discarded."""
    max_lag: Natural = 64
    """Largest age of a token sampled by any other track, in updates. A group with older tokens is
    discarded."""
    claim_timeout_s: Seconds = 30.0
    """A queued episode that no worker has claimed after this time is sent again."""
    body_timeout_s: Seconds = 60.0
    """A finished episode whose trajectory is missing after this time is played again."""
    max_attempts: Positive = 3
    """Attempts at one episode before it is marked as failed."""
    lease_s: Seconds = 15.0
    """Lease of the dispatcher. Another dispatcher can take over after this time without renewal."""
    tick_s: Seconds = 0.2
    """Time between two rounds of the dispatcher."""
    retire_at: Share | None = None
    """An item whose recent success reaches this share is not trained on again."""
    window: tuple[Share, Share] | None = None
    """Range [low, high] of recent success. An item outside this range is paused."""
    window_pause: Positive = 2
    """Passes through the split for which an item outside `window` is paused."""
    mixing: Literal["fixed", "progress"] = "fixed"
    """How tasks share the groups: `fixed` by their weights, `progress` by weight times learning
    progress."""
    mixing_floor: Share = 0.05
    """Smallest share of each task with `mixing = "progress"`."""
    mixing_groups: Positive = 16
    """Groups in each of the two windows from which `mixing = "progress"` computes progress."""


class Worker(Section, frozen=True):
    """Workers, which run the episodes."""

    concurrency: Positive = 64
    """Episodes that one worker process runs at the same time."""
    beat_s: Seconds = 2.0
    """Time between two heartbeats of a worker."""
    lease_s: Seconds = 15.0
    """After this time without a heartbeat the episodes of a worker are given to others."""
    attempt_deadline_s: Seconds = 300.0
    """Time limit of one attempt. It must exceed `sampling.max_tokens` divided by the tokens per
    second of a policy server."""
    policy_wait_s: Seconds = 600.0
    """How long a step waits for a live policy."""
    completion_timeout_s: Seconds = 600.0
    """Time limit of one completion, from the request to its last token."""
    journal: Literal["steps", "off"] = "off"
    """`steps`: store each sampled step before its action takes effect, so that the next worker
    continues the episode of a worker that ended. `off`: the next worker plays it from the start."""


class Sampling(Section, frozen=True):
    """Which policy samples a step, and how (docs/sampling.md)."""

    strategy: Literal["current", "mixed", "uniform", "weighted", "adaptive"] = "mixed"
    """How the track of a step is drawn."""
    stale_share: Share = 0.25
    """Probability that `mixed` draws a lagged track. The alarm of the same name is about groups
    that were too old to be trained on."""
    weights: dict[str, AtLeast0] = {}
    """Weight of each track with `strategy = "weighted"`."""
    sticky_steps: Positive = 1
    """Steps for which a drawn policy is kept."""
    floor: Share = 0.05
    """Smallest weight of each live track with `strategy = "adaptive"`."""
    min_effective_sample_size: Share = 0.5
    """Smallest effective sample size that `adaptive` accepts, as a share of the batch's tokens."""
    max_kl: AtLeast0 = 0.1
    """Largest KL(μ ‖ π) that `adaptive` accepts, in nats per token."""
    window_groups: Positive = 64
    """Groups of each task from which `adaptive` learns its weights."""
    temperature: AtLeast0 = 1.0
    """Sampling temperature. 0: greedy."""
    max_step_tokens: Positive = 64
    """Largest number of sampled tokens in one step."""
    max_tokens: Positive = 2048
    """Largest number of tokens in one trajectory: the first prompt and everything after it."""


class Model(Section, frozen=True):
    """The model that is trained."""

    path: str = "models/tiny"
    """Transformers directory with tokenizer and chat template, or `hub:OWNER/NAME[@REVISION]`. The
    latter is downloaded when the run begins."""
    chat_template: str = ""
    """Jinja file that replaces the model's chat template. Empty: the model's own."""
    call_style: Literal["plain", "hermes", "qwen_xml", "glm", "json"] = "plain"
    """Format of tool calls in the model's text."""
    dtype: Dtype = "float32"
    """Data type of served weights, of checkpoints, and of the frozen base of an adapter. Trained
    weights are always float32."""
    device: str = "cpu"
    """Device as torch names it: cpu, cuda, cuda:1."""


class Vllm(Section, frozen=True):
    """vLLM, which runs in its own Python environment."""

    python: str = ".venv-vllm/bin/python"
    """Python interpreter of the environment with vLLM."""
    args: list[str] = []
    """Additional command-line arguments for vLLM."""
    env: dict[str, str] = {}
    """Additional environment variables for vLLM."""
    start_s: Seconds = 600.0
    """Time limit for vLLM to start."""
    call_s: Seconds = 60.0
    """Time limit of one call to vLLM, other than a completion."""
    max_adapters: Positive = 4
    """LoRA adapters in one batch."""
    cpu_adapters: Positive = 16
    """LoRA adapters kept in host memory."""
    context: Positive | None = None
    """Context length in tokens, for prompt and completion together. Absent: the model's own."""


class External(Section, frozen=True):
    """A model behind an OpenAI-compatible API (docs/external-policies.md)."""

    url: str = ""
    """URL of the API, up to and including /v1."""
    model: str = ""
    """Name of the model at the API."""
    key_env: str = ""
    """Environment variable with the API key. Empty: no key is sent."""
    tokens: bool = False
    """Whether the API accepts and returns token ids of our vocabulary with log-probabilities."""
    max_requests: Positive | None = None
    """Largest number of requests in the whole run. Failed tries count."""
    max_tokens: Positive | None = None
    """Largest number of tokens in the whole run, prompts and answers, as the API counts them."""
    requests_per_minute: Positive | None = None
    """Rate limit. Requests are spread evenly."""
    concurrency: Positive = 16
    """Requests at the same time."""
    retries: Natural = 4
    """Retries after a temporary failure: status 408, 409, 425, 429, 5xx, or a lost connection."""
    timeout_s: Seconds = 60.0
    """Time limit of one try."""
    prompt_price: AtLeast0 | None = None
    """Price of one million prompt tokens."""
    answer_price: AtLeast0 | None = None
    """Price of one million answer tokens."""
    answer_tokens: Positive = 512
    """Largest number of tokens in one answer, as the API counts them."""
    parameters: dict[str, Any] = {}
    """Additional fields of each request. They override ours."""


class PolicyServer(Section, frozen=True):
    """A policy server process."""

    name: Name
    """Name of the server, unique in the file. `agentrl policy --name` takes it."""
    engine: str = "local"
    """Inference engine. `scripted` is for tests."""
    tracks: list[str] = msgspec.field(default_factory=lambda: ["current"])
    """Tracks that the server follows: current, lagged(k), refreshed(k) or pinned(id)."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 0
    """Port to listen on. 0: any free port."""
    token_env: str = ""
    """Environment variable with the bearer token. All policy servers use the same one. Required
    unless `host` is loopback."""
    max_batch: Positive = 128
    """Completions at the same time. With `engine = "local"`, for each checkpoint."""
    cache_tokens: Positive = 131_072
    """Tokens in the KV cache of `engine = "local"`, for all policies together."""
    threads: Positive = 1
    """CPU threads of torch with `engine = "local"`."""
    beat_s: Seconds = 1.0
    """Time between two heartbeats of the server."""
    lease_s: Seconds = 6.0
    """After this time without a heartbeat the server counts as dead."""
    drain_s: Seconds = 30.0
    """When a checkpoint is replaced, its running requests may take this long. Then they are
    aborted."""
    tolerance: Above0 | None = None
    """A checkpoint is rejected if the median |Δlogp| on a fixed text exceeds this. Absent: 0.01, or
    0.15 with bfloat16."""
    vllm: Vllm = Vllm()
    external: External = External()


class Lora(Section, frozen=True):
    """Training of a LoRA adapter on the frozen model."""

    rank: Natural = 0
    """Rank of the adapter. 0: all weights are trained."""
    alpha: Above0 = 16.0
    """The output of the adapter is scaled by alpha / rank."""
    targets: list[str] = msgspec.field(
        default_factory=lambda: [
            *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
        ]
    )
    """Names of the linear modules that get an adapter."""


class DeepSpeed(Section, frozen=True):
    """Settings of `engine = "deepspeed"` (docs/deepspeed.md)."""

    zero: Literal[0, 1, 2, 3] = 2
    """ZeRO stage. 1 shards the optimizer state over the ranks, 2 also the gradients, 3 also the
    weights."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """What is kept in host memory: the optimizer state, or (with ZeRO 3) also the weights."""
    weights: Literal["float32", "model"] = "float32"
    """Type of the weights that ranks hold and exchange. "model": `model.dtype`, with float32 master
    weights in the optimizer; needs ZeRO 3."""
    timeout_s: Seconds = 60.0
    """Time limit of a collective operation between ranks."""
    extensions: str = ""
    """Folder of the compiled extensions. Empty: ~/.cache/agentrl/extensions."""


class Trainer(Section, frozen=True):
    """The trainer (docs/algorithms.md). π is the policy that is trained, π_prox is π before the
    update, μ is the policy that sampled the token.
    """

    preset: Literal["default", "paper"] = "default"
    """Set of values for keys that the file does not set (trainer/algorithm/presets.py)."""
    learning_rate: Above0 | None = None
    """Learning rate after the warm-up."""
    weight_decay: float = 0.0
    """Weight decay of matrices. Biases and norms have none."""
    warmup_updates: Natural = 0
    """Updates in which the learning rate rises linearly from 0."""
    max_grad_norm: Above0 = 1.0
    """Gradients are clipped to this norm."""
    loss: str | None = None
    """Loss, which decides how the ratio is bounded."""
    old: Literal["behaviour", "proximal"] | None = None
    """Denominator of the ratio: π/μ with `behaviour`, π/π_prox with `proximal`."""
    clip_low: Above0 | None = None
    """Lower bound of the ratio is 1 - clip_low."""
    clip_high: Above0 | None = None
    """Upper bound of the ratio is 1 + clip_high."""
    dual_clip: Annotated[float, Meta(gt=1.0)] | None = None
    """Upper bound of the ratio where the advantage is negative, with `ppo_clip`."""
    importance: Literal["none", "truncated", "icepop"] | None = None
    """How tokens are weighted by π_prox/μ. With `old = "behaviour"` the default is none."""
    min_weight: Share | None = None
    """With `icepop`, tokens with a smaller weight are masked."""
    max_weight: Annotated[float, Meta(ge=1.0)] | None = None
    """`truncated` caps larger weights at this value; `icepop` masks their tokens."""
    mixed_sequences: bool = False
    """Whether `gspo` may train on trajectories that several policies sampled."""
    kl_weight: AtLeast0 | None = None
    """Weight of the KL divergence to the first checkpoint of the run."""
    rewards: bool = True
    """Whether rewards are trained on. With `false`, only [[teacher]]s teach (docs/teachers.md)."""
    credit: str | None = None
    """How the turns of an episode are credited: all with its reward (`outcome`), each with the
    discounted rewards that follow (`discounted`) or with the compared rewards of single turns
    (`turn`), or also by comparing turns that began in the same state (`gigpo`)."""
    credit_options: dict[str, Any] = {}
    """Options of `credit` (docs/credit.md)."""
    advantage: str | None = None
    """How the rewards of a group are compared: minus their mean (`centred`), also divided by their
    standard deviation (`std`), or minus the mean of the others (`leave_one_out`)."""
    normalise: Literal["none", "task", "environment"] | None = None
    """Normalisation of advantages per task (minus mean, divided by standard deviation, at least
    0.1): over loss tokens (`task`) or over trajectories (`environment`)."""
    task_norm_min_tokens: Positive = 64
    """With `normalise = "task"`, a task with fewer loss tokens in the batch is not normalised."""
    aggregate: Literal["token_mean", "group_mean"] | None = None
    """Whether every loss token has the same weight, or every group."""
    task_weights: dict[str, AtLeast0] = {}
    """Weight of each task in the loss. A task that is not named has weight 1."""
    abnormal_reward: float | None = None
    """Reward of the last turn of episodes that end as task_limit or invalid_action."""
    turn_penalty: float = 0.0
    """Subtracted from the reward for each step."""
    token_penalty: float = 0.0
    """Subtracted from the reward for each sampled token."""
    keep_share: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """Share of the batch's groups of each task that are trained on: those with the highest variance
    of rewards (docs/algorithms.md)."""
    min_groups: Positive | None = None
    """Smallest number of groups in a batch. Absent: `dispatch.groups_per_update`."""
    max_groups: Positive | None = None
    """Largest number of groups in a batch. Absent: twice `min_groups`."""
    micro_batch_tokens: Positive = 1536
    """Largest number of tokens in one forward pass. A longer trajectory gets a pass of its own."""
    chunk_logits: Positive | None = None
    """Logits in memory at the same time. A larger value is faster and needs more memory. Absent:
    2^22 on a CPU, 2^27 on a GPU."""
    packing: bool = True
    """Whether several trajectories share one forward pass, without attention between them."""
    gradient_checkpointing: bool = False
    """Whether activations are computed again in the backward pass: less memory, about a third more
    computing."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """Optimizer. `sgd` is plain gradient descent."""
    lora: Lora = Lora()
    engine: Literal["torch", "deepspeed"] = "torch"
    """Training engine: `torch` is one process, `deepspeed` is `ranks` processes."""
    ranks: Positive = 1
    """Processes of `engine = "deepspeed"` on this machine."""
    deepspeed: DeepSpeed = DeepSpeed()
    inbox_bytes: Positive | None = None
    """Memory for received episodes, in bytes. It must hold one batch. Absent: one batch, at least
    512 MiB."""
    snapshot_every: Positive = 10
    """Updates between two snapshots. The last two snapshots are kept."""
    stop_s: Seconds = 30.0
    """Time from SIGTERM to SIGKILL. An update, its checkpoint and a snapshot must fit."""
    keep_checkpoints: Positive = 8
    """Newest checkpoints that are kept. Those since the last snapshot and those in use are also
    kept."""
    threads: Positive = 1
    """CPU threads of torch in each process of the trainer."""


class Teacher(Section, frozen=True):
    """A teacher whose log-probabilities the policy is drawn to (docs/teachers.md)."""

    name: Name
    """Name of the teacher, unique in the file."""
    checkpoint: str
    """Directory of a model or checkpoint, or a checkpoint of the store by its ID or as RUN@VERSION.
    It must have the tokenizer of `model.path`."""
    tasks: list[str] = []
    """Tasks that it teaches. Empty: all. A task has one teacher at most."""
    weight: Above0 = 1.0
    """Weight of log π_teacher − log π, which is added to the advantage of each token."""


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
    """Smallest effective sample size, as a share of the task's loss tokens."""
    max_mismatch_kl: AtLeast0 = 0.05
    """Largest KL(μ ‖ π), in nats per token."""
    max_ratio: AtLeast0 = 100.0
    """Largest π/μ of a single token."""
    max_clip_fraction: Share = 0.3
    """Largest share of the task's loss tokens with a clipped ratio."""
    min_entropy: AtLeast0 = 0.01
    """Smallest mean entropy, in nats per token."""
    max_entropy_fall: Share = 0.5
    """Largest fall of the entropy below its mean over the last ten updates, as a share of that
    mean."""
    max_grad_norm: AtLeast0 = 10.0
    """Largest gradient norm, as a multiple of `trainer.max_grad_norm`."""
    max_zero_spread_share: Share = 0.8
    """Largest share of groups without spread, of the task's groups since the last update."""
    max_stale_share: Share = 0.2
    """Largest share of stale groups, of the task's groups since the last update."""
    min_groups: Positive = 8
    """The two alarms about shares of groups need at least this many groups."""
    off: list[AlarmName] = []
    """Alarms that are switched off."""


class Eval(Section, frozen=True):
    """Evaluation of checkpoints during training, in a separate process (docs/evaluation.md)."""

    every: Natural = 0
    """Updates between two evaluated versions. 0: no evaluation during training."""
    tasks: list[str] = []
    """Tasks to evaluate. Empty: all."""
    splits: list[str] = []
    """Splits to evaluate. Empty: each task's `eval_split`."""
    items: Positive = 50
    """Items per task and split."""
    repeats: Positive = 1
    """Episodes per item."""
    temperature: AtLeast0 | None = None
    """Sampling temperature. 0: greedy. Absent: `sampling.temperature`."""
    concurrency: Positive = 16
    """Episodes at the same time."""
    device: str = ""
    """Device of the evaluated model. Empty: `model.device`."""
    engine: Literal["local", "vllm"] = "local"
    """Inference engine. `agentrl eval` uses it, too."""
    threads: Positive = 1
    """CPU threads of torch with `engine = "local"`."""
    vllm: Vllm = Vllm()
    nice: Annotated[int, Meta(ge=0, le=19)] = 10
    """CPU niceness of the evaluator. At 10 it gets about a tenth of the CPU time of a process with
    niceness 0."""


class Dashboard(Section, frozen=True):
    """The web dashboard (docs/dashboard.md)."""

    proxies: list[str] = []
    """Addresses or networks of reverse proxies. Their X-Forwarded-For header is trusted."""


class Envs(Section, frozen=True):
    """Environments, and the env server that runs them."""

    url: str = ""
    """URL of an env server. Empty: environments run inside the workers."""
    token_env: str = ""
    """Environment variable with the bearer token of the env server. Required unless `host` is
    loopback."""
    host: str = "127.0.0.1"
    """Address on which the env server listens."""
    port: Port = 0
    """Port of the env server. 0: the port of `url`, or any free port."""
    protocol: Literal["agentrl", "openenv"] = "agentrl"
    """Protocol of the env server. `openenv`: for OpenEnv's clients; AgentRL's own workers need
    `agentrl`."""
    concurrency: Positive = 64
    """Episodes that the env server runs at the same time."""
    controller: str = ""
    """URL of an AgentRL task controller (the original system) at which the env server registers."""
    advertise: str = ""
    """URL under which that controller reaches the env server. Empty: the server's own URL."""
    docker_image: str = "python:3.11-slim"
    """Docker image of the task `os` and of tasks with `container = true`."""
    idle_timeout_s: Seconds = 600.0
    """A session of the env server without a call for this long is cancelled."""
    call_timeout_s: Seconds = 240.0
    """Time limit of one environment call. A slower call fails its episode."""

    def names_worker(self) -> bool:
        """Return whether `url` is a task worker of the original system."""
        return self.url.rstrip("/").endswith("/api")


class Metrics(Section, frozen=True):
    """Prometheus metrics of every process (docs/monitoring.md)."""

    port: Port = 0
    """Port of the supervisor's metrics. Its processes use the ports after it, one each. A process
    that is started alone uses this port itself. 0: no metrics."""
    host: str = "127.0.0.1"
    """Address on which each process listens for scrapes."""
    token_env: str = ""
    """Environment variable with the bearer token. Required unless `host` is loopback."""
    look_s: Seconds = 5.0
    """Time between two queries of the dispatcher for its gauges."""


class Tracing(Section, frozen=True):
    """OpenTelemetry traces of attempts (docs/monitoring.md)."""

    endpoint: str = ""
    """URL of an OTLP/HTTP collector, such as http://127.0.0.1:4318/v1/traces. Empty: no traces."""
    share: Share = 1.0
    """Share of the attempts that are traced."""
    messages: bool = False
    """Whether traces hold the conversations: prompts, answers, calls and their results."""


class Logs(Section, frozen=True):
    """Logs of the processes, written to stderr."""

    format: Literal["auto", "json", "text"] = "auto"
    """Format of a line. `auto`: text on a terminal, otherwise JSON."""
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Lowest level that is written."""
    max_mib: Positive = 64
    """Size in MiB at which the log file of a process under `run.home` is renamed to NAME.log.1."""


class Trackers(Section, frozen=True):
    """Experiment trackers that receive the metrics of the run (docs/trackers.md)."""

    use: list[str] = []
    """Trackers to use. Empty: none."""
    project: str = "agentrl"
    """Name of the MLflow experiment or the W&B project."""
    folder: str = ""
    """Folder for local tracker files. Empty: `trackers` under `run.home`."""
    mlflow_url: str = ""
    """URL of an MLflow tracking server. Empty: local files."""
    wandb_online: bool = False
    """Whether W&B uploads at once. Otherwise it writes a file for `wandb sync`."""
    look_s: Seconds = 2.0
    """Time between two exports."""


def check_name(name: str, where: str) -> None:
    """Raise ConfigError if `name` cannot be the name of a run."""
    if not re.search(NAME, name):
        rule = "use up to 60 letters, digits, `.`, `_` and `-`; the first is not `.` or `-`"
        raise ConfigError(f"{where}: {name!r} is not a valid name", hint=rule)
