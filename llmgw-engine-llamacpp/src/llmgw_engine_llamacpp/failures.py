"""Why llama.cpp ended: its last lines and exit codes, as measured on builds 11434 and 11549."""

from __future__ import annotations

from dataclasses import replace

from llmgw.contracts.engine import EngineExit
from llmgw.contracts.symptoms import Symptom, explain
from llmgw.domain.replicas import Failure, FailureCause

# `M.SS.mmm.uuu E component function: text`: native log lines of level error. The launcher's own
# last line only says that there was an error; these say which.
_ERROR_LINE = r"^\d+\.\d\d\.\d{3}\.\d{3} E |^llmgw: |error:"

_SYMPTOMS = (
    Symptom(
        pattern=r"couldn't bind (?:HTTP )?server socket",
        cause=FailureCause.PORT_IN_USE,
        says="another program has the port",
        hint="see `ss -ltnp`; the agent tries again by itself",
    ),
    Symptom(
        pattern=r"failed to open GGUF file|No such file or directory.*\.gguf",
        cause=FailureCause.WEIGHTS_MISSING,
        says="the weights file cannot be opened",
        hint="check `weights` (and `options.model_file`) and the file's permissions",
    ),
    Symptom(
        pattern=r"invalid magic characters",
        cause=FailureCause.WEIGHTS_CORRUPT,
        says="the weights file is not a GGUF",
        hint="llama.cpp loads GGUF only; for safetensors use vllm or sglang",
    ),
    Symptom(
        pattern=r"not within the file bounds|model is corrupted or incomplete|"
        r"failed to read (?:key|tensor|header|magic)|gguf_init_from_file\w*: failed to read",
        cause=FailureCause.WEIGHTS_CORRUPT,
        says="the weights file is cut off or damaged",
        hint="remove it from the node's cache, so that it is fetched again",
    ),
    Symptom(
        pattern=r"unknown model architecture|unsupported (?:model )?architecture",
        cause=FailureCause.BAD_OPTION,
        says="this build does not know the model's architecture",
        hint="use a newer llama.cpp, or another engine",
    ),
    Symptom(
        pattern=r"cudaMalloc failed|CUDA error: out of memory|ErrorOutOfDeviceMemory|"
        r"hipErrorOutOfMemory|failed to allocate (?:CUDA|ROCm|Vulkan)\d* buffer",
        cause=FailureCause.OUT_OF_DEVICE_MEMORY,
        says="the device's memory does not suffice",
        hint="lower `options.ctx_size` or `options.n_gpu_layers`, or ask for a bigger device",
    ),
    Symptom(
        pattern=r"std::bad_alloc|failed to allocate|MemoryError|cannot allocate memory",
        cause=FailureCause.OUT_OF_MEMORY,
        says="the machine's memory does not suffice",
        hint="lower `options.ctx_size`, or set `ram_gib` so that a bigger node is chosen",
    ),
    Symptom(
        pattern=r"CUDA driver version is insufficient|no kernel image is available",
        cause=FailureCause.DRIVER_MISMATCH,
        says="the device's driver does not suit this build",
        hint="update the driver, or use a build for the one that is there",
    ),
    Symptom(
        pattern=r"No module named 'xllamacpp'|cannot import xllamacpp|"
        r"error while loading shared libraries",
        cause=FailureCause.ENGINE_MISSING,
        says="the engine is not usable as it is installed",
        hint="pip install 'llmgw-engine-llamacpp[demo]' in the agent's environment, or set "
        "the profile's `command` to a llama-server",
    ),
    Symptom(
        pattern=r"invalid argument:|error while handling argument|llmgw: bad parameter|"
        r"not supported in this build",
        cause=FailureCause.BAD_OPTION,
        says="this build does not take an option",
        hint="options that llmgw knows may be newer than the installed llama.cpp",
    ),
)


def explain_exit(end: EngineExit) -> Failure:
    """Return the cause; after an illegal instruction, once, with another way to try."""
    failure = explain(end, _SYMPTOMS, telling=_ERROR_LINE)
    if (
        failure.cause is FailureCause.ILLEGAL_INSTRUCTION
        and end.spec.options.get("repack") is not False
    ):
        # Builds made on a machine with AMX die in its kernels, though the CPU has them.
        return replace(
            failure,
            hint="tried again with `options.repack: false`; set it in the profile if that helps",
            retry_options={"repack": False},
        )
    return failure
