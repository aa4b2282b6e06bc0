from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeviceHealth(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEVICE_HEALTH_UNSPECIFIED: _ClassVar[DeviceHealth]
    DEVICE_HEALTH_OK: _ClassVar[DeviceHealth]
    DEVICE_HEALTH_FAILED: _ClassVar[DeviceHealth]

class ShardState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SHARD_STATE_UNSPECIFIED: _ClassVar[ShardState]
    SHARD_STATE_ASSIGNED: _ClassVar[ShardState]
    SHARD_STATE_INSTALLING: _ClassVar[ShardState]
    SHARD_STATE_FETCHING: _ClassVar[ShardState]
    SHARD_STATE_STARTING: _ClassVar[ShardState]
    SHARD_STATE_READY: _ClassVar[ShardState]
    SHARD_STATE_SLEEPING: _ClassVar[ShardState]
    SHARD_STATE_UNHEALTHY: _ClassVar[ShardState]
    SHARD_STATE_DRAINING: _ClassVar[ShardState]
    SHARD_STATE_STOPPING: _ClassVar[ShardState]
    SHARD_STATE_BACKOFF: _ClassVar[ShardState]
    SHARD_STATE_FAILED: _ClassVar[ShardState]
    SHARD_STATE_STOPPED: _ClassVar[ShardState]
    SHARD_STATE_UNKILLABLE: _ClassVar[ShardState]

class FailureCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_CAUSE_UNSPECIFIED: _ClassVar[FailureCause]
    FAILURE_CAUSE_OUT_OF_DEVICE_MEMORY: _ClassVar[FailureCause]
    FAILURE_CAUSE_OUT_OF_MEMORY: _ClassVar[FailureCause]
    FAILURE_CAUSE_PORT_IN_USE: _ClassVar[FailureCause]
    FAILURE_CAUSE_BAD_OPTION: _ClassVar[FailureCause]
    FAILURE_CAUSE_WEIGHTS_MISSING: _ClassVar[FailureCause]
    FAILURE_CAUSE_WEIGHTS_CORRUPT: _ClassVar[FailureCause]
    FAILURE_CAUSE_WEIGHTS_GATED: _ClassVar[FailureCause]
    FAILURE_CAUSE_DOWNLOAD_FAILED: _ClassVar[FailureCause]
    FAILURE_CAUSE_DISK_FULL: _ClassVar[FailureCause]
    FAILURE_CAUSE_DRIVER_MISMATCH: _ClassVar[FailureCause]
    FAILURE_CAUSE_ILLEGAL_INSTRUCTION: _ClassVar[FailureCause]
    FAILURE_CAUSE_ENGINE_MISSING: _ClassVar[FailureCause]
    FAILURE_CAUSE_INSTALL_FAILED: _ClassVar[FailureCause]
    FAILURE_CAUSE_ENGINE_INTERNAL: _ClassVar[FailureCause]
    FAILURE_CAUSE_START_TIMEOUT: _ClassVar[FailureCause]
    FAILURE_CAUSE_NO_PROGRESS: _ClassVar[FailureCause]
    FAILURE_CAUSE_WRONG_MODEL: _ClassVar[FailureCause]
    FAILURE_CAUSE_KILLED: _ClassVar[FailureCause]
    FAILURE_CAUSE_SHIM_LOST: _ClassVar[FailureCause]
    FAILURE_CAUSE_UNKILLABLE: _ClassVar[FailureCause]
    FAILURE_CAUSE_DEVICE_LOST: _ClassVar[FailureCause]
    FAILURE_CAUSE_DEVICE_BUSY: _ClassVar[FailureCause]
    FAILURE_CAUSE_GANG_MEMBER_DIED: _ClassVar[FailureCause]
    FAILURE_CAUSE_REFUSED: _ClassVar[FailureCause]
    FAILURE_CAUSE_UNKNOWN: _ClassVar[FailureCause]
    FAILURE_CAUSE_SLEEP_FAILED: _ClassVar[FailureCause]
DEVICE_HEALTH_UNSPECIFIED: DeviceHealth
DEVICE_HEALTH_OK: DeviceHealth
DEVICE_HEALTH_FAILED: DeviceHealth
SHARD_STATE_UNSPECIFIED: ShardState
SHARD_STATE_ASSIGNED: ShardState
SHARD_STATE_INSTALLING: ShardState
SHARD_STATE_FETCHING: ShardState
SHARD_STATE_STARTING: ShardState
SHARD_STATE_READY: ShardState
SHARD_STATE_SLEEPING: ShardState
SHARD_STATE_UNHEALTHY: ShardState
SHARD_STATE_DRAINING: ShardState
SHARD_STATE_STOPPING: ShardState
SHARD_STATE_BACKOFF: ShardState
SHARD_STATE_FAILED: ShardState
SHARD_STATE_STOPPED: ShardState
SHARD_STATE_UNKILLABLE: ShardState
FAILURE_CAUSE_UNSPECIFIED: FailureCause
FAILURE_CAUSE_OUT_OF_DEVICE_MEMORY: FailureCause
FAILURE_CAUSE_OUT_OF_MEMORY: FailureCause
FAILURE_CAUSE_PORT_IN_USE: FailureCause
FAILURE_CAUSE_BAD_OPTION: FailureCause
FAILURE_CAUSE_WEIGHTS_MISSING: FailureCause
FAILURE_CAUSE_WEIGHTS_CORRUPT: FailureCause
FAILURE_CAUSE_WEIGHTS_GATED: FailureCause
FAILURE_CAUSE_DOWNLOAD_FAILED: FailureCause
FAILURE_CAUSE_DISK_FULL: FailureCause
FAILURE_CAUSE_DRIVER_MISMATCH: FailureCause
FAILURE_CAUSE_ILLEGAL_INSTRUCTION: FailureCause
FAILURE_CAUSE_ENGINE_MISSING: FailureCause
FAILURE_CAUSE_INSTALL_FAILED: FailureCause
FAILURE_CAUSE_ENGINE_INTERNAL: FailureCause
FAILURE_CAUSE_START_TIMEOUT: FailureCause
FAILURE_CAUSE_NO_PROGRESS: FailureCause
FAILURE_CAUSE_WRONG_MODEL: FailureCause
FAILURE_CAUSE_KILLED: FailureCause
FAILURE_CAUSE_SHIM_LOST: FailureCause
FAILURE_CAUSE_UNKILLABLE: FailureCause
FAILURE_CAUSE_DEVICE_LOST: FailureCause
FAILURE_CAUSE_DEVICE_BUSY: FailureCause
FAILURE_CAUSE_GANG_MEMBER_DIED: FailureCause
FAILURE_CAUSE_REFUSED: FailureCause
FAILURE_CAUSE_UNKNOWN: FailureCause
FAILURE_CAUSE_SLEEP_FAILED: FailureCause

class AgentFrame(_message.Message):
    __slots__ = ("hello", "heartbeat", "shard", "rejection", "unsupported", "part")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    REJECTION_FIELD_NUMBER: _ClassVar[int]
    UNSUPPORTED_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    heartbeat: Heartbeat
    shard: ShardReport
    rejection: Rejection
    unsupported: Unsupported
    part: Part
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., shard: _Optional[_Union[ShardReport, _Mapping]] = ..., rejection: _Optional[_Union[Rejection, _Mapping]] = ..., unsupported: _Optional[_Union[Unsupported, _Mapping]] = ..., part: _Optional[_Union[Part, _Mapping]] = ...) -> None: ...

