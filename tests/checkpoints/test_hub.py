"""A checkpoint's name on the hub is looked for in a cache as huggingface_hub lays it out: files are links to blobs; nothing is fetched."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from evalharness.api.errors import CheckpointError
from evalharness.api.options import ModelLoadConfig
from evalharness.backends.checkpoint_reading import checkpoint_errors, declared_variant
from evalharness.checkpoints.adapter import find_base
from evalharness.checkpoints.discovery import find_models
from evalharness.checkpoints.hub import folder_of, hub_facts, is_hub_name, located
from evalharness.checkpoints.info import inspect_checkpoint, name_checkpoints
from evalharness.config import resolve
from evalharness.config.kinds import Folder, PathList
from evalharness.pytest_plugin.execution.engine_specs import engine_specs
from tests.adapters import lora, write_adapter
from tests.checkpoints.test_info import GOOD, write

pytest.importorskip("huggingface_hub")

CHECKPOINTS = Path(__file__).parents[2] / "fixtures" / "checkpoints"
FIRST, SECOND = "1" * 40, "2" * 40
NAME = "Qwen/Qwen3-VL-4B-Instruct"


def add(cache: Path, name: str, revision: str, files: dict[str, Any], *, ref: str | None = None) -> Path:
    """Put a model into a cache as huggingface_hub does."""
    model = cache / f"models--{name.replace('/', '--')}"
    blobs = write(model / "blobs" / revision[:4], files)
    folder = model / "snapshots" / revision
    folder.mkdir(parents=True)
    for file in blobs.iterdir():
        (folder / file.name).symlink_to(Path("../../blobs") / revision[:4] / file.name)
    if ref is not None:
        (model / "refs").mkdir(exist_ok=True)
        (model / "refs" / ref).write_text(revision)
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))  # was read from the environment when it was imported
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    monkeypatch.chdir(tmp_path)
    return cache


@pytest.fixture
def folders(cache: Path) -> tuple[Path, Path]:
    first = add(cache, NAME, FIRST, {**GOOD, "LICENSE": "as you like"}, ref="v1")
    return first, add(cache, NAME, SECOND, {**GOOD, "config.json": {**GOOD["config.json"], "rope_theta": 7.0}}, ref="main")


@pytest.mark.parametrize(
    ("asked", "place"), [(NAME, 1), (f"{NAME}@main", 1), (f"{NAME}@v1", 0), (f"{NAME}@{FIRST}", 0)], ids=["name", "branch", "tag", "commit"]
)
def test_a_name_is_the_folder_of_its_revision(folders: tuple[Path, Path], tmp_path: Path, asked: str, place: int) -> None:
    assert find_models([asked], tmp_path, wait_s=0, on_notice=pytest.fail) == [folders[place]]
    assert located(ModelLoadConfig(asked)).model_name_or_path == str(folders[place])


def test_a_checkpoint_of_the_cache_is_one_like_any_other(folders: tuple[Path, Path]) -> None:
    infos = [inspect_checkpoint(folder) for folder in folders]
    assert len({info.fingerprint for info in infos}) == 2
    assert hub_facts(folders[0]) == {"name": NAME, "revision": FIRST, "license_file": "LICENSE"}
    assert hub_facts(folders[1]) == {"name": NAME, "revision": SECOND, "license_file": None}
    assert hub_facts(folders[0].parent) is None


def test_checkpoints_are_called_by_their_names_on_the_hub(folders: tuple[Path, Path], cache: Path) -> None:
    other = add(cache, "gpt2", FIRST, GOOD)
    assert name_checkpoints([folders[0], other]) == ["Qwen3-VL-4B-Instruct", "gpt2"]
    assert name_checkpoints(folders) == [f"{sha[:8]}_Qwen_Qwen3-VL-4B-Instruct" for sha in (FIRST, SECOND)]


def test_a_word_alone_is_a_folder_unless_the_cache_has_it(cache: Path, tmp_path: Path) -> None:
    assert not is_hub_name("gpt2", tmp_path)
    folder = add(cache, "gpt2", FIRST, GOOD, ref="main")
    assert find_models(["gpt2"], tmp_path, wait_s=0, on_notice=pytest.fail) == [folder]


def test_a_folder_goes_before_a_name(folders: tuple[Path, Path], tmp_path: Path) -> None:
    here = write(tmp_path / NAME, GOOD)
    assert find_models([NAME], tmp_path, wait_s=0, on_notice=pytest.fail) == [here]
    assert located(ModelLoadConfig(NAME)).model_name_or_path == NAME


@pytest.mark.parametrize(
    "text",
    ["a/b/c", "../b", "./a/b", "/a/b", "~/a", "a/*", "a b", "", "model.gguf", "a/..", "a@", "a/b@v 1",
     "runs/sft--42", "a--b@v1", "runs/x.git", "runs/x.git@v1", "a/b-", "a/b.", "a/b/", "a/b@.", "a/b@..", "a/b@/v", "a/b@v/", "a/b@v//w"],
)  # fmt: skip
def test_other_texts_are_no_names(tmp_path: Path, text: str) -> None:
    assert not is_hub_name(text, tmp_path)
    with pytest.raises(CheckpointError):  # and never an error of huggingface_hub's
        find_models([text or "none"], tmp_path, wait_s=0, on_notice=pytest.fail)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        pytest.param("Qwen/Qwen3-VL-4B-Instrct", rf"its cache .* does not have it; did you mean '{NAME}'\? Fetch it", id="misspelt"),
        pytest.param("other/model", rf"does not have it; it has {NAME}\. Fetch it with `hf download other/model`", id="absent"),
        pytest.param(
            f"{NAME}@v2",
            rf"has {NAME}, but not its revision v2; it has main, v1\. Fetch it with `hf download {NAME} --revision v2`",
            id="tag",
        ),
        pytest.param(f"{NAME}@mian", r"but not its revision mian; did you mean 'main'\? Fetch it with", id="branch"),
    ],
)
@pytest.mark.usefixtures("folders")
def test_what_the_cache_lacks_is_named_with_the_command_that_fetches_it(tmp_path: Path, asked: str, message: str) -> None:
    for find in (lambda: find_models([asked], tmp_path, wait_s=0, on_notice=pytest.fail), lambda: located(ModelLoadConfig(asked))):
        with pytest.raises(CheckpointError, match=rf"checkpoint .*{asked} does not exist.*{message}.*--download"):
            find()


def test_a_revision_may_have_slashes_and_the_folder_that_holds_it_is_none(folders: tuple[Path, Path]) -> None:
    refs = folders[0].parents[1] / "refs"
    for ref in ("feature/x", "refs/pr/1"):
        (refs / ref).parent.mkdir(parents=True, exist_ok=True)
        (refs / ref).write_text(FIRST)
        assert folder_of(f"{NAME}@{ref}") == folders[0]
    for text in ("feature", "refs", f"{FIRST}/config.json"):
        with pytest.raises(CheckpointError, match=f"but not its revision {text}"):
            folder_of(f"{NAME}@{text}")


@pytest.mark.parametrize("left_out", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_checkpoint_of_which_the_cache_has_a_part_says_how_to_get_the_rest(cache: Path, left_out: str) -> None:
    folder = add(cache, NAME, FIRST, {name: content for name, content in GOOD.items() if name != left_out}, ref="main")
    rest = f"a part of it only, `hf download {NAME} --revision {FIRST}` fetches the rest"
    with pytest.raises(CheckpointError, match=f"has no .*{rest}"):
        inspect_checkpoint(folder)
    with pytest.raises(CheckpointError, match=f"{left_out}.*{rest}"), checkpoint_errors(ModelLoadConfig(str(folder)), "model"):
        declared_variant(str(folder))
        raise OSError(f"no {left_out}")  # as transformers says it


@pytest.mark.parametrize("path", ["runs/a/b", "runs/a b", "C:\\models"])
def test_a_path_that_is_not_there_is_said_so(tmp_path: Path, path: str) -> None:
    with pytest.raises(CheckpointError, match="does not exist; the nearest folder"):
        declared_variant(str(tmp_path / path))


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({}, "~/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"HF_HOME": "$XDG_CACHE_HOME/hf", "XDG_CACHE_HOME": "/x"}, "/x/hf/hub"),
        ({"HF_HOME": "/h", "HUGGINGFACE_HUB_CACHE": "/old"}, "/old"),
        ({"HF_HOME": "/h", "HUGGINGFACE_HUB_CACHE": "/old", "HF_HUB_CACHE": "~/c"}, "~/c"),
        ({"HF_HUB_CACHE": "here"}, f"{os.getcwd()}/here"),
    ],
)
def test_the_cache_is_where_huggingface_hub_has_it(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], place: str) -> None:
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        CheckpointError, match=re.escape(f"({Path(place).expanduser()})") + "|" + re.escape(f"cache {Path(place).expanduser()} ")
    ):
        folder_of("no/such-model")


def test_a_damaged_reference_is_our_error(folders: tuple[Path, Path], cache: Path) -> None:
    (cache / "models--Qwen--Qwen3-VL-4B-Instruct/refs/main").write_bytes(b"\xff" * 40)
    with pytest.raises(CheckpointError, match=rf"refs/main in the hub's cache cannot be read: .*`hf download {NAME}`"):
        folder_of(NAME)


def test_without_a_cache_it_says_so(cache: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"there is no cache of the hub yet \({cache}\)"):
        folder_of(NAME)


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does about one model."""

    protocol_version = "HTTP/1.1"
    files: ClassVar[dict[str, bytes]] = {}

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        facts = [{"type": "file", "path": name, "size": len(content), "oid": name} for name, content in self.files.items()]
        if path == f"/api/models/{NAME}/revision/main":
            self.answer(json.dumps({"id": NAME, "sha": FIRST, "siblings": []}).encode())
        elif path == f"/api/models/{NAME}/tree/{FIRST}":
            self.answer(json.dumps(facts).encode())
        elif path.startswith(f"/{NAME}/resolve/{FIRST}/"):
            name = path.rpartition("/")[2]
            self.answer(self.files[name], {"ETag": f'"{name}"', "X-Repo-Commit": FIRST})
        else:
            self.answer(b"{}", {"X-Error-Code": "RepoNotFound"}, 404)

    do_HEAD = do_GET

    def answer(self, body: bytes, headers: Mapping[str, str] = {}, code: int = 200) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Type": "application/json", "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.mark.usefixtures("cache")
