from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from llmgw.domain.replicas import FailureCause
from llmgw.testing.engine import EngineContract, assignments, ended, profile
from llmgw_engine_sglang.adapter import SglangAdapter
from llmgw_engine_sglang.plugin import llmgw_engine_adapters

SAMPLES = Path(__file__).parent / "samples"
ADAPTER = SglangAdapter()


class TestSglang(EngineContract):
    adapter = ADAPTER
    accepted = (
        profile("sglang", devices={"count": 1}),
        profile("sglang", options={"attention_backend": "torch_native"}),
        profile("sglang", nodes=2, parallel={"tensor": 2}),
        profile("sglang", devices={"count": 8}, nodes=2, parallel={"tensor": 4, "pipeline": 2}),
        profile(
            "sglang",
            devices={"count": 4},
            parallel={"tensor": 2, "data": 2},
            command=["/opt/sglang/bin/python3.11"],
            env={"SGLANG_CPU_OMP_THREADS_BIND": "0|1"},
            options={
                "context_length": 4096,
                "mem_fraction_static": 0.85,
                "enable_lora": True,
                "lora_paths": [{"name": "sql", "path": "adapters/sql"}],
                "enable_memory_saver": True,
                "enable_weights_cpu_backup": True,
                "json_model_override_args": {"rope_theta": 10000},
            },
        ),
        profile(
            "sglang",
            devices={"count": 1},
            role="prefill",
            options={"disaggregation_transfer_backend": "nixl"},
        ),
        profile("sglang", devices={"count": 8}, nodes=2, parallel={"tensor": 8}, role="decode"),
        profile("sglang", devices={"count": 1}, options={"is_embedding": True}),
    )
    rejected = (
        (profile("sglang", options={"context_len": 1}), "options.context_len"),
        (profile("sglang", options={"mem_fraction_static": 1.0}), "options.mem_fraction_static"),
        (profile("sglang", options={"trust_remote_code": True}), "options.trust_remote_code"),
        (profile("sglang", options={"api-key": "x"}), "options.api-key"),
        (profile("sglang", options={"tp_size": 2}), "options.tp_size"),
        (profile("sglang", options={"load_format": "pt"}), "options.load_format"),
        (profile("sglang", options={"lora_paths": [{"name": "a", "path": "b"}]}), "options"),
        (profile("sglang", options={"enable_weights_cpu_backup": True}), "options"),
        (
            profile("sglang", options={"disaggregation_transfer_backend": "nixl"}),
            "options.disaggregation_transfer_backend",
        ),
        (
            profile("sglang", role="prefill", options={"disaggregation_mode": "prefill"}),
            "options.disaggregation_mode",
        ),
        (profile("sglang", role="decode", options={"is_embedding": True}), "options.is_embedding"),
        (profile("sglang", options={"is_embedding": True, "reasoning_parser": "x"}), "options"),
        (profile("sglang", options={"enable_memory_saver": True}), "options.enable_memory_saver"),
        (profile("sglang", command=["/opt/sglang/bin/sglang"]), "command"),
        (profile("sglang", env={"SGLANG_HOST_IP": "1.2.3.4"}), "env.SGLANG_HOST_IP"),
        (profile("sglang", devices={"count": 2}), "parallel"),
        (
            profile("sglang", devices={"count": 4}, nodes=2, parallel={"tensor": 2, "data": 2}),
            "parallel.data",
        ),
    )
    metrics_pages = tuple(path.read_text() for path in sorted(SAMPLES.glob("*-metrics*.txt")))
    exits = (
        ended(-9, "SIGQUIT received. It usually means one child failed.", was_ready=True),
        ended(2, "sglang serve: error: unrecognized arguments: --no-such-flag"),
    )


def test_the_plugin_hands_over_the_adapter() -> None:
    assert [adapter.name for adapter in llmgw_engine_adapters()] == ["sglang"]


def test_one_rank_is_served_under_the_canonical_name() -> None:
    (assignment,) = assignments(profile("sglang", devices={"count": 1}), ports_per_shard=13)
    launch = ADAPTER.launch(assignment)
    python, isolated, serve, *words = launch.argv
    assert (python, isolated, Path(serve).name) == ("/opt/engine/bin/python", "-Iu", "serve.py")
    assert words == [
        *("serve", "--model-path", "/models/tiny", "--host", "127.0.0.1", "--port", "20000"),
        *("--served-model-name", "acme/tiny-7b:q4", "--enable-metrics", "--enable-cache-report"),
        *("--tp-size", "1", "--pp-size", "1", "--nccl-port", "20001"),
    ]
    assert launch.env["CUDA_VISIBLE_DEVICES"] == "GPU-0000-0000"
    assert "SGLANG_USE_CPU_ENGINE" not in launch.env


