"""Why SGLang ended, or hangs: its last lines and exit codes, as measured on 0.5.23."""

from __future__ import annotations

from llmgw.contracts.engine import EngineExit
from llmgw.contracts.symptoms import Symptom, explain
from llmgw.domain.replicas import Failure, FailureCause

_ERROR_LINE = r"\b\w*(?:Error|Exception)\b: |error: "

_SYMPTOMS = (
    Symptom(
        pattern=r"error: unrecognized arguments|error: argument -|error: ambiguous option",
        cause=FailureCause.BAD_OPTION,
        says="this version does not take an option",
        hint="check the profile's `version` against docs/engines/sglang.md",
    ),
    Symptom(
        # With a taken HTTP port it loads the whole model, says this and hangs without a listener.
        pattern=r"address already in use|Port is already in use|port .* is not available",
        cause=FailureCause.PORT_IN_USE,
        says="another program has the port",
        hint="see `ss -ltnp`; the agent tries again by itself",
    ),
    Symptom(
        pattern=r"CUDA out of memory|OutOfMemoryError|HIP out of memory|"
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        cause=FailureCause.OUT_OF_DEVICE_MEMORY,
        says="the device's memory does not suffice",
        hint="lower `options.context_length` or `options.max_running_requests`, tune "
        "`options.mem_fraction_static`, use more devices, or see who else uses the device",
    ),
    Symptom(
        pattern=r"GatedRepoError|401 Client Error|403 Client Error",
        cause=FailureCause.WEIGHTS_GATED,
        says="the model hub refuses the weights",
        hint="accept the model's terms and give the agent a token",
    ),
    Symptom(
        pattern=r"Repo id must be in the form|LocalEntryNotFoundError|"
        r"does not appear to have a file named|Cannot find any model weights",
        cause=FailureCause.WEIGHTS_MISSING,
        says="the weights are not where they should be, or not whole",
        hint="check `weights`; the folder needs config.json, all shards and a tokenizer",
    ),
    Symptom(
        pattern=r"SafetensorError|HeaderTooLarge|InvalidHeaderDeserialization|"
        r"MetadataIncompleteBuffer",
        cause=FailureCause.WEIGHTS_CORRUPT,
        says="a weights file is cut off or damaged",
        hint="remove the weights from the node's cache, so that they are fetched again",
    ),
    Symptom(
        pattern=r"driver version is insufficient|NVIDIA driver on your system is too old|"
        r"no kernel image is available",
        cause=FailureCause.DRIVER_MISMATCH,
        says="the device's driver does not suit this build",
        hint="update the driver, or choose a `version` built for the one that is there",
    ),
    Symptom(
        pattern=r"No space left on device",
        cause=FailureCause.DISK_FULL,
        says="a disk is full",
        hint="the engine writes below ~/.cache and /tmp, and shares memory by /dev/shm",
    ),
    Symptom(
        pattern=r"cannot import sglang|ModuleNotFoundError",
        cause=FailureCause.ENGINE_MISSING,
        says="the engine is not usable as it is installed",
        hint="let the agent install it; there is no build for CPUs on PyPI",
    ),
    Symptom(
        pattern=r"SGLANG_CPU_OMP_THREADS_BIND is not set",
        cause=FailureCause.BAD_OPTION,
        says="on a CPU, `parallel.tensor` is at most the number of NUMA nodes",
        hint="set `parallel.tensor: 1`, or `env.SGLANG_CPU_OMP_THREADS_BIND`",
    ),
    Symptom(
        pattern=r"Model architectures .* are not supported|does not recognize this architecture",
        cause=FailureCause.BAD_OPTION,
        says="this version does not know the model's architecture",
        hint="use a newer `version`",
    ),
    Symptom(
        pattern=r"scheduler died during initialization \(exit code: -9\)",
        cause=FailureCause.OUT_OF_MEMORY,
        says="the kernel ended a scheduler, most likely for lack of RAM",
        hint="set `ram_gib` so that a bigger node is chosen",
    ),
    Symptom(
        # A scheduler that died has said why before; the lines below only say that one did.
        pattern=r"(?:Assertion|Runtime|Value|Type|Key|Attribute|Import)Error: (?!Rank \d)",
        cause=FailureCause.ENGINE_INTERNAL,
        says="the engine failed",
    ),
    Symptom(
        pattern=r"scheduler died during initialization",
        cause=FailureCause.ENGINE_INTERNAL,
        says="one of the engine's processes died",
        hint="the cause is further up in the log",
    ),
    Symptom(
        pattern=r"SIGQUIT received|Received sigquit from a child",
        cause=FailureCause.ENGINE_INTERNAL,
        says="one of the engine's processes died",
        hint="the cause is further up in the log",
    ),
)


def explain_exit(end: EngineExit) -> Failure:
    """Return the cause. With a child dead the engine ends itself by SIGKILL, 5 s later."""
    return explain(end, _SYMPTOMS, telling=_ERROR_LINE)