class ServerFrame(_message.Message):
    __slots__ = ("welcome", "goodbye", "heartbeat_reply", "start", "drain", "stop", "bulk", "unsupported", "part", "sleep", "wake", "admit", "adapt")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_REPLY_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    BULK_FIELD_NUMBER: _ClassVar[int]
    UNSUPPORTED_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    SLEEP_FIELD_NUMBER: _ClassVar[int]
    WAKE_FIELD_NUMBER: _ClassVar[int]
    ADMIT_FIELD_NUMBER: _ClassVar[int]
    ADAPT_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    goodbye: Goodbye
    heartbeat_reply: HeartbeatReply
    start: StartShard
    drain: DrainShard
    stop: StopShard
    bulk: BulkRequest
    unsupported: Unsupported
    part: Part
    sleep: SleepShard
    wake: WakeShard
    admit: AdmitPeer
    adapt: AdaptShard
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., heartbeat_reply: _Optional[_Union[HeartbeatReply, _Mapping]] = ..., start: _Optional[_Union[StartShard, _Mapping]] = ..., drain: _Optional[_Union[DrainShard, _Mapping]] = ..., stop: _Optional[_Union[StopShard, _Mapping]] = ..., bulk: _Optional[_Union[BulkRequest, _Mapping]] = ..., unsupported: _Optional[_Union[Unsupported, _Mapping]] = ..., part: _Optional[_Union[Part, _Mapping]] = ..., sleep: _Optional[_Union[SleepShard, _Mapping]] = ..., wake: _Optional[_Union[WakeShard, _Mapping]] = ..., admit: _Optional[_Union[AdmitPeer, _Mapping]] = ..., adapt: _Optional[_Union[AdaptShard, _Mapping]] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("data", "last")
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    last: bool
    def __init__(self, data: _Optional[bytes] = ..., last: bool = ...) -> None: ...

