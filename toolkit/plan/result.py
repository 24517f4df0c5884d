"""What a plan says, as flat records: the answer of the planner, the keys of `toolkit plan --json`. It computes nothing."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One flag of vLLM's, as it should be, and why."""

    flag: str
    """Without dashes, e.g., `max-model-len`."""
    value: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One model, in one quantization, on one machine. Bytes and tokens are of the whole engine, all its GPUs together."""

    model: str
    gpu: str
    gpus: int = 1
    """Tensor parallel x pipeline parallel."""
    quantization: str
    kv_cache_dtype: str = "auto"
    fits: bool
    """Its weights and at least one request of `max-model-len` do."""
    weights_gib: float
    kv_bytes_per_token: float
    """Of layers that keep all tokens."""
    state_bytes_per_request: float = 0.0
    """Of layers whose memory does not grow with the tokens: linear attention, and windows once they are full."""
    block_size: int | None = None
    """Tokens."""
    bytes_per_block: int | None = None
    num_gpu_blocks: int | None = None
    """As vLLM would report it: one of them is reserved, and holds nothing."""
    kv_budget_gib: float
    kv_cache_tokens: int
    """As vLLM would report it: for hybrids what requests of full length would add up to."""
    request_tokens: float
    """Prompt and answer of one request, which `max_concurrency` is for."""
    max_concurrency: int
    """Requests of `request_tokens` that are in memory at once."""
    requests_per_s: float | None = None
    """None: the time of one request is not known."""
    cost_per_million_tokens: float | None = None
    """In the currency of the GPU hour's price; None: no price, or no rate."""
    seconds_per_request: float | None = None
    """As measured, by whomever."""
    max_model_len: int | None = None
    """All of it is reckoned with this limit, these sequences and this share of memory: as told, or as recommended."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    blocks_per_request: int | None = None
    """Of `request_tokens`, at its end, states included."""
    blocks_to_begin: int | None = None
    """So many must be free for it to begin: more than it holds at its end where a window moves on."""
    memory_gib: float | None = None
    """What programs are offered of all GPUs. Weights, the KV budget and the next three are parts of the share of it that
    vLLM may use."""
    context_gib: float | None = None
    """CUDA's own; estimated, as the next two."""
    activation_gib: float | None = None
    graph_gib: float | None = None
    """Until vLLM 0.19 they come on top of that share."""
    parameters: int | None = None
    flags: dict[str, str] = field(default_factory=dict)
    """Recommended, without dashes, e.g., {"max-model-len": "512"}."""
    advice: tuple[Advice, ...] = ()
    """The same flags, each with its reason."""
    notes: tuple[str, ...] = ()
