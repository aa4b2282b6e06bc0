from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmgw.contracts.engine import EngineHome
from llmgw.domain.replicas import FailureCause
from llmgw.testing.engine import EngineContract, assignments, ended, profile
from llmgw_engine_llamacpp.adapter import LlamaCppAdapter
from llmgw_engine_llamacpp.plugin import llmgw_engine_adapters

SAMPLES = Path(__file__).parent / "samples"
ADAPTER = LlamaCppAdapter()


def sample(name: str) -> str:
    return (SAMPLES / name).read_text()


class TestLlamaCpp(EngineContract):
    adapter = ADAPTER
    accepted = (
        profile("llamacpp"),
        profile(
            "llamacpp",
            weights="hf:org/name@main/*.gguf",
            devices={"count": 2},
            command=["/opt/llama/llama-server"],
            env={"GGML_CUDA_FORCE_MMQ": "1"},
            options={
                "model_file": "q4/model-00001-of-00002.gguf",
                "ctx_size": 8192,
                "parallel": 2,
                "cache_type_k": "q8_0",
                "flash_attn": True,  # YAML's reading of `on`
                "tensor_split": [3, 1],
                "lora": [{"path": "lora/a.gguf", "scale": 0.5}],
                "chat_template_kwargs": {"thinking": False},
            },
        ),
        profile(
            "llamacpp",
            nodes=2,
            fabric="ib",
            devices={"count": 2},
            command=["/opt/llama/llama-server"],
        ),
        profile("llamacpp", options={"embeddings": True, "pooling": "mean"}),
        profile("llamacpp", options={"reranking": True}),
    )
    rejected = (
        (profile("llamacpp", options={"ctx_sise": 1}), "options.ctx_sise"),
        (profile("llamacpp", options={"ctx_size": -1}), "options.ctx_size"),
        (profile("llamacpp", options={"cache_type_v": "q9"}), "options.cache_type_v"),
        (profile("llamacpp", options={"tools": "all"}), "options.tools"),
        (profile("llamacpp", options={"api-key": "x"}), "options.api-key"),
        (profile("llamacpp", options={"mmproj": "/etc/passwd"}), "options.mmproj"),
        (profile("llamacpp", options={"lora": [{"path": "../a"}]}), "options.lora.0.path"),
        (profile("llamacpp", options={"lora": [{"path": "a:b"}]}), "options.lora.0.path"),
        (profile("llamacpp", options={"reranking": True, "pooling": "cls"}), "options"),
        (profile("llamacpp", options={"batch_size": 8, "ubatch_size": 9}), "options"),
        (
            profile("llamacpp", devices={"count": 2}, options={"tensor_split": [1]}),
            "options.tensor_split",
        ),
        (profile("llamacpp", devices={"count": 2}, parallel={"tensor": 2}), "parallel"),
        (profile("llamacpp", devices={"count": 2}, nodes=2, fabric="ib"), "nodes"),
        (profile("llamacpp", devices={"count": 2}, nodes=2, command=["llama-server"]), "nodes"),
    )
    metrics_pages = tuple(path.read_text() for path in sorted(SAMPLES.glob("*-metrics*.txt")))
    exits = (
        ended(-4),
        ended(1, "0.00.001.234 E srv start: couldn't bind HTTP server socket, hostname: 127.0.0.1"),
    )


def test_the_plugin_hands_over_the_adapter() -> None:
    assert [adapter.name for adapter in llmgw_engine_adapters()] == ["llamacpp"]


def test_without_a_command_our_launcher_serves_with_parameters_of_the_library() -> None:
    (assignment,) = assignments(profile("llamacpp", options={"ctx_size": 512, "repack": False}))
    python, isolated, launcher, *words = ADAPTER.launch(assignment).argv
    assert (python, isolated) == ("/opt/engine/bin/python", "-I")
    assert Path(launcher).name == "launcher.py"
    assert words[:2] == ["--drain-s", "25"]
    params = json.loads(words[3])
    assert params["model.path"] == "/models/tiny"
    assert params["n_ctx"] == 512
    assert params["no_extra_bufts"] is True
    assert params["n_gpu_layers"] == 0
    assert params["fit_params"] is False


