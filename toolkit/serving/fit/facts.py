"""What is known of a machine that is to serve: plain records, as machine.py fills them. They judge nothing.

None is unknown, and `error` beside it says why.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFiles:
    """How many files a process may hold open; None: without limit where `error` is None."""

    soft: int | None
    hard: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder that fills a disk."""

    path: str
    used_bytes: int
    spare: bool = True
    """Whether it can be fetched or made again."""
    complete: bool = True
    """False: time ran out while it was counted; it holds at least so much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A place that serving writes to."""

    role: str
    """`models`, `vllm_cache` or `temporary`: what goes there."""
    path: str
    mount: str | None = None
    """Where its file system begins; the path itself need not be there yet."""
    total_bytes: int | None = None
    free_bytes: int | None = None
    """For this user: the blocks reserved for root are not free to others."""
    free_files: int | None = None
    """Inodes; None where the file system has no limit of them."""
    writable: bool | None = None
    read_only: bool = False
    """Nobody may write there, root included."""
    folders: tuple[Folder, ...] = ()
    """What fills it, as far as it was looked at, the biggest first."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The machine's memory, and how much of it this process' container may use."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    limit_bytes: int | None = None
    """The control group's; None: no limit, or it cannot be read."""
    limit_used_bytes: int | None = None
    """What the group holds of it that cannot be dropped."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemory:
    """The folder `/dev/shm`, through which vLLM's processes talk."""

    total_bytes: int | None = None
    free_bytes: int | None = None
    leftovers: tuple[Folder, ...] = ()
    """Files that nobody holds open any more, whoever and in whatever container."""
    unclear: int = 0
    """Files of which that cannot be told: they belong to others."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A socket that listens on a port."""

    address: str
    family: str
    """`IPv4` or `IPv6`."""
    pids: tuple[int, ...] = ()
    """Empty: a process that this user may not look at, or one of another container."""
    command: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A port that is to be listened on."""

    number: int
    refusal: str | None = None
    """Why it cannot be bound on the wanted address: EADDRINUSE, EACCES ...; None: it can."""
    bound_only: bool = False
    """Some server holds it and does not listen yet, as vLLM while it loads."""
    ending: bool = False
    """Only connections are left of a server that is gone; the kernel keeps them for a minute."""
    holders: tuple[Holder, ...] = ()
    reserved: bool | None = None
    """Whether the kernel keeps it from outgoing connections by name."""
    error: str | None = None
    """Why nobody can tell who holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The kernel's settings that many short connections run into."""

    ephemeral_low: int | None = None
    ephemeral_high: int | None = None
    reserved: str = ""
    """Ports that the kernel keeps from outgoing connections: `8000-8010,9000`."""
    tw_reuse: int | None = None
    somaxconn: int | None = None
    syn_backlog: int | None = None
    syncookies: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that holds memory of a GPU."""

    pid: int
    used_bytes: int | None = None
    command: str | None = None
    """None: it cannot be seen from here, e.g., it is another container's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A MIG slice of a GPU."""

    uuid: str | None
    name: str | None
    total_bytes: int | None = None
    free_bytes: int | None = None
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as NVML tells it; what it does not tell is None."""

    index: int
    name: str | None = None
    uuid: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    persistence: bool | None = None
    sm_mhz: int | None = None
    sm_max_mhz: int | None = None
    busy_share: float | None = None
    limits: tuple[str, ...] | None = None
    """Why its clocks are held down at this moment, in words of limits.* below; None: unknown."""
    temperature_c: int | None = None
    compute_mode: int | None = None
    """0 default, 1 and 3 exclusive, 2 prohibited."""
    mig: bool | None = None
    slices: tuple[Slice, ...] = ()
    ecc_errors: int | None = None
    """Uncorrected ones since the driver was loaded."""
    pages_pending: bool | None = None
    """Memory that the GPU wants to replace at its next reset."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """All GPUs of the machine, or why there are none."""

    driver: str | None = None
    cuda: tuple[int, int] | None = None
    """The newest CUDA that the driver runs, e.g., (13, 0)."""
    gpus: tuple[Gpu, ...] = ()
    error: str | None = None
    on_the_bus: int | None = None
    """NVIDIA's display and compute devices on the PCI bus: they are there whatever the driver does."""
    visible: str | None = None
    """CUDA_VISIBLE_DEVICES as the engine will inherit it; None: not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The installed vLLM."""

    command: str
    path: str | None = None
    """Where it was found; None: it was not."""
    is_script: bool = True
    """Whether its Python could be found; a wrapper in another language cannot be asked."""
    version: str | None = None
    torch: str | None = None
    cuda: str | None = None
    """The CUDA that its PyTorch was built for, e.g., `12.8`; None with a version: it was built for the CPU."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Whether the wall clock is kept right by somebody."""

    synchronised: bool | None = None
    largest_error_ms: float | None = None
    """The kernel's own bound."""
    keeper: str | None = None
    """A program at hand that would keep it: `timedatectl`, `chronyd`; None: none was found."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The cores that may be used."""

    cores: int | None = None
    usable: int | None = None
    """After the affinity mask."""
    quota_cores: float | None = None
    """The control group's; None: no limit, or it cannot be read."""
    governors: tuple[str, ...] | None = None
    """Every policy that a core has; empty: this machine scales nothing; None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """An engine process whose server is gone."""

    pid: int
    command: str
    used_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All of it, at one moment."""

    root: bool = False
    """Whether commands need no `sudo`."""
    container: str | None = None
    """`docker`, `kubernetes` ... where this looks like one."""
    may_mount: bool = False
    may_lift: bool = False
    """Whether this user may lift hard limits; root of a container usually may not."""
    open_files: OpenFiles | None = None
    disks: tuple[Disk, ...] = ()
    memory: Memory = field(default_factory=Memory)
    shared: SharedMemory = field(default_factory=SharedMemory)
    ports: tuple[Port, ...] = ()
    network: Network = field(default_factory=Network)
    gpus: Gpus = field(default_factory=Gpus)
    engine: Engine | None = None
    """None: no vLLM is needed."""
    clock: Clock = field(default_factory=Clock)
    cpu: Cpu = field(default_factory=Cpu)
    orphans: tuple[Orphan, ...] = ()