def test_what_is_allowed_is_fetched_without_pickles_and_found_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = write(tmp_path / "made", {**GOOD, "LICENSE": "as you like", "modeling.py": "", "pytorch_model.bin": b"p", ".gitattributes": ""})
    monkeypatch.setattr(Hub, "files", {file.name: file.read_bytes() for file in made.iterdir()})
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        file = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", file)
        folder = folder_of(NAME, download=True)
        with pytest.raises(CheckpointError, match=r"org/absent@main cannot be fetched from the hub: RepositoryNotFoundError"):
            folder_of("org/absent", download=True)
        server.shutdown()
    assert {file.name for file in folder.iterdir()} == {*GOOD, "LICENSE", "modeling.py"}
    assert hub_facts(folder) == {"name": NAME, "revision": FIRST, "license_file": "LICENSE"}
    assert find_models([NAME], tmp_path, wait_s=0, on_notice=pytest.fail) == [folder]  # the files left out are none that are missing
    assert inspect_checkpoint(folder).fingerprint == inspect_checkpoint(made, allow_pickle=True).fingerprint


def test_a_fetch_that_fails_is_our_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match=f"{NAME}@main cannot be fetched from the hub"):
        folder_of(NAME, download=True)


@pytest.mark.parametrize(("revision", "place"), [(None, 1), ("v1", 0)], ids=["main", "revision"])
def test_the_base_of_an_adapter_is_found_by_its_name(folders: tuple[Path, Path], tmp_path: Path, revision: str | None, place: int) -> None:
    adapter = write_adapter(tmp_path / "lora", lora("q_proj", 6, 4), base_model_name_or_path=NAME, revision=revision)
    assert find_base(adapter, None, tmp_path) == folders[place]
    assert find_base(adapter, Path(f"{NAME}@v1"), tmp_path) == folders[0]
    with pytest.raises(CheckpointError, match=r"the base of adapter .*other: .*hf download other/base`.*--base-model PATH"):
        find_base(write_adapter(tmp_path / "other", lora("q_proj", 6, 4), base_model_name_or_path="other/base"), None, tmp_path)