def test_with_a_command_llama_server_gets_flags() -> None:
    item = profile(
        "llamacpp",
        command=["/opt/llama-server"],
        devices={"count": 2},
        options={
            "parallel": 2,
            "flash_attn": "on",
            "tensor_split": [3, 1.5],
            "jinja": False,
            "lora": [{"path": "a.gguf", "scale": 0.5}],
        },
    )
    (assignment,) = assignments(item)
    assert ADAPTER.launch(assignment).argv == (
        *("/opt/llama-server", "--host", "127.0.0.1", "--port", "20000"),
        *("--model", "/models/tiny", "--alias", "acme/tiny-7b:q4", "--metrics", "--no-webui"),
        *("-fit", "off", "--ctx-size", "0", "--parallel", "2", "--n-gpu-layers", "9999"),
        *("--cache-ram", "0", "--no-jinja", "--flash-attn", "on", "--tensor-split", "3,1.5"),
        *("--lora-scaled", "/models/a.gguf:0.5"),
    )


def test_over_nodes_the_head_sends_tensors_to_workers_that_are_on_the_fabric() -> None:
    item = profile(
        "llamacpp", nodes=2, fabric="ib", devices={"count": 4}, command=["/opt/llama/llama-server"]
    )
    head, worker = (ADAPTER.launch(assignment) for assignment in assignments(item))
    assert head.argv[head.argv.index("--rpc") + 1] == "127.0.0.2:20100"
    end = head.argv.index("--")
    assert head.argv[end - 1 : end + 2] == ("127.0.0.2:20100", "--", "/opt/llama/llama-server")
    assert worker.argv == ("/opt/llama/ggml-rpc-server", "--host", "127.0.0.2", "--port", "20100")
    assert worker.env == {"CUDA_VISIBLE_DEVICES": "GPU-0001-0000,GPU-0001-0001"}
    assert worker.ready is None


def test_devices_are_given_by_uuid_and_none_means_none() -> None:
    (two,) = assignments(profile("llamacpp", devices={"count": 2}))
    (none,) = assignments(profile("llamacpp"))
    assert ADAPTER.launch(two).env["CUDA_VISIBLE_DEVICES"] == "GPU-0000-0000,GPU-0000-0001"
    assert ADAPTER.launch(none).env["CUDA_VISIBLE_DEVICES"] == ""


def test_slots_share_the_context_unless_their_number_was_chosen() -> None:
    def flags(**options: object) -> tuple[str, ...]:
        (assignment,) = assignments(
            profile("llamacpp", options=options), home=EngineHome(command=("llama-server",))
        )
        return ADAPTER.launch(assignment).argv

    assert "--kv-unified" in flags()
    assert "--kv-unified" not in flags(parallel=2)
    assert "--kv-unified" in flags(parallel=2, kv_unified=True)


@pytest.mark.parametrize(
    ("options", "paths"),
    [
        ({}, ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]),
        ({"embeddings": True}, ["/v1/embeddings"]),
        ({"reranking": True}, ["/v1/rerank"]),
    ],
)
def test_the_warm_up_asks_for_what_the_model_is_for(
    options: dict[str, object], paths: list[str]
) -> None:
    (assignment,) = assignments(profile("llamacpp", options=options))
    assert [probe.path for probe in ADAPTER.launch(assignment).warm_up] == paths


def test_the_batch_is_the_number_of_slots() -> None:
    (assignment,) = assignments(profile("llamacpp", options={"parallel": 3}))
    assert ADAPTER.batch_size(assignment.spec) == 3


def test_a_busy_page_is_read() -> None:
    load = ADAPTER.read_load(sample("xllamacpp-2026.10.11549-metrics-busy.txt"))
    assert (load.running, load.waiting, load.kv_used) == (2, 2, None)
    assert (load.prompt_tokens, load.generated_tokens, load.cached_tokens) == (56, 0, 0)


