"""Runs on a server: options and their origins, rows, keys that stay out of every file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.http_server import Reply, Server, serving
from tests.backends.lora_server import BASE, HELPS, HURTS, LoraServer, who
from tests.pytest_plugin.project import MARK, Project

TEST = "def test_s(case, generation, score): score(n=len(generation.text))\n"
KEY = "sk-very-secret-0123456789abcdef"


@pytest.fixture
def server(tiny_tokenizer: Any) -> Iterator[Server]:
    ids = [*tiny_tokenizer.encode("good", add_special_tokens=False), tiny_tokenizer.eos_token_id]
    answer = {"choices": [{"text": "good", "finish_reason": "stop", "token_ids": ids}]}
    models = {"data": [{"id": "served", "max_model_len": 400}]}
    with serving(lambda asked: Reply(models if asked.body is None else answer)) as running:
        yield running


def options_of(server: Server, checkpoint: Path) -> tuple[str, ...]:
    return f"--base-url={server.url}/v1/", f"--model={checkpoint}", "--concurrency", "3"


def test_a_run_on_a_server_records_it_and_no_key(project: Project, server: Server, tiny_vlm_checkpoint: Path) -> None:
    options = (*options_of(server, tiny_vlm_checkpoint), "--cache")
    run = project.write(test_a=MARK + TEST).run_inline(*options, backend="openai", env={"EVALHARNESS_API_KEY": KEY})
    assert run.exit_code == pytest.ExitCode.OK, run.output
    assert {row["generation"]["text"] for row in run.rows} == {"good"}
    assert not any(row["generation"]["cached"] for row in run.rows)  # nobody knows which weights a server has today
    [engine] = run.facts["engines"]
    assert engine["id"] == f"openai:{tiny_vlm_checkpoint.name}"
    assert {"base_url": server.url, "served_model": "served", "server": "vllm"}.items() <= engine["settings"].items()
    assert run.facts["config"]["concurrency"] == {"value": 3, "origin": "command line"}
    assert all(asked.headers["authorization"] == f"Bearer {KEY}" for asked in server.asked)
    written = [path for path in run.run_dir.rglob("*") if path.is_file()]
    assert not any(KEY.encode() in path.read_bytes() for path in written)


def test_workers_ask_the_server_side_by_side(project: Project, server: Server, tiny_vlm_checkpoint: Path) -> None:
    run = project.write(test_a=MARK + TEST).run(*options_of(server, tiny_vlm_checkpoint), mode="n2", backend="openai")
    assert run.exit_code == pytest.ExitCode.OK, run.output
    assert run.counts == {"pass": 4}


@pytest.mark.engine
def test_adapters_are_brought_to_the_server_one_after_the_other(project: Project) -> None:
    server = LoraServer("max")
    try:
        models = (f"--model={HELPS}", f"--model={HURTS}", f"--model={BASE}")
        run = project.write(test_a=MARK + TEST).run_inline(*models, f"--base-url={server.url}", "--server=max", backend="openai")
    finally:
        server.close()
    assert run.exit_code == pytest.ExitCode.OK, run.output
    said = {(row["engine"], row["generation"]["text"]) for row in run.rows}
    assert said == {("openai:middle+lora-helps", who(HELPS)), ("openai:middle+lora-hurts", who(HURTS)), ("openai:middle", "base")}
    assert server.loaded == {}


def test_no_server_is_an_error_of_the_run_and_not_a_score(project: Project, server: Server, tiny_vlm_checkpoint: Path) -> None:
    server.close()
    run = project.write(test_a=MARK + TEST).run(f"--base-url={server.url}", f"--model={tiny_vlm_checkpoint}", backend="openai")
    assert run.exit_code != pytest.ExitCode.OK
    assert {row["outcome"] for row in run.rows} == {"error"}
    assert "gave no answer" in run.rows[0]["problem"]


def test_options_of_servers_are_refused_where_none_is_asked(project: Project) -> None:
    run = project.write(test_a=MARK + TEST).run("--base-url=http://127.0.0.1:1")
    assert run.exit_code == pytest.ExitCode.USAGE_ERROR
    assert "--base-url http://127.0.0.1:1 is honoured by openai only" in run.output


@pytest.mark.parametrize("name", ["vllm", "max"])
@pytest.mark.parametrize("place", ["command line", "file"])
def test_a_trainers_quick_start_runs_and_devices_that_only_it_uses_are_noticed(
    project: Project, server: Server, tiny_vlm_checkpoint: Path, name: str, place: str
) -> None:
    project.write(test_a=MARK + TEST)
    given: tuple[str, ...] = (f"--inference-engine={name}", f"--inference-url={server.url}")
    if place == "file":
        (project.root / "evalharness.toml").write_text(f'[inference]\nengine = "{name}"\nurl = "{server.url}"\n')
        given = ()
    run = project.run_inline(*given, f"--model={tiny_vlm_checkpoint}", "--devices=gpu:7", backend=None)
    notice = "--devices gpu:7 is not used: the server has its own, and nothing of this run needs one"
    assert run.facts["notices"] == [notice]
    assert notice in run.output
    assert {row["generation"]["backend"] for row in run.rows} == {"openai"}