def test_without_a_device_it_runs_on_the_cpu() -> None:
    (assignment,) = assignments(profile("sglang"), ports_per_shard=13)
    launch = ADAPTER.launch(assignment)
    assert launch.argv[launch.argv.index("--device") + 1] == "cpu"
    assert launch.env["SGLANG_USE_CPU_ENGINE"] == "1"


def test_ranks_over_nodes_meet_at_rank_0_and_only_it_serves() -> None:
    item = profile("sglang", devices={"count": 16}, nodes=2, parallel={"tensor": 16})
    both = assignments(item, ports_per_shard=13)
    first, second = (ADAPTER.launch(assignment) for assignment in both)
    for rank, launch in enumerate((first, second)):
        meeting = f"--nnodes 2 --node-rank {rank} --dist-init-addr 127.0.0.1:20003"
        assert meeting in " ".join(launch.argv)
        assert launch.argv[launch.argv.index("--tp-size") + 1] == "16"
    assert second.ready is None
    assert second.env["SGLANG_HOST_IP"] == "127.0.0.2"


def test_an_ipv6_meeting_point_has_brackets() -> None:
    item = profile("sglang", devices={"count": 2}, nodes=2, parallel={"tensor": 2})
    first, _ = assignments(item, ports_per_shard=13)
    peers = tuple(replace(peer, address="fd00::1") for peer in first.spec.peers)
    launch = ADAPTER.launch(replace(first, spec=replace(first.spec, peers=peers)))
    assert "[fd00::1]:20003" in launch.argv


def test_data_parallel_attention_meets_at_a_port_that_was_given() -> None:
    item = profile(
        "sglang",
        devices={"count": 2},
        parallel={"tensor": 2},
        options={"enable_dp_attention": True, "attn_dp_size": 2},
    )
    (assignment,) = assignments(item, ports_per_shard=13)
    assert "127.0.0.1:20003" in ADAPTER.launch(assignment).argv


def test_options_are_flags_and_structures_are_json() -> None:
    item = profile(
        "sglang",
        devices={"count": 1},
        options={
            "context_length": 4096,
            "mem_fraction_static": 0.85,
            "json_model_override_args": {"rope_theta": 10000},
            "disable_radix_cache": True,
            "chat_template": "my.jinja",
            "enable_lora": True,
            "lora_paths": [{"name": "sql", "path": "adapters/sql"}],
        },
    )
    (assignment,) = assignments(item, ports_per_shard=13)
    argv = ADAPTER.launch(assignment).argv
    start = argv.index("--nccl-port") + 2
    assert argv[start:] == (
        *("--context-length", "4096", "--mem-fraction-static", "0.85", "--disable-radix-cache"),
        *("--json-model-override-args", '{"rope_theta": 10000}', "--enable-lora"),
        *("--chat-template", "/models/tiny/my.jinja"),
        *("--lora-paths", "sql=/models/tiny/adapters/sql"),
    )


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_every_rank_of_a_role_names_the_bootstrap_port_of_the_first(role: str) -> None:
    item = profile("sglang", devices={"count": 4}, nodes=2, parallel={"tensor": 4}, role=role)
    for assignment in assignments(item, ports_per_shard=13):
        launch = ADAPTER.launch(assignment)
        argv = launch.argv
        assert argv[argv.index("--disaggregation-mode") + 1] == role
        assert argv[argv.index("--disaggregation-bootstrap-port") + 1] == "20002"
        assert launch.env["SGLANG_HOST_IP"] == assignment.bind_address
    assert ADAPTER.traits.meeting_port == 2


def test_half_a_pair_is_proven_without_generating() -> None:
    (assignment,) = assignments(
        profile("sglang", devices={"count": 1}, role="decode"), ports_per_shard=13
    )
    assert [probe.path for probe in ADAPTER.launch(assignment).warm_up] == ["/v1/models"]


def test_sleep_is_offered_only_where_the_engine_can_wake() -> None:
    def paths(level: int, **options: object) -> list[str]:
        item = profile("sglang", devices={"count": 1}, options=options)
        spec = assignments(item)[0].spec
        probes = (*ADAPTER.sleep_requests(spec, level), *ADAPTER.wake_requests(spec, level))
        return [probe.path for probe in probes]

    both = {"enable_memory_saver": True, "enable_weights_cpu_backup": True}
    assert paths(1, **both) == ["/release_memory_occupation", "/resume_memory_occupation"]
    assert paths(2, **both) == []
    assert paths(1, enable_memory_saver=True) == []


