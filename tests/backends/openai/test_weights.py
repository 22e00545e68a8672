"""Adapters at servers: how each kind is told, which answers, what is left behind. Run: pytest tests/backends/openai/test_weights.py

On a real vLLM server: test_openai_on_vllm.py.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import BackendError, CapabilityError, CheckpointError, ConfigError
from evalharness.api.options import GenerationOptions, ModelLoadConfig, ServerOptions
from evalharness.api.requests import GenerationFailure, TextGenerationRequest
from evalharness.backends.openai.client import HttpClient
from evalharness.engine.build import build_engine
from evalharness.engine.engine import Engine
from evalharness.engine.weights import WeightSync
from tests.backends.http_server import Reply, pass_time
from tests.backends.lora_server import BASE, HELPS, HURTS, LoraServer, copied, who

pytestmark = pytest.mark.engine

QUESTION = TextGenerationRequest([{"role": "user", "content": "who?"}])
GREEDY = GenerationOptions(max_new_tokens=20)
LOADING = ["vllm", "sglang", "max"]
ALL = [*LOADING, "trtllm", "mlx"]
NAME = r"evalharness-[0-9a-f]{8}-v"


class Opened:
    """Servers and engines of one test."""

    def __init__(self) -> None:
        self._all: list[Any] = []

    def server(self, kind: str) -> LoraServer:
        server = LoraServer(kind)
        self._all.append(server)
        return server

    def engine(self, server: LoraServer, adapter: Path | None = None, **options: Any) -> Engine:
        config = ModelLoadConfig(str(BASE), adapter_path=str(adapter) if adapter is not None else None)
        engine = build_engine("openai", config, server_options=ServerOptions(server.kind, server.url, **options))
        self._all.append(engine)
        return engine

    def both(self, kind: str, adapter: Path | None = None, **options: Any) -> tuple[LoraServer, Engine]:
        server = self.server(kind)
        return server, self.engine(server, adapter, **options)

    def close(self) -> None:
        for each in reversed(self._all):
            each.close()


@pytest.fixture
def opened() -> Iterator[Opened]:
    opened = Opened()
    yield opened
    opened.close()


def answer(engine: Engine) -> str:
    [(_, result)] = engine.stream([QUESTION], GREEDY)
    assert not isinstance(result, GenerationFailure), result
    # The checkpoint's tokenizer does not read these ids; the scripted servers of ids say letters.
    return result.text if not result.exact_ids else "".join(map(chr, result.token_ids))


@pytest.mark.parametrize("kind", ["vllm", "max"])
def test_each_load_has_a_name_of_its_own_and_the_one_before_goes(opened: Opened, kind: str) -> None:
    server, engine = opened.both(kind)
    for adapter in (HELPS, HURTS):
        engine.weights.load_adapter(str(adapter))
        assert answer(engine) == who(adapter)
    [first, second, gone] = server.admin()
    assert [route for route, _ in (first, second, gone)] == ["load_lora_adapter", "load_lora_adapter", "unload_lora_adapter"]
    assert re.fullmatch(NAME + "1", first[1]["lora_name"])
    assert re.fullmatch(NAME + "2", second[1]["lora_name"])
    assert first[1].keys() == {"lora_name", "lora_path"}
    assert gone[1] == {"lora_name": first[1]["lora_name"]}
    assert [asked["model"] for asked in server.questions()] == [first[1]["lora_name"], second[1]["lora_name"]]


def test_sglang_takes_the_one_before_away_first_and_names_both(opened: Opened) -> None:
    server, engine = opened.both("sglang")
    for adapter in (HELPS, HURTS):
        engine.weights.load_adapter(str(adapter))
        assert answer(engine) == who(adapter)
    assert [route for route, _ in server.admin()] == ["load_lora_adapter", "unload_lora_adapter", "load_lora_adapter"]
    assert [asked["model"] for asked in server.questions()] == [f"Base:{server.admin()[step][1]['lora_name']}" for step in (0, 2)]


def test_tensorrt_llm_is_shown_the_adapter_with_each_request_under_a_new_number(opened: Opened) -> None:
    server, engine = opened.both("trtllm")
    for adapter in (HELPS, HURTS):
        engine.weights.load_adapter(str(adapter))
        assert answer(engine) == who(adapter)
    shown = [asked["lora_request"] for asked in server.questions()]
    assert server.admin() == []
    assert all(one.keys() == {"lora_name", "lora_int_id", "lora_path"} for one in shown)
    assert all(len({one[key] for one in shown}) == 2 for key in shown[0])
    assert {asked["model"] for asked in server.questions()} == {"Base"}


def test_mlx_is_shown_a_new_folder_with_each_request(opened: Opened) -> None:
    server, engine = opened.both("mlx")
    for adapter in (HELPS, HURTS):
        engine.weights.load_adapter(str(adapter))
        assert answer(engine) == who(adapter)
    assert len({asked["adapters"] for asked in server.questions()}) == 2


def test_a_server_that_cannot_be_told_says_so_and_its_base_does_not_answer_instead(opened: Opened) -> None:
    server = opened.server("openai")
    with pytest.raises(
        CapabilityError, match=r"to its weights \(adapter\): server 'openai' cannot be told to load adapters; start it with one"
    ):
        opened.engine(server).weights.load_adapter(str(HELPS))
    with pytest.raises(ConfigError, match="server 'openai' cannot be told to load adapter .*; start it with that adapter and name it"):
        opened.engine(server, HELPS)
    assert server.questions() == []


def test_a_base_that_answers_in_place_of_its_adapter_is_an_error(opened: Opened) -> None:
    server, engine = opened.both("vllm", HELPS)
    server.answers_as = "Base"
    [(_, failure)] = engine.stream([QUESTION], GREEDY)
    assert isinstance(failure, GenerationFailure)
    assert "answered with 'Base', the base, instead of the adapter 'evalharness-" in failure.problem


def test_plain_text_with_status_200_is_success(opened: Opened) -> None:
    server = opened.server("vllm")
    report = opened.engine(server).weights.load_adapter(str(HELPS))
    assert (report.source, report.weight_version, len(server.loaded)) == (str(HELPS), "1", 1)
    assert report.num_loaded == 2 * report.adapter["num_adapted_weights"] > 0  # type: ignore[index]


REFUSALS = [
    pytest.param("vllm", Reply({"error": {"message": "rank 64 is greater than max_lora_rank"}}, 500), "status 500: .*rank 64", id="rank"),
    pytest.param("vllm", Reply({"detail": "Not Found"}, 404), "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1", id="routes off"),
    pytest.param("vllm", Reply("Success"), "does not list it", id="not listed"),
    pytest.param("sglang", Reply({"success": False, "error_message": "no room"}), "no room", id="success false"),
    pytest.param("sglang", Reply({"success": False, "x": "y" * 900}), "success", id="long"),
    pytest.param("max", Reply({"detail": "LoRA functionality is not enabled"}, 501), "status 501: .*--enable-lora", id="off"),
]


@pytest.mark.parametrize(("kind", "reply", "match"), REFUSALS)
def test_a_load_that_fails_raises_stays_dirty_and_is_tried_again(opened: Opened, kind: str, reply: Reply, match: str) -> None:
    server, engine = opened.both(kind)
    sync = WeightSync(lambda: engine.weights.load_adapter(str(HELPS)))
    server.refuse = reply
    with pytest.raises(CheckpointError, match=match):
        sync()
    assert (sync.dirty, engine.weights.version, answer(engine)) == (True, "0", "base")
    sync()
    assert (sync.dirty, engine.weights.version, answer(engine)) == (False, "1", who(HELPS))
    assert sync() is None
    loads = [body["lora_name"] for route, body in server.admin() if route == "load_lora_adapter"]
    assert len(loads) == len(set(loads)) == 2


@pytest.mark.parametrize("kind", ["vllm", "max"])
def test_the_one_before_stays_where_the_next_is_refused(opened: Opened, kind: str) -> None:
    server, engine = opened.both(kind, HELPS)
    server.refuse = Reply("no", 500)
    with pytest.raises(CheckpointError, match="did not take adapter"):
        engine.weights.load_adapter(str(HURTS))
    assert answer(engine) == who(HELPS)


def test_a_server_that_lost_its_adapter_is_not_asked_until_it_has_one_or_none_is_wanted(opened: Opened) -> None:
    server, engine = opened.both("sglang", HELPS)
    for go_on in (lambda: engine.weights.load_adapter(str(HURTS)), engine.weights.unload_adapter):
        server.refuse = Reply({"success": False, "error_message": "no room"})
        with pytest.raises(CheckpointError, match="no room"):
            engine.weights.load_adapter(str(HURTS))
        with pytest.raises(BackendError, match="cannot be asked: the server has no adapter since it did not take .*no room"):
            answer(engine)
        go_on()
        answer(engine)
    assert answer(engine) == "base"


def test_an_adapter_that_the_server_does_not_take_away_is_counted_and_taken_away_at_the_end(opened: Opened) -> None:
    server, engine = opened.both("vllm", HELPS)
    server.replies["/v1/unload_lora_adapter"] = Reply("busy", 500)
    engine.weights.load_adapter(str(HURTS))
    assert (answer(engine), engine.backend.describe()["num_adapters_not_unloaded"], len(server.loaded)) == (who(HURTS), 1, 2)
    server.replies.clear()
    engine.close()
    assert server.loaded == {}


def test_a_server_that_may_have_lost_its_adapter_is_not_asked_until_it_is_known(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    server = opened.server("sglang")
    engine, given_up = opened.engine(server, HELPS, request_timeout_s=1000), threading.Event()

    def unload_for_ever(name: str) -> Reply:
        pass_time(engine, 1001)
        given_up.wait()
        return Reply("gone")

    with monkeypatch.context() as patch, pytest.raises(BackendError, match="/unload_lora_adapter gave no answer"):
        patch.setattr(server, "_unload", unload_for_ever)
        engine.weights.unload_adapter()
    given_up.set()
    with pytest.raises(BackendError, match="cannot be asked: nobody knows whether the server still has evalharness-"):
        answer(engine)
    engine.weights.unload_adapter()
    assert answer(engine) == "base"


def test_a_server_that_was_started_anew_is_told_again(opened: Opened) -> None:
    for kind in LOADING:
        server = opened.server(kind)
        engine = opened.engine(server, HELPS)
        server.loaded.clear()
        engine.weights.load_adapter(str(HURTS))
        assert answer(engine) == who(HURTS)


@pytest.mark.parametrize("kind", ALL)
def test_an_adapter_that_is_written_over_or_gone_answers_under_another_name_and_folder(opened: Opened, kind: str, tmp_path: Path) -> None:
    server = opened.server(kind)
    folder = copied(HELPS, tmp_path / "live")
    engine = opened.engine(server, folder)
    assert answer(engine) == who(HELPS)
    copied(HURTS, folder)
    assert answer(engine) == who(HELPS)  # until it is told
    engine.weights.load_adapter(str(folder))
    shutil.rmtree(folder)
    assert answer(engine) == who(HURTS)
    assert engine.describe()["adapter"]["path"] == str(folder)
    before, _, after = server.questions()
    assert {**before, "prompt": 0} != {**after, "prompt": 0}


def test_an_adapter_that_is_not_whole_reaches_no_server(opened: Opened, tmp_path: Path) -> None:
    server, engine = opened.both("vllm", adapter_dir=str(tmp_path))
    folder = copied(HELPS, tmp_path / "live")
    weights = (folder / "adapter_model.safetensors").read_bytes()
    (folder / "adapter_model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(CheckpointError, match="copied or written only in part"):
        engine.weights.load_adapter(str(folder))
    assert server.admin() == []
    assert list(tmp_path.glob("evalharness-adapters-*")) == []
    with pytest.raises(CheckpointError, match="there is no folder .*gone; the weights that are loaded stay"):
        engine.weights.load_adapter(str(tmp_path / "gone"))


def test_an_adapter_that_is_written_to_while_it_is_copied_reaches_no_server(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, engine = opened.both("vllm", adapter_dir=str(tmp_path))
    copy = shutil.copyfile
    monkeypatch.setattr(shutil, "copyfile", lambda source, target: copy(HURTS / source.name, target))
    with pytest.raises(CheckpointError, match="was written to while it was copied; load it again once it is whole"):
        engine.weights.load_adapter(str(HELPS))
    assert server.admin() == []
    assert list(tmp_path.glob("evalharness-adapters-*/[!.]*")) == []


def test_an_adapter_that_replaces_whole_weights_is_refused(opened: Opened, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = copied(HELPS, tmp_path / "live")
    tensors = load_file(folder / "adapter_model.safetensors")
    embedding = load_file(BASE / "model.safetensors")["model.language_model.embed_tokens.weight"]
    tensors["base_model.model.model.language_model.embed_tokens.weight"] = embedding
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**settings, "modules_to_save": ["embed_tokens"]}))
    with pytest.raises(CheckpointError, match="replaces whole weights .*which servers leave out"):
        opened.engine(opened.server("vllm"), folder)


def test_copies_lie_where_the_server_sees_them_and_only_while_they_are_used(opened: Opened, tmp_path: Path) -> None:
    server, engine = opened.both("vllm", HELPS, adapter_dir=str(tmp_path))
    engine.weights.load_adapter(str(HURTS))
    [copy] = tmp_path.glob("*/[!.]*")
    assert list(server.loaded.values()) == [copy]
    assert sorted(file.name for file in copy.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    engine.close()
    engine.close()
    assert (list(tmp_path.iterdir()), server.loaded) == ([], {})


def test_a_folder_for_copies_that_is_not_there_is_a_matter_of_settings(opened: Opened, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="copies of adapters cannot be put into .*nowhere"):
        opened.engine(opened.server("vllm"), HELPS, adapter_dir=str(tmp_path / "nowhere"))


def test_closing_waits_for_no_server_that_is_gone(opened: Opened) -> None:
    server, engine = opened.both("vllm", HELPS)
    server.close()
    engine.close()


def load(base: Path, adapter: Path | None = None) -> ModelLoadConfig:
    return ModelLoadConfig(str(base), adapter_path=str(adapter) if adapter is not None else None)


def test_adapters_of_one_base_take_each_others_place(opened: Opened) -> None:
    engine = opened.engine(opened.server("vllm"), HELPS)
    for adapter, said in ((HURTS, who(HURTS)), (None, "base"), (HELPS, who(HELPS))):
        assert engine.weights.why_not_swap(load(BASE, adapter)) is None
        engine.weights.swap(load(BASE, adapter))
        assert answer(engine) == said


def test_another_checkpoint_takes_no_place_at_a_server(opened: Opened) -> None:
    engine = opened.engine(opened.server("vllm"))
    assert engine.weights.why_not_swap(load(BASE.parent / "final")) == "a server keeps the weights it has"
    fixed = opened.engine(opened.server("openai"))
    assert fixed.weights.why_not_swap(load(BASE, HELPS)) == "server 'openai' cannot be told to load adapters"
    with pytest.raises(BackendError, match="cannot take the place of the loaded checkpoint: a server keeps"):
        engine.weights.swap(load(BASE.parent / "final"))


def test_an_adapter_is_taken_off_once(opened: Opened) -> None:
    engine = opened.engine(opened.server("vllm"), HELPS)
    assert engine.weights.unload_adapter().weight_version == "1"
    assert answer(engine) == "base"
    with pytest.raises(CapabilityError, match="there is no adapter to remove"):
        engine.weights.unload_adapter()


@pytest.mark.parametrize(
    "change",
    [
        lambda engine: engine.weights.reload("x"),
        lambda engine: engine.weights.sync_from_state_dict({"a": 1}),
        lambda engine: engine.weights.sleep(),
    ],
    ids=["checkpoint", "tensors", "sleep"],
)
def test_what_a_server_cannot_do_to_its_weights_is_refused(opened: Opened, change: Callable[[Engine], Any]) -> None:
    with pytest.raises(CapabilityError, match="backend 'openai' cannot do this to its weights"):
        change(opened.engine(opened.server("openai")))


def test_adapters_of_other_clients_are_not_taken_for_models(opened: Opened) -> None:
    server = opened.server("vllm")
    first, second = opened.engine(server, HELPS), opened.engine(server, HURTS)
    assert (answer(first), answer(second), answer(opened.engine(server))) == (who(HELPS), who(HURTS), "base")


def test_an_adapter_that_the_server_has_is_used_as_it_is(opened: Opened) -> None:
    server = opened.server("vllm")
    server.loaded["mine"] = HELPS
    engine = opened.engine(server, HELPS, served_model="mine")
    assert (answer(engine), server.admin(), engine.describe()["max_model_len"]) == (who(HELPS), [], 400)


def test_a_trainers_adapter_is_brought_from_memory(opened: Opened) -> None:
    from safetensors.torch import load_file

    server, engine = opened.both("vllm")
    settings = json.loads((HELPS / "adapter_config.json").read_text())
    tensors = load_file(HELPS / "adapter_model.safetensors")
    report = engine.weights.sync_from_state_dict(tensors, adapter_config=settings)
    [brought] = server.loaded.values()
    assert (report.source, report.num_loaded, answer(engine)) == ("tensors", len(tensors), who(brought))
    sent = load_file(brought / "adapter_model.safetensors")
    assert all(sent[name].equal(tensor) for name, tensor in tensors.items())
    with pytest.raises(CapabilityError, match="the weights of a model cannot be sent to a server"):
        engine.weights.sync_from_state_dict(load_file(BASE / "model.safetensors"))


OTHER = BASE.parent / "final"
RELOADS = {
    "vllm": ["/collective_rpc", "/reset_mm_cache", "/reset_encoder_cache", "/reset_prefix_cache"],
    "sglang": ["/update_weights_from_disk"],
}


@pytest.mark.parametrize("kind", RELOADS)
def test_a_checkpoint_is_loaded_and_all_that_was_remembered_dropped(opened: Opened, kind: str) -> None:
    server, engine = opened.both(kind, HELPS)
    before = len(server.routes())
    report = engine.weights.reload(str(OTHER))
    assert server.routes()[before:-1] == RELOADS[kind]  # the last takes the adapter away
    assert (answer(engine), report.source, engine.weights.version) == ("final", str(OTHER), "1")
    assert engine.weights.reload(str(BASE), adapter_path=str(HURTS)).adapter is not None
    assert answer(engine) == who(HURTS)


def test_a_server_that_does_not_load_checkpoints_keeps_its_own(opened: Opened, tmp_path: Path) -> None:
    server = opened.server("vllm")
    server.replies["/collective_rpc"] = Reply({"detail": "Not Found"}, 404)
    engine = opened.engine(server, HELPS)
    with pytest.raises(
        CapabilityError, match="has no /collective_rpc, so it keeps its checkpoint; is it started with VLLM_SERVER_DEV_MODE=1"
    ):
        engine.weights.reload(str(OTHER))
    assert answer(engine) == who(HELPS)
    other = shutil.copytree(OTHER, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": None}))
    told = len(server.routes())
    with pytest.raises(CheckpointError, match="cannot take the place of the loaded checkpoint: config.json differs in tie_word_embeddings"):
        engine.weights.reload(str(other))
    assert len(server.routes()) == told


@pytest.mark.parametrize(
    ("kind", "route", "reply"),
    [
        ("vllm", "/collective_rpc", Reply({"error": "no such method"}, 500)),
        ("vllm", "/reset_prefix_cache", Reply({"success": False})),
        ("sglang", "/update_weights_from_disk", Reply({"success": False, "message": "no such file"})),
    ],
)
def test_a_checkpoint_that_could_not_be_loaded_stops_all_questions(opened: Opened, kind: str, route: str, reply: Reply) -> None:
    server, engine = opened.both(kind)
    server.replies[route] = reply
    sync = WeightSync(lambda: engine.weights.reload(str(OTHER)))
    with pytest.raises(BackendError, match=f"final could not be loaded .{route}.: "):
        sync()
    assert sync.dirty
    with pytest.raises(BackendError, match="the server cannot be asked: .*could not be loaded"):
        answer(engine)
    server.replies.clear()
    sync()
    assert (sync.dirty, answer(engine)) == (False, "final")


def test_a_server_that_goes_silent_while_it_loads_a_checkpoint_is_not_asked_until_another_load_succeeds(opened: Opened) -> None:
    server, engine = opened.both("vllm")
    server.replies["/collective_rpc"] = Reply("", hang_up=True)
    with pytest.raises(BackendError, match="/collective_rpc gave no answer"):
        engine.weights.reload(str(OTHER))
    with pytest.raises(BackendError, match="the server cannot be asked: .*final was being loaded, and .*gave no answer"):
        answer(engine)
    server.replies.clear()
    engine.weights.reload(str(OTHER))
    assert answer(engine) == "final"


def test_an_adapter_that_is_none_is_refused_before_its_checkpoint_is_loaded(opened: Opened, tmp_path: Path) -> None:
    server, engine = opened.both("vllm")
    with pytest.raises(CheckpointError, match="adapter_config.json"):
        engine.weights.reload(str(OTHER), adapter_path=str(tmp_path))
    assert (server.routes(), answer(engine), engine.weights.version) == ([], "base", "0")


def test_a_checkpoint_whose_adapter_could_not_be_changed_stops_all_questions(opened: Opened) -> None:
    server, engine = opened.both("vllm")
    server.refuse = Reply("rank too big", 500)
    with pytest.raises(CheckpointError, match="rank too big"):
        engine.weights.reload(str(OTHER), adapter_path=str(HURTS))
    with pytest.raises(BackendError, match="the server cannot be asked: .*final was loaded, its adapter not changed"):
        answer(engine)
    engine.weights.reload(str(OTHER), adapter_path=str(HURTS))
    server.replies["/v1/unload_lora_adapter"] = Reply("no", 500)
    with pytest.raises(BackendError, match="did not take adapter"):
        engine.weights.reload(str(BASE))
    with pytest.raises(BackendError, match="the server cannot be asked: .*middle was loaded, its adapter not changed"):
        answer(engine)


def test_a_checkpoint_may_take_longer_to_load_than_a_question_to_answer(opened: Opened) -> None:
    server, engine = opened.both("sglang", request_timeout_s=0.3)
    server.base = "final"
    server.replies["/update_weights_from_disk"] = Reply({"success": True}, delay_s=0.8)
    engine.weights.reload(str(OTHER))
    assert answer(engine) == "final"


def test_a_checkpoint_whose_load_was_broken_off_stops_all_questions(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = opened.engine(opened.server("sglang"))

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(HttpClient, "tell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.weights.reload(str(OTHER))
    monkeypatch.undo()
    with pytest.raises(BackendError, match="cannot be asked: .*final was being loaded, and KeyboardInterrupt"):
        answer(engine)


def test_a_server_that_runs_another_folder_of_this_machine_is_not_taken_for_the_checkpoint(opened: Opened, tmp_path: Path) -> None:
    server = opened.server("vllm")
    server.base_card["root"] = str(BASE.parent / "final")
    with pytest.raises(ConfigError, match="runs .*final, whose weights are others than those of .*middle; serve that, or ask for that"):
        opened.engine(server)
    server.base_card["root"] = str(shutil.copytree(BASE, tmp_path / "copy"))
    assert answer(opened.engine(server)) == "base"
    for elsewhere in ("/of/another/machine", "x" * 5000):
        server.base_card["root"] = elsewhere
        assert answer(opened.engine(server)) == "base"
