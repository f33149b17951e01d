"""The model, and the servers that sample from it."""

from typing import Any, Literal

import msgspec

from agentrl.core.config.sections.base import (
    Above0,
    AtLeast0,
    Device,
    Dtype,
    Name,
    Natural,
    Port,
    Positive,
    Seconds,
    Section,
)

EVALUATED = "pinned"  # the track of the evaluator's server, which no [[policy]] can have
GRAPH_BYTES = 8 * 2**30


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
    """Data type of served and saved weights, and of an adapter's frozen base. The trainer's master
    weights are float32."""
    device: Device = "cpu"
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
    """Time limit of a call other than a completion. Reading weights may take a second longer for
    each 64 MiB."""
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
    """Tokens in the KV cache of `engine = "local"`, of conversations that may go on. Every
    checkpoint that samples one has its own copy. The log says if the cache is too small."""
    graph_bytes: Natural = GRAPH_BYTES
    """Bytes of the largest model whose passes `engine = "local"` records as CUDA graphs, which hold
    its weights once more. 0: no pass is recorded."""
    threads: Positive = 1
    """CPU threads of `engine = "local"`."""
    beat_s: Seconds = 1.0
    """Time between two heartbeats."""
    lease_s: Seconds = 6.0
    """After this time without a heartbeat the server counts as dead. At least 2 * beat_s."""
    drain_s: Seconds = 30.0
    """How long requests of a replaced checkpoint may go on. Then they are aborted. While they
    go on, the local engine loads no checkpoint beyond the number of tracks + 1."""
    tolerance: Above0 | None = None
    """A checkpoint whose median |Δlogp| on a fixed text exceeds this is rejected. Absent: 0.01, or
    0.15 with bfloat16."""
    vllm: Vllm = Vllm()
    external: External = External()

    def section(self) -> str:
        """Return the section that configures it; the evaluator's server is made of `[eval]`."""
        return "eval" if self.tracks == [EVALUATED] else "policy"