def test_a_busy_page_is_read_from_one_rank_and_the_real_time_counter() -> None:
    load = ADAPTER.read_load((SAMPLES / "sglang-0.5.23-metrics-busy.txt").read_text())
    assert (load.running, load.waiting, load.kv_used) == (2, 3, 0.07)
    assert (load.prompt_tokens, load.generated_tokens, load.cached_tokens) == (510, 805, 264)


def test_only_the_first_of_several_tensor_ranks_counts() -> None:
    def page(name: str, value: int) -> str:
        ranks = [f'{name}{{tp_rank="{rank}",pp_rank="0"}} {value}\n' for rank in range(2)]
        return "".join(ranks)

    load = ADAPTER.read_load(page("sglang:num_running_reqs", 4) + page("sglang:num_queue_reqs", 1))
    assert (load.running, load.waiting, load.progress) == (4, 1, None)


def test_memory_is_read_from_the_log() -> None:
    report = ADAPTER.read_memory(
        (
            (
                "[TP0] Load weight end. elapsed=1.20 s, type=LlamaForCausalLM, avail mem=60.00 GB, "
                "mem usage=15.00 GB."
            ),
            "[TP0] KV Cache is allocated. #tokens: 4096, K size: 2.00 GB, V size: 2.00 GB",
            "[TP0] Capture target decode CUDA graph end. bs=[1], mem usage=0.50 GB, avail mem=1 GB.",
            "[TP0] max_total_num_tokens=4096, chunked_prefill_size=8192, context_len=2048",
        )
    )
    assert report is not None
    assert report.weights_mib == 15 * 1024
    assert report.kv_cache_mib == 4 * 1024
    assert report.graphs_mib == 512
    assert report.kv_cache_tokens == 4096
    recorded = (SAMPLES / "sglang-0.5.23-start-up.txt").read_text()
    started = ADAPTER.read_memory(tuple(recorded.splitlines()))
    assert started is not None
    assert (started.weights_mib, started.kv_cache_mib) == (0.0, 0.0), "a tiny model"
    assert started.kv_cache_tokens == 8192
    latent = ADAPTER.read_memory(
        ("KV Cache is allocated. dtype: torch.bfloat16, #tokens: 4096, KV size: 3.00 GB",)
    )
    assert latent is not None
    assert latent.kv_cache_mib == 3 * 1024


def test_an_adapter_of_the_profile_is_asked_for_behind_a_colon() -> None:
    spec = next(iter(assignments(profile("sglang", options={"enable_lora": True})))).spec
    body = json.dumps({"data": [{"id": "sql", "root": "/weights/sql", "parent": "m"}]})
    assert ADAPTER.read_adapters(spec, body) == {"sql": "/weights/sql"}
    assert ADAPTER.adapter_model(spec, "sql") == f"{spec.served_names[0]}:sql"
    given = {"adapters": [{"name": "sql", "weights": "path:/a"}]}
    (problem,) = ADAPTER.check(profile("sglang", **given))
    assert problem.path == "adapters"
    assert ADAPTER.check(profile("sglang", options={"enable_lora": True}, **given)) == ()


@pytest.mark.parametrize(
    ("code", "line", "cause"),
    [
        (
            None,
            (
                "ERROR: [Errno 98] error while attempting to bind on address ('127.0.0.1', 1): "
                "address already in use"
            ),
            FailureCause.PORT_IN_USE,
        ),
        (
            1,
            "OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/no/m'",
            FailureCause.WEIGHTS_MISSING,
        ),
        (
            -9,
            "AssertionError: SGLANG_CPU_OMP_THREADS_BIND is not set",
            FailureCause.BAD_OPTION,
        ),
        (
            1,
            (
                "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit "
                "code is -9 (SIGKILL), a common cause is the OS OOM killer."
            ),
            FailureCause.OUT_OF_MEMORY,
        ),
        (
            1,
            "RuntimeError: Rank 0 scheduler died during initialization (exit code: 1).",
            FailureCause.ENGINE_INTERNAL,
        ),
        (
            -9,
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
            FailureCause.OUT_OF_DEVICE_MEMORY,
        ),
        (3, "llmgw: cannot import sglang in /e: No module named 'x'", FailureCause.ENGINE_MISSING),
    ],
)
def test_the_cause_is_found_among_what_follows_it(
    code: int | None, line: str, cause: FailureCause
) -> None:
    noise = "Received sigquit from a child process. It usually means the child failed."
    failure = ADAPTER.explain_exit(ended(code, line, noise))
    assert failure.cause is cause
    assert line[:40] in failure.message