class Unsupported(_message.Message):
    __slots__ = ("what",)
    WHAT_FIELD_NUMBER: _ClassVar[int]
    what: str
    def __init__(self, what: _Optional[str] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("session", "inventory", "epoch", "cluster_id", "shards")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    session: str
    inventory: NodeInventory
    epoch: int
    cluster_id: str
    shards: _containers.RepeatedCompositeFieldContainer[ShardReport]
    def __init__(self, session: _Optional[str] = ..., inventory: _Optional[_Union[NodeInventory, _Mapping]] = ..., epoch: _Optional[int] = ..., cluster_id: _Optional[str] = ..., shards: _Optional[_Iterable[_Union[ShardReport, _Mapping]]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("session", "sequence", "devices", "loads", "ram_available_mib", "disk_free_mib", "loop_lag_ms")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    RAM_AVAILABLE_MIB_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_MIB_FIELD_NUMBER: _ClassVar[int]
    LOOP_LAG_MS_FIELD_NUMBER: _ClassVar[int]
    session: str
    sequence: int
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    loads: _containers.RepeatedCompositeFieldContainer[ShardLoad]
    ram_available_mib: int
    disk_free_mib: int
    loop_lag_ms: float
    def __init__(self, session: _Optional[str] = ..., sequence: _Optional[int] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., loads: _Optional[_Iterable[_Union[ShardLoad, _Mapping]]] = ..., ram_available_mib: _Optional[int] = ..., disk_free_mib: _Optional[int] = ..., loop_lag_ms: _Optional[float] = ...) -> None: ...

class ShardLoad(_message.Message):
    __slots__ = ("shard", "load")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    shard: str
    load: EngineLoad
    def __init__(self, shard: _Optional[str] = ..., load: _Optional[_Union[EngineLoad, _Mapping]] = ...) -> None: ...

class EngineLoad(_message.Message):
    __slots__ = ("running", "waiting", "kv_used", "prompt_tokens", "generated_tokens", "cached_tokens")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_USED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    running: int
    waiting: int
    kv_used: float
    prompt_tokens: float
    generated_tokens: float
    cached_tokens: float
    def __init__(self, running: _Optional[int] = ..., waiting: _Optional[int] = ..., kv_used: _Optional[float] = ..., prompt_tokens: _Optional[float] = ..., generated_tokens: _Optional[float] = ..., cached_tokens: _Optional[float] = ...) -> None: ...

class Rejection(_message.Message):
    __slots__ = ("node", "shard", "code", "message")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    node: str
    shard: str
    code: str
    message: str
    def __init__(self, node: _Optional[str] = ..., shard: _Optional[str] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("heartbeat_interval_s", "cluster_id", "server_version", "capabilities", "authorities")
    HEARTBEAT_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    AUTHORITIES_FIELD_NUMBER: _ClassVar[int]
    heartbeat_interval_s: float
    cluster_id: str
    server_version: str
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    authorities: str
    def __init__(self, heartbeat_interval_s: _Optional[float] = ..., cluster_id: _Optional[str] = ..., server_version: _Optional[str] = ..., capabilities: _Optional[_Iterable[str]] = ..., authorities: _Optional[str] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("sequence", "authorities")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    AUTHORITIES_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    authorities: str
    def __init__(self, sequence: _Optional[int] = ..., authorities: _Optional[str] = ...) -> None: ...

class StartShard(_message.Message):
    __slots__ = ("epoch", "spec")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    spec: ShardSpec
    def __init__(self, epoch: _Optional[int] = ..., spec: _Optional[_Union[ShardSpec, _Mapping]] = ...) -> None: ...

class DrainShard(_message.Message):
    __slots__ = ("epoch", "shard", "replica")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    shard: str
    replica: str
    def __init__(self, epoch: _Optional[int] = ..., shard: _Optional[str] = ..., replica: _Optional[str] = ...) -> None: ...

class StopShard(_message.Message):
    __slots__ = ("epoch", "shard", "replica", "grace_s")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    shard: str
    replica: str
    grace_s: float
    def __init__(self, epoch: _Optional[int] = ..., shard: _Optional[str] = ..., replica: _Optional[str] = ..., grace_s: _Optional[float] = ...) -> None: ...

class SleepShard(_message.Message):
    __slots__ = ("epoch", "shard", "replica", "level")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    shard: str
    replica: str
    level: int
    def __init__(self, epoch: _Optional[int] = ..., shard: _Optional[str] = ..., replica: _Optional[str] = ..., level: _Optional[int] = ...) -> None: ...

class WakeShard(_message.Message):
    __slots__ = ("epoch", "shard", "replica")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    shard: str
    replica: str
    def __init__(self, epoch: _Optional[int] = ..., shard: _Optional[str] = ..., replica: _Optional[str] = ...) -> None: ...

class AdaptShard(_message.Message):
    __slots__ = ("epoch", "shard", "replica", "adapters")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    shard: str
    replica: str
    adapters: _containers.RepeatedCompositeFieldContainer[LoraAdapter]
    def __init__(self, epoch: _Optional[int] = ..., shard: _Optional[str] = ..., replica: _Optional[str] = ..., adapters: _Optional[_Iterable[_Union[LoraAdapter, _Mapping]]] = ...) -> None: ...

class AdmitPeer(_message.Message):
    __slots__ = ("node", "manifest", "for_s")
    NODE_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    FOR_S_FIELD_NUMBER: _ClassVar[int]
    node: str
    manifest: str
    for_s: float
    def __init__(self, node: _Optional[str] = ..., manifest: _Optional[str] = ..., for_s: _Optional[float] = ...) -> None: ...

class DeviceProcess(_message.Message):
    __slots__ = ("pid", "memory_mib", "ours")
    PID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    OURS_FIELD_NUMBER: _ClassVar[int]
    pid: int
    memory_mib: int
    ours: bool
    def __init__(self, pid: _Optional[int] = ..., memory_mib: _Optional[int] = ..., ours: bool = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("id", "index", "kind", "vendor", "memory_mib", "memory_used_mib", "memory_shared", "utilisation", "health", "health_reason", "pci_address", "parent", "island", "labels", "processes")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VENDOR_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_MIB_FIELD_NUMBER: _ClassVar[int]
    MEMORY_SHARED_FIELD_NUMBER: _ClassVar[int]
    UTILISATION_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    HEALTH_REASON_FIELD_NUMBER: _ClassVar[int]
    PCI_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    ISLAND_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    id: str
    index: int
    kind: str
    vendor: str
    memory_mib: int
    memory_used_mib: int
    memory_shared: bool
    utilisation: float
    health: DeviceHealth
    health_reason: str
    pci_address: str
    parent: str
    island: str
    labels: _containers.ScalarMap[str, str]
    processes: _containers.RepeatedCompositeFieldContainer[DeviceProcess]
    def __init__(self, id: _Optional[str] = ..., index: _Optional[int] = ..., kind: _Optional[str] = ..., vendor: _Optional[str] = ..., memory_mib: _Optional[int] = ..., memory_used_mib: _Optional[int] = ..., memory_shared: bool = ..., utilisation: _Optional[float] = ..., health: _Optional[_Union[DeviceHealth, str]] = ..., health_reason: _Optional[str] = ..., pci_address: _Optional[str] = ..., parent: _Optional[str] = ..., island: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., processes: _Optional[_Iterable[_Union[DeviceProcess, _Mapping]]] = ...) -> None: ...

class InstalledEngine(_message.Message):
    __slots__ = ("engine", "version", "path")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    engine: str
    version: str
    path: str
    def __init__(self, engine: _Optional[str] = ..., version: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class InstallableEngine(_message.Message):
    __slots__ = ("engine", "version")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    engine: str
    version: str
    def __init__(self, engine: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class WeightFacts(_message.Message):
    __slots__ = ("weights_mib", "kv_bytes_per_token", "windowed_bytes_per_token", "sliding_window", "attention_heads", "max_context", "disk_mib")
    WEIGHTS_MIB_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    WINDOWED_BYTES_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SLIDING_WINDOW_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_HEADS_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    DISK_MIB_FIELD_NUMBER: _ClassVar[int]
    weights_mib: float
    kv_bytes_per_token: float
    windowed_bytes_per_token: float
    sliding_window: int
    attention_heads: int
    max_context: int
    disk_mib: float
    def __init__(self, weights_mib: _Optional[float] = ..., kv_bytes_per_token: _Optional[float] = ..., windowed_bytes_per_token: _Optional[float] = ..., sliding_window: _Optional[int] = ..., attention_heads: _Optional[int] = ..., max_context: _Optional[int] = ..., disk_mib: _Optional[float] = ...) -> None: ...

class CachedWeights(_message.Message):
    __slots__ = ("ref", "size_bytes", "facts", "manifest")
    REF_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    ref: str
    size_bytes: int
    facts: WeightFacts
    manifest: str
    def __init__(self, ref: _Optional[str] = ..., size_bytes: _Optional[int] = ..., facts: _Optional[_Union[WeightFacts, _Mapping]] = ..., manifest: _Optional[str] = ...) -> None: ...

class PortRange(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class NodeInventory(_message.Message):
    __slots__ = ("node", "agent_uid", "boot_id", "machine_id", "agent_version", "hostname", "data_address", "pool", "labels", "fabric", "cpu_count", "ram_mib", "ram_available_mib", "disk_free_mib", "port_range", "devices", "engines", "weights", "capabilities", "leaving", "weights_port", "installable")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class FabricEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NODE_FIELD_NUMBER: _ClassVar[int]
    AGENT_UID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    MACHINE_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    FABRIC_FIELD_NUMBER: _ClassVar[int]
    CPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    RAM_MIB_FIELD_NUMBER: _ClassVar[int]
    RAM_AVAILABLE_MIB_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_MIB_FIELD_NUMBER: _ClassVar[int]
    PORT_RANGE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_PORT_FIELD_NUMBER: _ClassVar[int]
    INSTALLABLE_FIELD_NUMBER: _ClassVar[int]
    node: str
    agent_uid: str
    boot_id: str
    machine_id: str
    agent_version: str
    hostname: str
    data_address: str
    pool: str
    labels: _containers.ScalarMap[str, str]
    fabric: _containers.ScalarMap[str, str]
    cpu_count: int
    ram_mib: int
    ram_available_mib: int
    disk_free_mib: int
    port_range: PortRange
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    engines: _containers.RepeatedCompositeFieldContainer[InstalledEngine]
    weights: _containers.RepeatedCompositeFieldContainer[CachedWeights]
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    leaving: bool
    weights_port: int
    installable: _containers.RepeatedCompositeFieldContainer[InstallableEngine]
    def __init__(self, node: _Optional[str] = ..., agent_uid: _Optional[str] = ..., boot_id: _Optional[str] = ..., machine_id: _Optional[str] = ..., agent_version: _Optional[str] = ..., hostname: _Optional[str] = ..., data_address: _Optional[str] = ..., pool: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., fabric: _Optional[_Mapping[str, str]] = ..., cpu_count: _Optional[int] = ..., ram_mib: _Optional[int] = ..., ram_available_mib: _Optional[int] = ..., disk_free_mib: _Optional[int] = ..., port_range: _Optional[_Union[PortRange, _Mapping]] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., engines: _Optional[_Iterable[_Union[InstalledEngine, _Mapping]]] = ..., weights: _Optional[_Iterable[_Union[CachedWeights, _Mapping]]] = ..., capabilities: _Optional[_Iterable[str]] = ..., leaving: bool = ..., weights_port: _Optional[int] = ..., installable: _Optional[_Iterable[_Union[InstallableEngine, _Mapping]]] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("rank", "node", "address", "ports", "devices")
    RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    node: str
    address: str
    ports: _containers.RepeatedScalarFieldContainer[int]
    devices: int
    def __init__(self, rank: _Optional[int] = ..., node: _Optional[str] = ..., address: _Optional[str] = ..., ports: _Optional[_Iterable[int]] = ..., devices: _Optional[int] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("argv",)
    ARGV_FIELD_NUMBER: _ClassVar[int]
    argv: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, argv: _Optional[_Iterable[str]] = ...) -> None: ...

class LoraAdapter(_message.Message):
    __slots__ = ("name", "weights")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    weights: str
    def __init__(self, name: _Optional[str] = ..., weights: _Optional[str] = ...) -> None: ...

class ShardSpec(_message.Message):
    __slots__ = ("id", "replica", "model", "served_names", "profile", "spec_hash", "engine", "engine_version", "weights", "options_json", "devices", "rank", "ports", "tensor", "pipeline", "data", "peers", "memory_mib", "command", "env", "pool", "priority", "weight", "max_inflight", "start_limit_s", "stop_grace_s", "adapters", "role")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SERVED_NAMES_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    SPEC_HASH_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_VERSION_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_JSON_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    MAX_INFLIGHT_FIELD_NUMBER: _ClassVar[int]
    START_LIMIT_S_FIELD_NUMBER: _ClassVar[int]
    STOP_GRACE_S_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    id: str
    replica: str
    model: str
    served_names: _containers.RepeatedScalarFieldContainer[str]
    profile: str
    spec_hash: str
    engine: str
    engine_version: str
    weights: str
    options_json: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    rank: int
    ports: _containers.RepeatedScalarFieldContainer[int]
    tensor: int
    pipeline: int
    data: int
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    memory_mib: int
    command: Command
    env: _containers.ScalarMap[str, str]
    pool: str
    priority: int
    weight: float
    max_inflight: int
    start_limit_s: float
    stop_grace_s: float
    adapters: _containers.RepeatedCompositeFieldContainer[LoraAdapter]
    role: str
    def __init__(self, id: _Optional[str] = ..., replica: _Optional[str] = ..., model: _Optional[str] = ..., served_names: _Optional[_Iterable[str]] = ..., profile: _Optional[str] = ..., spec_hash: _Optional[str] = ..., engine: _Optional[str] = ..., engine_version: _Optional[str] = ..., weights: _Optional[str] = ..., options_json: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., rank: _Optional[int] = ..., ports: _Optional[_Iterable[int]] = ..., tensor: _Optional[int] = ..., pipeline: _Optional[int] = ..., data: _Optional[int] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., memory_mib: _Optional[int] = ..., command: _Optional[_Union[Command, _Mapping]] = ..., env: _Optional[_Mapping[str, str]] = ..., pool: _Optional[str] = ..., priority: _Optional[int] = ..., weight: _Optional[float] = ..., max_inflight: _Optional[int] = ..., start_limit_s: _Optional[float] = ..., stop_grace_s: _Optional[float] = ..., adapters: _Optional[_Iterable[_Union[LoraAdapter, _Mapping]]] = ..., role: _Optional[str] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("cause", "message", "hint", "exit_code", "log_tail", "command", "retry_options_json")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    LOG_TAIL_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    RETRY_OPTIONS_JSON_FIELD_NUMBER: _ClassVar[int]
    cause: FailureCause
    message: str
    hint: str
    exit_code: int
    log_tail: _containers.RepeatedScalarFieldContainer[bytes]
    command: _containers.RepeatedScalarFieldContainer[str]
    retry_options_json: str
    def __init__(self, cause: _Optional[_Union[FailureCause, str]] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ..., exit_code: _Optional[int] = ..., log_tail: _Optional[_Iterable[bytes]] = ..., command: _Optional[_Iterable[str]] = ..., retry_options_json: _Optional[str] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("what", "done", "total", "unit")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    what: str
    done: float
    total: float
    unit: str
    def __init__(self, what: _Optional[str] = ..., done: _Optional[float] = ..., total: _Optional[float] = ..., unit: _Optional[str] = ...) -> None: ...

class Shard(_message.Message):
    __slots__ = ("id", "replica", "node", "rank", "state", "devices", "ports", "pid", "started_at", "incarnation", "restarts", "failure", "progress", "retry_in_s")
    ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RETRY_IN_S_FIELD_NUMBER: _ClassVar[int]
    id: str
    replica: str
    node: str
    rank: int
    state: ShardState
    devices: _containers.RepeatedScalarFieldContainer[str]
    ports: _containers.RepeatedScalarFieldContainer[int]
    pid: int
    started_at: float
    incarnation: int
    restarts: int
    failure: Failure
    progress: Progress
    retry_in_s: float
    def __init__(self, id: _Optional[str] = ..., replica: _Optional[str] = ..., node: _Optional[str] = ..., rank: _Optional[int] = ..., state: _Optional[_Union[ShardState, str]] = ..., devices: _Optional[_Iterable[str]] = ..., ports: _Optional[_Iterable[int]] = ..., pid: _Optional[int] = ..., started_at: _Optional[float] = ..., incarnation: _Optional[int] = ..., restarts: _Optional[int] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., retry_in_s: _Optional[float] = ...) -> None: ...

class MemoryReport(_message.Message):
    __slots__ = ("weights_mib", "kv_cache_mib", "activation_mib", "graphs_mib", "kv_cache_tokens", "main_memory_mib")
    WEIGHTS_MIB_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_MIB_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_MIB_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_MIB_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAIN_MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    weights_mib: float
    kv_cache_mib: float
    activation_mib: float
    graphs_mib: float
    kv_cache_tokens: int
    main_memory_mib: float
    def __init__(self, weights_mib: _Optional[float] = ..., kv_cache_mib: _Optional[float] = ..., activation_mib: _Optional[float] = ..., graphs_mib: _Optional[float] = ..., kv_cache_tokens: _Optional[int] = ..., main_memory_mib: _Optional[float] = ...) -> None: ...

class AdapterReport(_message.Message):
    __slots__ = ("name", "problem")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    name: str
    problem: str
    def __init__(self, name: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class ShardReport(_message.Message):
    __slots__ = ("shard", "spec", "epoch", "url", "credential", "memory", "adapters")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    shard: Shard
    spec: ShardSpec
    epoch: int
    url: str
    credential: str
    memory: MemoryReport
    adapters: _containers.RepeatedCompositeFieldContainer[AdapterReport]
    def __init__(self, shard: _Optional[_Union[Shard, _Mapping]] = ..., spec: _Optional[_Union[ShardSpec, _Mapping]] = ..., epoch: _Optional[int] = ..., url: _Optional[str] = ..., credential: _Optional[str] = ..., memory: _Optional[_Union[MemoryReport, _Mapping]] = ..., adapters: _Optional[_Iterable[_Union[AdapterReport, _Mapping]]] = ...) -> None: ...

class BulkRequest(_message.Message):
    __slots__ = ("id", "list_logs", "read_log", "list_weights", "pull_weights", "remove_weights", "install_engine", "remove_engine")
    ID_FIELD_NUMBER: _ClassVar[int]
    LIST_LOGS_FIELD_NUMBER: _ClassVar[int]
    READ_LOG_FIELD_NUMBER: _ClassVar[int]
    LIST_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    PULL_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    REMOVE_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    INSTALL_ENGINE_FIELD_NUMBER: _ClassVar[int]
    REMOVE_ENGINE_FIELD_NUMBER: _ClassVar[int]
    id: str
    list_logs: ListLogs
    read_log: ReadLog
    list_weights: ListWeights
    pull_weights: PullWeights
    remove_weights: RemoveWeights
    install_engine: InstallEngine
    remove_engine: RemoveEngine
    def __init__(self, id: _Optional[str] = ..., list_logs: _Optional[_Union[ListLogs, _Mapping]] = ..., read_log: _Optional[_Union[ReadLog, _Mapping]] = ..., list_weights: _Optional[_Union[ListWeights, _Mapping]] = ..., pull_weights: _Optional[_Union[PullWeights, _Mapping]] = ..., remove_weights: _Optional[_Union[RemoveWeights, _Mapping]] = ..., install_engine: _Optional[_Union[InstallEngine, _Mapping]] = ..., remove_engine: _Optional[_Union[RemoveEngine, _Mapping]] = ...) -> None: ...

class ListLogs(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReadLog(_message.Message):
    __slots__ = ("source", "lines", "follow")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    source: str
    lines: int
    follow: bool
    def __init__(self, source: _Optional[str] = ..., lines: _Optional[int] = ..., follow: bool = ...) -> None: ...

class ListWeights(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PullWeights(_message.Message):
    __slots__ = ("ref",)
    REF_FIELD_NUMBER: _ClassVar[int]
    ref: str
    def __init__(self, ref: _Optional[str] = ...) -> None: ...

class RemoveWeights(_message.Message):
    __slots__ = ("ref",)
    REF_FIELD_NUMBER: _ClassVar[int]
    ref: str
    def __init__(self, ref: _Optional[str] = ...) -> None: ...

class InstallEngine(_message.Message):
    __slots__ = ("engine", "version")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    engine: str
    version: str
    def __init__(self, engine: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class RemoveEngine(_message.Message):
    __slots__ = ("engine", "version")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    engine: str
    version: str
    def __init__(self, engine: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class BulkFrame(_message.Message):
    __slots__ = ("opening", "log_sources", "log_lines", "weights", "working", "done", "problem")
    OPENING_FIELD_NUMBER: _ClassVar[int]
    LOG_SOURCES_FIELD_NUMBER: _ClassVar[int]
    LOG_LINES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    WORKING_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    opening: BulkOpening
    log_sources: LogSources
    log_lines: LogLines
    weights: WeightsList
    working: BulkWorking
    done: BulkDone
    problem: BulkProblem
    def __init__(self, opening: _Optional[_Union[BulkOpening, _Mapping]] = ..., log_sources: _Optional[_Union[LogSources, _Mapping]] = ..., log_lines: _Optional[_Union[LogLines, _Mapping]] = ..., weights: _Optional[_Union[WeightsList, _Mapping]] = ..., working: _Optional[_Union[BulkWorking, _Mapping]] = ..., done: _Optional[_Union[BulkDone, _Mapping]] = ..., problem: _Optional[_Union[BulkProblem, _Mapping]] = ...) -> None: ...

class BulkOpening(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class LogSource(_message.Message):
    __slots__ = ("name", "description", "lines")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    lines: int
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., lines: _Optional[int] = ...) -> None: ...

class LogSources(_message.Message):
    __slots__ = ("sources",)
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    sources: _containers.RepeatedCompositeFieldContainer[LogSource]
    def __init__(self, sources: _Optional[_Iterable[_Union[LogSource, _Mapping]]] = ...) -> None: ...

class LogLines(_message.Message):
    __slots__ = ("lines",)
    LINES_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, lines: _Optional[_Iterable[bytes]] = ...) -> None: ...

class WeightsEntry(_message.Message):
    __slots__ = ("ref", "size_bytes", "state", "used_by", "total_bytes")
    REF_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    USED_BY_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    ref: str
    size_bytes: int
    state: str
    used_by: _containers.RepeatedScalarFieldContainer[str]
    total_bytes: int
    def __init__(self, ref: _Optional[str] = ..., size_bytes: _Optional[int] = ..., state: _Optional[str] = ..., used_by: _Optional[_Iterable[str]] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class WeightsList(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[WeightsEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[WeightsEntry, _Mapping]]] = ...) -> None: ...

class BulkWorking(_message.Message):
    __slots__ = ("progress",)
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    progress: Progress
    def __init__(self, progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class BulkDone(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BulkProblem(_message.Message):
    __slots__ = ("message", "transient")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRANSIENT_FIELD_NUMBER: _ClassVar[int]
    message: str
    transient: bool
    def __init__(self, message: _Optional[str] = ..., transient: bool = ...) -> None: ...

class BulkEnd(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CertificateRequest(_message.Message):
    __slots__ = ("node", "csr")
    NODE_FIELD_NUMBER: _ClassVar[int]
    CSR_FIELD_NUMBER: _ClassVar[int]
    node: str
    csr: bytes
    def __init__(self, node: _Optional[str] = ..., csr: _Optional[bytes] = ...) -> None: ...

class CertificateGrant(_message.Message):
    __slots__ = ("certificate_chain", "ca_bundle", "cluster_id", "pool")
    CERTIFICATE_CHAIN_FIELD_NUMBER: _ClassVar[int]
    CA_BUNDLE_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    certificate_chain: bytes
    ca_bundle: bytes
    cluster_id: str
    pool: str
    def __init__(self, certificate_chain: _Optional[bytes] = ..., ca_bundle: _Optional[bytes] = ..., cluster_id: _Optional[str] = ..., pool: _Optional[str] = ...) -> None: ...

class WeightsQuestion(_message.Message):
    __slots__ = ("ref",)
    REF_FIELD_NUMBER: _ClassVar[int]
    ref: str
    def __init__(self, ref: _Optional[str] = ...) -> None: ...

class WeightsOffer(_message.Message):
    __slots__ = ("manifest", "peers")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    manifest: str
    peers: _containers.RepeatedCompositeFieldContainer[WeightsPeer]
    def __init__(self, manifest: _Optional[str] = ..., peers: _Optional[_Iterable[_Union[WeightsPeer, _Mapping]]] = ...) -> None: ...

class WeightsPeer(_message.Message):
    __slots__ = ("node", "address", "port")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    node: str
    address: str
    port: int
    def __init__(self, node: _Optional[str] = ..., address: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...
