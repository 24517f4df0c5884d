"""The failures of a start that are known: how vLLM, torch, the hub or Linux word them, and what they mean. Only data.

The wordings marked with a version were read in the sources of that version; all that a machine without a GPU can
fail of was made to happen, see the recordings beside the test.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Words = str | Callable[[Mapping[str, str]], str]
"""A text, or one that is made of what was found."""


@dataclass(frozen=True, slots=True)
class Known:
    """One of them; those above count first."""

    code: str
    pattern: re.Pattern[str]
    sentence: Words
    hint: Words


def _known(code: str, pattern: str, sentence: Words, hint: Words) -> Known:
    return Known(code, re.compile(pattern, re.MULTILINE), sentence, hint)


def _utilization(found: Mapping[str, str]) -> str:
    """A share that fits into what is free now, rounded down to a hundredth."""
    share = math.floor(100 * float(found["free"]) / float(found["total"])) / 100
    return (
        f"`nvidia-smi` names who else holds memory; or ask for `gpu-memory-utilization` {share:g}"
    )


def _shorter(found: Mapping[str, str]) -> str:
    if "fits" in found:
        return f"`max-model-len` {found['fits']} fits; or raise `gpu-memory-utilization`, or give the KV cache 8 bits"
    return "Lower `max-model-len`, raise `gpu-memory-utilization`, or give the KV cache 8 bits (`kv-cache-dtype` fp8)"


def _too_long(found: Mapping[str, str]) -> str:
    return f"Write at most `max-model-len` {found['most'].partition('.')[0]}, or leave it out"


def _where(found: Mapping[str, str]) -> str:
    where = found.get("path", "")
    return f"the disk is full: `{where}` could not be written" if where else "a disk is full"


def _block(found: Mapping[str, str]) -> str:
    step = re.search(r"MultipleOf\((\d+)\)", found.get("allowed", ""))
    if step is None:
        return "Leave `block-size` out: the attention backend chooses"
    return f"Write a multiple of {step[1]}, or leave `block-size` out"


def _divisors(found: Mapping[str, str]) -> str:
    heads = int(found["heads"])
    fit = [str(size) for size in range(1, min(heads, 16) + 1) if heads % size == 0]
    return f"`tensor-parallel-size` may be {', '.join(fit)}"


def _quantization(found: Mapping[str, str]) -> str:
    if "config" in found:
        return f"the model was not quantized with `{found['config']}`"
    if "has" in found:
        return f"the model is quantized with `{found['has']}`, not `{found['asked']}`"
    if "name" in found:
        return f"this vLLM does not know the quantization `{found['name']}`"
    return (
        f"this machine can't compute the quantization `{found.get('gpu') or found.get('platform')}`"
    )


_ERRNO = r"\[Errno {number}\] [^\n:']*(?:: '(?P<path>[^'\n]*)')?"

CAUSES: tuple[Known, ...] = (
    # --- the command line ----------------------------------------------------------------------------------
    _known(
        "unknown_flag",
        r"error: unrecognized arguments: (?P<flag>.+)",
        lambda found: f"this vLLM has no flag `{found['flag']}`",
        "`vllm serve --help=all` lists its flags",
    ),
    _known(
        "bad_value",
        r"error: argument (?P<flag>[^\s:]+): (?P<why>.{1,200})",
        lambda found: f"the flag `{found['flag']}` was refused: {found['why']}",
        "`vllm serve --help=all` lists what it takes",
    ),
    # --- memory, disk, ports: the machine ------------------------------------------------------------------
    _known(
        "shared_memory",
        r"\[Errno 28\] No space left on device: '(?:/dev/shm/|/?psm_|/?sem\.|/?mp-)[^']*'"
        r"|unable to (?:write to file|open shared memory object|mmap \d+ bytes from file) </?torch_"
        r"|No space left on device[^\n]*/dev/shm|Bus error|SIGBUS"
        r"|Insufficient space in /dev/shm|insufficient shared memory \(shm\)|Error while creating shared memory segment",
        "`/dev/shm` is too small for the buffers between its processes",
        "See `df -h /dev/shm`; in a container start it with `--shm-size 8g` or `--ipc=host`",
    ),
    _known(
        "disk_full",
        _ERRNO.format(number=28)
        + r"|No space left on device(?: \(os error 28\))?|Disk quota exceeded|\[Errno 122\]",
        _where,
        "See `df -h`; old models lie in `~/.cache/huggingface`, compiled graphs in `~/.cache/vllm`",
    ),
    _known(
        "gpu_memory_busy",  # 0.6 to 0.33
        r"Free memory on device \S* ?\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than"
        r"[^(]*\((?P<share>[\d.]+), (?P<asked>[\d.]+) GiB\)",
        lambda found: (
            f"only {found['free']} of {found['total']} GiB of the GPU's memory are free, and"
            f" `gpu-memory-utilization` {found['share']} asks for {found['asked']} GiB"
        ),
        _utilization,
    ),
    _known(
        "gpu_memory",
        r"(?:torch\.|torch\.cuda\.)?OutOfMemoryError: CUDA out of memory\. Tried to allocate (?P<size>[\d.]+ [KMGT]iB)"
        r"|OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation"
        r"|CUBLAS_STATUS_ALLOC_FAILED",
        lambda found: (
            "the GPU's memory ran out"
            + (f" at an allocation of {found['size']}" if "size" in found else "")
        ),
        "Lower `max-num-seqs`, `max-num-batched-tokens` or `gpu-memory-utilization`, or take a smaller quantization;"
        " `toolkit plan` says what fits",
    ),
    _known(
        "kv_cache_small",  # 0.8 to 0.33
        r"To serve at least one request with the model'?s'? max seq len \((?P<length>\d+)\), \((?P<needed>[\d.]+) GiB KV"
        r"\s+cache is needed, which is larger than the available KV cache\s+memory \((?P<left>[\d.]+) GiB\)"
        r"(?:\. Based on the available memory,\s+the estimated maximum model length is (?P<fits>\d+))?",
        lambda found: (
            f"one request of `max-model-len` {found['length']} needs {found['needed']} GiB of KV cache,"
            f" and {found['left']} GiB are left"
        ),
        _shorter,
    ),
    _known(
        "kv_cache_small",  # 0.6 and 0.7
        r"The model's max seq len \((?P<length>\d+)\) is larger than the maximum number of tokens that can be stored"
        r" in KV cache \((?P<fits>\d+)\)",
        lambda found: (
            f"the KV cache holds {found['fits']} tokens, less than one request of `max-model-len` {found['length']}"
        ),
        _shorter,
    ),
    _known(
        "kv_cache_none",
        r"No available memory for the cache blocks|not enough GPU memory available to serve even a single token",
        "the weights leave no memory for the KV cache",
        "Take a smaller quantization, more GPUs (`tensor-parallel-size`), or a higher `gpu-memory-utilization`;"
        " `toolkit plan` says what fits",
    ),
    _known(
        "host_memory",
        r"^MemoryError|DefaultCPUAllocator: can't allocate memory|\[Errno 12\]|Cannot allocate memory|std::bad_alloc",
        "the machine's memory ran out",
        "See `free -h` and `ulimit -v`; on a CPU lower `VLLM_CPU_KVCACHE_SPACE`",
    ),
    _known(
        "port_taken",
        r"\[Errno 98\]|[Aa]ddress already in use|EADDRINUSE",
        "its port is taken by another process",
        "`ss -ltnp` names who listens; end that, or take another `port`",
    ),
    _known(
        "port_forbidden",
        r"\[Errno 13\] Permission denied$|\[Errno 99\] Cannot assign requested address",
        "it may not listen where it was told to",
        "Ports below 1024 are root's, and `host` must be an address of this machine, e.g., 127.0.0.1",
    ),
    _known(
        "open_files",
        r"\[Errno 24\]|Too many open files",
        "it ran out of open files",
        "`ulimit -n 65535` in the shell that starts it",
    ),
    _known(
        "processes",
        # not every `Resource temporarily unavailable`: zmq says so of a socket that has nothing to read
        r"can't start new thread|Resource temporarily unavailable \(src/thread|pthread_create.* failed"
        r"|BlockingIOError: \[Errno 11\]|fork[^\n]{0,40}Resource temporarily unavailable",
        "it could start no further thread: too many run, or none has room in its memory",
        "See `ulimit -u` and `ulimit -v`; in a container raise its limit of pids",
    ),
    # --- GPU and driver ------------------------------------------------------------------------------------
    _known(
        "gpu_driver",  # torch 2.x
        r"The NVIDIA driver on your system is too old(?: \(found version (?P<version>\d+)\))?"
        r"|CUDA driver version is insufficient|Error 803: system has unsupported display driver"
        r"|forward compatibility was attempted on non supported HW",
        "the GPU's driver is older than the CUDA that this vLLM was built for",
        "Update the driver, or install a vLLM built for its CUDA; `nvidia-smi` shows up to which CUDA it goes",
    ),
    _known(
        "gpu_unsupported",
        r"no kernel image is available for execution on the device|is not compatible with the current PyTorch",
        "this vLLM has no code for this generation of GPU",
        "Install a build for it; `nvidia-smi --query-gpu=name,compute_cap --format=csv` says which it is",
    ),
    _known(
        "gpu_missing",
        r"No CUDA GPUs are available|Found no NVIDIA driver|Failed to infer device type|invalid device ordinal"
        r"|CUDA-capable device\(s\) is/are busy|no CUDA-capable device is detected",
        "it finds no GPU that it may use",
        "See `nvidia-smi -L` and CUDA_VISIBLE_DEVICES; in a container start it with `--gpus all`",
    ),
    _known(
        "gpus_too_few",
        r"World size \((?P<asked>\d+)\) is larger than the number of available GPUs \((?P<there>\d+)\)",
        lambda found: f"it was told to use {found['asked']} GPUs and finds {found['there']}",
        "Lower `tensor-parallel-size` or `pipeline-parallel-size`",
    ),
    _known(
        "heads",
        r"Total number of attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size \((?P<size>\d+)\)",
        lambda found: (
            f"the model's {found['heads']} attention heads can't be shared by {found['size']} GPUs"
        ),
        _divisors,
    ),
    _known(
        "gpu_dtype",
        r"Bfloat16 is only supported on GPUs with compute capability of at least (?P<least>[\d.]+)",
        "this GPU can't compute in bfloat16",
        "Write `dtype` half",
    ),
    # --- model ---------------------------------------------------------------------------------------------
    _known(
        "model_gated",
        r"Cannot access gated repo|GatedRepoError|You are trying to access a gated repo|access to model [^\n]{1,80} is restricted",
        "the model is gated, and this machine has no right to it",
        "Ask for access on its page at Hugging Face, then set HF_TOKEN",
    ),
    _known(
        "remote_code",
        r"Please pass the argument `trust_remote_code=True`|requires you to execute the configuration file",
        "the model brings code of its own, which may not run unless it is trusted",
        "Read it, then add the flag `trust-remote-code`",
    ),
    _known(
        "architecture",
        r"Model architectures \['(?P<name>[^']*)'.{0,80}?\] (?:are not supported|failed to be inspected)"
        r"|[Mm]odel type `(?P<type>[^`]*)` but Transformers does not recognize this architecture",
        lambda found: (
            f"this vLLM does not know models of the kind `{found.get('name') or found.get('type', '?')}`"
        ),
        "Install a newer vLLM (and transformers): the model may be newer than they are",
    ),
    _known(
        "config_missing",
        r"Invalid repository ID or local directory specified: '(?P<path>[^']*)'"
        r"|(?:^|\s)(?P<file>\S{1,300}) does not appear to have a file named config\.json",
        lambda found: (
            f"there is no `config.json` for the model `{found.get('path') or found.get('file')}`"
        ),
        "Name a directory that holds one, or a model at Hugging Face",
    ),
    _known(
        "model_missing",
        r"Repo id must be in the form 'repo_name' or 'namespace/repo_name': '(?P<name>[^']*)'"
        r"|(?:^|\s)(?P<other>\S{1,300}) is not a local folder and is not a valid model identifier"
        r"|RepositoryNotFoundError|Repository Not Found for url: \S+?huggingface\.co/(?P<url>[\w./-]+?)/(?:resolve|tree)"
        r"|404 Client Error",
        lambda found: (
            "there is no model"
            + "".join(f" `{found[key]}`" for key in ("name", "other", "url") if key in found)
            + " here or at Hugging Face"
        ),
        "Check the path or the name; a private one wants HF_TOKEN",
    ),
    _known(
        "hub_unreachable",
        r"LocalEntryNotFoundError|We couldn't connect to 'https://huggingface\.co'|OfflineModeIsEnabled"
        r"|outgoing traffic has been disabled|Max retries exceeded with url|Temporary failure in name resolution",
        "the model is not on this machine, and Hugging Face can't be reached",
        "Download it first (`hf download NAME`), or name a directory; HF_HUB_OFFLINE=1 forbids every download",
    ),
    _known(
        "too_long",
        r"User-specified max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len"
        r" \([^=\n]*=(?P<most>[\d.]+)",
        lambda found: (
            f"`max-model-len` {found['asked']} is more than the model's {found['most'].partition('.')[0]} positions"
        ),
        _too_long,
    ),
    _known(
        "quantization",
        r"Unknown quantization method: '?(?P<name>[\w-]+)'?"
        r"|Cannot find the config file for (?P<config>[\w-]+)"
        r"|Quantization method specified in the model config \((?P<has>[^)]*)\) does not match the quantization method"
        r" specified in the `quantization` argument \((?P<asked>[^)]*)\)"
        r"|[Tt]he quantization method (?P<gpu>[\w-]+) is not supported for the current GPU"
        r"|\b(?P<platform>\w{1,40}) quantization is currently not supported in",
        _quantization,
        lambda found: (
            "Leave `quantization` out: vLLM reads it from the checkpoint"
            if found.keys() & {"config", "has"}
            else "Take a checkpoint in another quantization; `toolkit plan` compares them"
        ),
    ),
    _known(
        "block_size",
        r"No common block size for (?P<size>\d+)(?: \((?P<allowed>.*?)\)[.']|)"
        r"|[Bb]lock[ _]size[^\n]{0,40} (?:is not supported|must be)|Invalid block size: (?P<other>\d+)",
        lambda found: (
            f"a block of {found.get('size') or found.get('other')} tokens is not possible with this attention backend"
            if found.keys() & {"size", "other"}
            else "this `block-size` is not possible"
        ),
        _block,
    ),
    _known(
        "weights_broken",
        r"SafetensorError|Error while deserializing header|incomplete metadata, file not fully covered"
        r"|PytorchStreamReader failed|invalid load key",
        "a file of the model's weights is damaged or was not downloaded to its end",
        "Delete it and download it again; compare its size with the one at Hugging Face",
    ),
    _known(
        "weights_missing",
        r"Cannot find any model weights with `(?P<path>[^`]*)`"
        r"|Following weights were not initialized from checkpoint",
        lambda found: (
            f"there are no weights at `{found['path']}`"
            if "path" in found
            else "the checkpoint lacks weights that the model wants"
        ),
        "Download the `.safetensors` files beside its `config.json`",
    ),
    _known(
        "tokenizer",
        r"Can't load tokenizer for '(?P<path>[^']*)'|Couldn't instantiate the backend tokenizer"
        r"|Unable to load vocabulary from file|Cannot find the tokenizer|not a string\b.*sentencepiece",
        "the model's tokenizer is missing or can't be read",
        "Put `tokenizer.json` beside its `config.json`, or name another with the flag `tokenizer`",
    ),
    # --- the installation ----------------------------------------------------------------------------------
    _known(
        "torchvision",
        r"operator torchvision::nms does not exist",
        "torchvision was built for another torch than the one beside it",
        "`pip uninstall -y torchvision torchaudio`, or install those of this torch",
    ),
    _known(
        "package_missing",
        r"ModuleNotFoundError: No module named '(?P<name>[^']*)'"
        r"|PackageNotFoundError: No package metadata was found for (?P<package>\S+)",
        lambda found: (
            f"the Python package `{found.get('name') or found.get('package')}` is not installed"
        ),
        "Install it into vLLM's environment",
    ),
    _known(
        "library_missing",
        r"(?:ImportError|OSError): (?P<name>lib[\w.+-]+|[^\s:]+\.so[\w.]*): (?:cannot open shared object file|undefined symbol)",
        lambda found: (
            f"the library `{found['name']}` is missing, or another version than was built for"
        ),
        "Install vLLM into a fresh environment: torch, CUDA's libraries and vLLM must be of one build",
    ),
    # late: vLLM itself kills the rest of a family that failed of something else
    _known(
        "killed",
        r"died unexpectedly \(exit code: -9\)|Failed core proc\(s\): \{[^}\n]*: -9|exit code:? -9\b",
        "one of its processes was killed (SIGKILL), as Linux does when memory runs out",
        "See `dmesg | grep -i 'killed process'` and `free -h`; give it less, or free memory",
    ),
    _known(
        "too_slow",
        r"Timed out waiting for engine core processes|did not become ready|Timed out waiting for engines?",
        "it was not ready in the time that vLLM allows itself",
        "Set VLLM_ENGINE_READY_TIMEOUT_S, 600 by default; a model on a slow disk loads longer",
    ),
)