def test_settings_keep_a_name_as_it_is(tmp_path: Path) -> None:
    how: dict[str, Any] = {"label": "--model", "base": tmp_path, "is_text": True}
    assert PathList(or_hub_names=True).read(f"{NAME}@v1,runs/a/b", **how) == (f"{NAME}@v1", str(tmp_path / "runs/a/b"))
    assert [Folder(or_hub_name=is_taken).read(NAME, **how) for is_taken in (True, False)] == [Path(NAME), tmp_path / NAME]


def test_a_run_records_name_commit_and_licence_of_a_checkpoint_and_of_a_base(cache: Path, tmp_path: Path) -> None:
    middle = {file.name: file.read_bytes() for file in (CHECKPOINTS / "middle").iterdir()}
    folder = add(cache, NAME, FIRST, {**middle, "LICENSE": "as you like"}, ref="main")
    asked = {"model": [NAME, str(CHECKPOINTS / "lora-helps")], "base_model": NAME, "backend": ["hf"]}
    own, adapted = (spec.to_json() for spec in engine_specs(resolve(asked, {}, tmp_path), tmp_path, pytest.fail))
    facts = {"name": NAME, "revision": FIRST, "license_file": "LICENSE"}
    assert (own["hub"], own["base_hub"], own["fingerprint"]) == (facts, None, inspect_checkpoint(folder).fingerprint)
    assert (adapted["hub"], adapted["base_hub"], adapted["base_fingerprint"]) == (None, facts, own["fingerprint"])
