"""Why vLLM ended: its last lines and exit codes, as measured on 0.32.0."""

from __future__ import annotations

from llmgw.contracts.engine import EngineExit
from llmgw.contracts.symptoms import Symptom, explain
from llmgw.domain.replicas import Failure, FailureCause

# After a failure the last lines are noise (`nanobind: leaked …`, resource tracker); the cause
# is in the last line of this form, often one of an `(EngineCore pid=…)`.
_ERROR_LINE = r"\b\w*(?:Error|Exception)\b: |error: "

_SYMPTOMS = (
    Symptom(
        pattern=r"error: unrecognized arguments|error: argument -|error: ambiguous option",
        cause=FailureCause.BAD_OPTION,
        says="this version does not take an option",
        hint="check the profile's `version` against docs/engines/vllm.md",
    ),
    Symptom(
        pattern=r"Address already in use",
        cause=FailureCause.PORT_IN_USE,
        says="another program has the port",
        hint="see `ss -ltnp`; the agent tries again by itself",
    ),
    Symptom(
        pattern=r"CUDA out of memory|OutOfMemoryError|HIP out of memory|"
        r"Free memory on device .* is less than desired|No available memory for the cache blocks|"
        r"larger than the available KV cache memory|needed, which is larger than",
        cause=FailureCause.OUT_OF_DEVICE_MEMORY,
        says="the device's memory does not suffice",
        hint="lower `options.max_model_len` or `options.max_num_seqs`, use more devices, or see "
        "who else uses the device",
    ),
    Symptom(
        pattern=r"greater than the derived max_model_len",
        cause=FailureCause.BAD_OPTION,
        says="`options.max_model_len` is more than the model has",
        hint="lower it, or leave it out",
    ),
    Symptom(
        pattern=r"must be divisible by tensor parallel size|not divisible by tensor",
        cause=FailureCause.BAD_OPTION,
        says="the model cannot be split that way",
        hint="choose a `parallel.tensor` that divides the number of attention heads",
    ),
    Symptom(
        pattern=r"GatedRepoError|401 Client Error|403 Client Error|access to model .* is restricted",
        cause=FailureCause.WEIGHTS_GATED,
        says="the model hub refuses the weights",
        hint="accept the model's terms and give the agent a token",
    ),
    Symptom(
        pattern=r"Repo id must be in the form|LocalEntryNotFoundError|"
        r"does not appear to have a file named|No such file or directory: .*"
        r"(?:config\.json|safetensors|tokenizer)|Cannot find any model weights",
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
        r"no kernel image is available|CUDA error: system not yet initialized",
        cause=FailureCause.DRIVER_MISMATCH,
        says="the device's driver does not suit this build",
        hint="update the driver, or choose a `version` built for the one that is there",
    ),
    Symptom(
        pattern=r"No space left on device",
        cause=FailureCause.DISK_FULL,
        says="a disk is full",
        hint="the engine writes below ~/.cache/vllm and /tmp, and shares memory by /dev/shm",
    ),
    Symptom(
        pattern=r"cannot import vllm|PackageNotFoundError|operator torchvision::nms does not exist|"
        r"ModuleNotFoundError",
        cause=FailureCause.ENGINE_MISSING,
        says="the engine is not usable as it is installed",
        hint="let the agent install it, or see docs/engines/vllm.md for the CPU wheel",
    ),
    Symptom(
        pattern=r"Model architectures .* (?:are not supported|failed to be inspected)|"
        r"does not recognize this architecture",
        cause=FailureCause.BAD_OPTION,
        says="this version does not know the model's architecture",
        hint="use a newer `version`",
    ),
    Symptom(
        pattern=r"Not enough allowed NUMA nodes",
        cause=FailureCause.BAD_OPTION,
        says="on a CPU, `parallel.tensor` is at most the number of NUMA nodes",
        hint="set `parallel.tensor: 1`",
    ),
    Symptom(
        pattern=r"User-specified .* is|pydantic_core.*ValidationError|ValidationError: \d+ validation",
        cause=FailureCause.BAD_OPTION,
        says="an option does not fit the model",
    ),
    Symptom(
        # The first request finds what health does not: unsupported head sizes, a dead worker.
        pattern=r"EngineDeadError|EngineCore encountered an issue|"
        r"Engine core initialization failed",
        cause=FailureCause.ENGINE_INTERNAL,
        says="the engine's core died",
        hint="the cause is in a line of EngineCore or Worker further up in the log",
    ),
)


def explain_exit(end: EngineExit) -> Failure:
    """Return the cause. A dead worker ends vLLM with exit code 0, so 0 is no good sign."""
    return explain(end, _SYMPTOMS, telling=_ERROR_LINE)