def test_the_older_gauge_of_context_use_is_read_where_there_is_one() -> None:
    page = sample("xllamacpp-2026.10.11549-metrics-busy.txt")
    assert ADAPTER.read_load(page + "llamacpp:kv_cache_usage_ratio 0.5\n").kv_used == 0.5


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            (
                "0.00.010.000 E gguf_init_from_file: failed to open GGUF file '/m/x.gguf' "
                "(No such file or directory)"
            ),
            FailureCause.WEIGHTS_MISSING,
        ),
        (
            (
                "0.00.010.000 E gguf_init_from_file_ptr: invalid magic characters: 'hell', "
                "expected 'GGUF'"
            ),
            FailureCause.WEIGHTS_CORRUPT,
        ),
        (
            (
                "0.00.010.000 E llama_model_load: error loading model: tensor 'token_embd.weight' "
                "data is not within the file bounds, model is corrupted or incomplete"
            ),
            FailureCause.WEIGHTS_CORRUPT,
        ),
        ("error: invalid argument: --no-such-flag", FailureCause.BAD_OPTION),
        ('error while handling argument "--poll": stoi', FailureCause.BAD_OPTION),
        (
            (
                "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9000.00 MiB on device 0: "
                "cudaMalloc failed: out of memory"
            ),
            FailureCause.OUT_OF_DEVICE_MEMORY,
        ),
        ("terminate called: std::bad_alloc", FailureCause.OUT_OF_MEMORY),
        (
            "llmgw: cannot import xllamacpp in /opt/e: No module named 'xllamacpp'",
            FailureCause.ENGINE_MISSING,
        ),
        (
            "llama-server: error while loading shared libraries: libllama-common.so.0",
            FailureCause.ENGINE_MISSING,
        ),
    ],
)
def test_the_native_lines_name_the_cause(line: str, cause: FailureCause) -> None:
    tail = (line, "0.00.011.000 I srv main: exiting", "llmgw: llama.cpp does not serve: Failed")
    failure = ADAPTER.explain_exit(ended(1, *tail))
    assert failure.cause is cause
    assert line[:40] in failure.message
    assert failure.hint


def test_an_illegal_instruction_is_tried_once_without_repacking() -> None:
    first = ADAPTER.explain_exit(ended(-4))
    again = ADAPTER.explain_exit(ended(-4, options={"repack": False}))
    assert first.cause is again.cause is FailureCause.ILLEGAL_INSTRUCTION
    assert first.retry_options == {"repack": False}
    assert again.retry_options is None


def test_memory_is_what_the_launcher_or_the_buffers_of_a_recorded_start_say() -> None:
    buffers = ADAPTER.read_memory(
        tuple(sample("xllamacpp-2026.10.11549-start-up-verbose.txt").splitlines())
    )
    assert buffers is not None
    assert buffers.main_memory_mib == pytest.approx(92.10 + 0.38 + 45.0 + 15.64)
    assert buffers.total_mib is None, "it has no device"
    quiet = ADAPTER.read_memory(("llmgw: 231 MiB resident", "llmgw: serving"))
    assert quiet is not None
    assert quiet.main_memory_mib == 231.0
    assert ADAPTER.read_memory(("0.00.018.392 I srv          init: model loaded",)) is None


def test_of_several_devices_the_fullest_counts_apart_from_main_memory() -> None:
    report = ADAPTER.read_memory(
        (
            "0.00.225.908 I load_tensors:        CUDA0 model buffer size =  4000.00 MiB",
            "0.00.225.909 I load_tensors:        CUDA1 model buffer size =  3000.00 MiB",
            "0.00.225.910 I load_tensors:   CPU_Mapped model buffer size =   100.00 MiB",
            "0.00.230.596 I llama_kv_cache:      CUDA0 KV buffer size =   512.00 MiB",
            "0.00.230.597 I llama_kv_cache:      CUDA1 KV buffer size =   256.00 MiB",
            "0.00.268.949 I sched_reserve:      CUDA0 compute buffer size =   300.00 MiB",
            "0.00.268.950 I sched_reserve:  CUDA_Host compute buffer size =    10.00 MiB",
        )
    )
    assert report is not None
    assert (report.weights_mib, report.kv_cache_mib, report.activation_mib) == (4000, 512, 300)
    assert report.main_memory_mib == 110.0
