"""One engine is kept while checkpoints come and go: on real tiny checkpoints, with hf."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import BackendError, CheckpointError
from evalharness.checkpoints import identity
from evalharness.checkpoints.file_hashes import hash_files
from evalharness.config import resolve
from evalharness.pytest_plugin.execution import engines as engine_loading
from evalharness.pytest_plugin.execution.engine_specs import EngineSpec, engine_specs
from evalharness.pytest_plugin.execution.engines import EnginePool
from tests.adapters import lora, write_adapter
from tests.backends.hf_models import make_text_checkpoint
from tests.checkpoints.test_info import GOOD, write
from tests.pytest_plugin.project import MARK, Project, Run

TEST = "def test_s(case, generation, score): score(n=len(generation.text))\n"
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
OPTIONS = ("--dtype", "float32", "--device", "cpu", "--max-new-tokens", "8")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training run of three checkpoints and an adapter of the first."""
    root = tmp_path_factory.mktemp("run")
    for step in (10, 20, 100):
        folder = make_text_checkpoint(root / f"checkpoint-{step}", seed=step)
        (folder / "chat_template.jinja").write_text(TEMPLATE)
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "epoch": step / 100, "max_steps": 100}))
    column = [[0.5 if row % 2 else -0.7] for row in range(64)]
    tensors = {"model.layers.1.self_attn.q_proj.lora_A.weight": [[0.6] * 64], "model.layers.1.self_attn.q_proj.lora_B.weight": column}
    write_adapter(root / "lora", tensors, base="checkpoint-10", r=1, lora_alpha=2, layers_to_transform=[1])
    return root


def run(project: Project, *models: Path | str, arguments: tuple[str, ...] = OPTIONS, **keywords: Any) -> Run:
    given = [f"--model={model}" for model in models]
    return project.write(test_a=MARK + TEST, test_b=MARK + TEST).run(*given, *arguments, backend="hf", **keywords)


def texts(found: Run, engine: str) -> dict[str, list[int]]:
    return {row["nodeid"].partition("[")[0] + row["case_id"]: row["generation"]["text"] for row in found.rows if row["engine"] == engine}


def loaded(found: Run) -> dict[str, tuple[int, int]]:
    return {engine["id"]: (engine["num_loads"], engine["num_swaps"]) for engine in found.facts["engines"]}


@pytest.mark.engine
def test_a_run_over_a_training_run_loads_once_and_swaps_the_rest(project: Project, checkpoints: Path, tmp_path: Path) -> None:
    found = run(project, checkpoints)
    assert loaded(found) == {"hf:checkpoint-10": (1, 0), "hf:checkpoint-20": (0, 1), "hf:checkpoint-100": (0, 1)}
    engines = {engine["id"]: engine for engine in found.facts["engines"]}
    assert engines["hf:checkpoint-20"]["swap_s"] > 0
    assert engines["hf:checkpoint-100"]["training"].items() >= {"step": 100, "epoch": 1.0, "max_steps": 100}.items()
    assert "3 checkpoints, checkpoint-10 to checkpoint-100" in (found.run_dir / "timeline.html").read_text("utf-8")
    assert {path.name for path in found.run_dir.glob("timeline*")} >= {"timeline.csv", "timeline_flips.csv", "timeline.svg"}
    assert f'href="{found.run_dir.name}/timeline.html"' in (found.run_dir.parent / "index.html").read_text("utf-8")
    for name in ("checkpoint-20", "checkpoint-100"):
        alone = run(Project(tmp_path / name), checkpoints / name)
        assert loaded(alone) == {f"hf:{name}": (1, 0)}
        assert texts(alone, f"hf:{name}") == texts(found, f"hf:{name}")


@pytest.mark.engine
def test_an_adapter_is_an_engine_of_its_own_on_its_warm_base(project: Project, checkpoints: Path, tmp_path: Path) -> None:
    found = run(project, checkpoints / "checkpoint-10", checkpoints / "lora")
    assert loaded(found) == {"hf:checkpoint-10": (1, 0), "hf:checkpoint-10+lora": (0, 1)}
    base, adapted = found.facts["engines"]
    assert adapted["base_path"] == str(checkpoints / "checkpoint-10")
    assert (base["settings"]["adapter"], adapted["settings"]["adapter"]["ranks"]) == (None, [1])
    assert adapted["base_fingerprint"] == base["fingerprint"]
    assert adapted["adapter_fingerprint"] == adapted["settings"]["adapter"]["fingerprint"]
    assert adapted["fingerprint"] not in (adapted["base_fingerprint"], adapted["adapter_fingerprint"])
    assert texts(found, "hf:checkpoint-10") != texts(found, "hf:checkpoint-10+lora")
    alone = run(Project(tmp_path / "alone"), checkpoints / "lora")
    assert texts(alone, "hf:checkpoint-10+lora") == texts(found, "hf:checkpoint-10+lora")


@pytest.mark.engine
def test_kinds_of_engines_do_not_take_turns(project: Project, checkpoints: Path) -> None:
    options = ("--dtype", "float32,bfloat16", *OPTIONS[2:])
    found = run(project, checkpoints / "checkpoint-10", checkpoints / "checkpoint-20", arguments=options)
    names = [f"hf:checkpoint-{step}@{dtype}" for dtype in ("float32", "bfloat16") for step in (10, 20)]
    assert loaded(found) == dict(zip(names, [(1, 0), (0, 1)] * 2, strict=True))


@pytest.mark.slow
def test_workers_swap_as_well(project: Project, checkpoints: Path) -> None:
    found = run(project, checkpoints, mode="n2")
    loads, swaps = (sum(column) for column in zip(*loaded(found).values(), strict=True))
    assert loads <= 2
    assert loads + swaps >= 3
    assert {row["outcome"] for row in found.rows} == {"pass"}


@pytest.mark.engine
def test_another_architecture_starts_cold_and_run_json_says_why(project: Project, checkpoints: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(checkpoints / "checkpoint-20", other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-4}))
    found = run(project, checkpoints / "checkpoint-10", other)
    assert loaded(found) == {"hf:checkpoint-10": (1, 0), "hf:other": (1, 0)}
    assert found.facts["engines"][1]["cold_because"] == [
        "hf:checkpoint-10 cannot take its weights: config.json differs in rms_norm_eps (1e-06, 0.0001)"
    ]


@pytest.mark.engine
def test_a_checkpoint_that_is_being_written_is_left_out_and_said_so(project: Project, checkpoints: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoints / "checkpoint-10", tmp_path / "run" / "checkpoint-10")
    half = tmp_path / "run" / "checkpoint-20"
    shutil.copytree(checkpoints / "checkpoint-20", half)
    (half / "model.safetensors").write_bytes((half / "model.safetensors").read_bytes()[:-4])
    found = run(project, tmp_path / "run")
    (notice,) = found.facts["notices"]
    assert f"checkpoint {half} is still being written" in notice
    assert f"evalharness: {notice}" in found.output
    assert set(loaded(found)) == {"hf:checkpoint-10"}


@pytest.mark.engine
def test_an_untrained_adapter_is_noticed_and_one_without_its_base_a_usage_error(project: Project, checkpoints: Path) -> None:
    name = "model.layers.0.self_attn.q_proj"
    tensors = {f"{name}.lora_A.weight": [[1.0] * 64], f"{name}.lora_B.weight": [[0.0]] * 64}
    folder = write_adapter(project.root / "zero", tensors, r=1, base="nobody/knows", layers_to_transform=0)
    refused = run(project, folder)
    assert (refused.exit_code, refused.opened_no_run) == (4, True)
    assert "or give its folder with --base-model PATH" in refused.output
    found = run(project, folder, arguments=(*OPTIONS, f"--base-model={checkpoints / 'checkpoint-10'}"))
    assert ["every B is zero" in notice for notice in found.facts["notices"]] == [True]


class FakeEngine:
    """Counts what the pool does with it."""

    were_changed = False

    def __init__(self, problem: str | None = None, failure: str | None = None) -> None:
        self.weights = self
        self.problem, self.failure, self.closed, self.swaps = problem, failure, 0, 0

    def why_not_swap(self, config: object) -> str | None:
        return self.problem

    def swap(self, config: object) -> None:
        self.swaps += 1
        if self.failure is not None:
            raise BackendError(self.failure)

    def close(self) -> None:
        self.closed += 1

    def describe(self) -> dict[str, Any]:
        return {}


def spec(name: str, backend: str = "hf", dtype: str | None = None) -> EngineSpec:
    return EngineSpec(f"{backend}:{name}", backend, name, name, dtype=dtype)


class TestPool:
    @pytest.fixture
    def opened(self, monkeypatch: pytest.MonkeyPatch) -> list[FakeEngine]:
        engines: list[FakeEngine] = []

        def open_one(*_: object) -> FakeEngine:
            engines.append(FakeEngine())
            return engines[-1]

        monkeypatch.setattr(engine_loading, "open_engine", open_one)
        return engines

    @pytest.fixture
    def pool(self, tmp_path: Path) -> EnginePool:
        return EnginePool(resolve({}, {}, tmp_path), print)

    def test_the_same_engine_is_handed_out_as_it_is_and_closed_once(self, pool: EnginePool, opened: list[FakeEngine]) -> None:
        engine, _ = pool.open(spec("a"))
        pool.give_back(spec("a"), engine)
        assert pool.open(spec("a")) == (engine, {"how": "kept"})
        pool.give_back(spec("a"), engine)
        pool.close()
        pool.close()
        assert (len(opened), opened[0].swaps, opened[0].closed) == (1, 0, 1)

    @pytest.mark.parametrize(
        ("problem", "failure", "is_changed", "after", "reason"),
        [
            pytest.param("too wide", None, False, spec("b"), "hf:a cannot take its weights: too wide", id="refused"),
            pytest.param(None, "gone", False, spec("b"), "the swap into hf:a failed: gone", id="failed"),
            pytest.param(None, None, True, spec("a"), "a test changed the weights of hf:a", id="changed"),
            pytest.param(None, None, True, spec("b"), "a test changed the weights of hf:a", id="changed before another"),
            pytest.param(None, None, False, spec("b", "vllm"), "the engine before, hf:a, is of another kind", id="backend"),
            pytest.param(None, None, False, spec("b", dtype="float16"), "the engine before, hf:a, is of another kind", id="dtype"),
        ],
    )
    def test_an_engine_that_cannot_swap_is_closed_before_the_next_starts(
        self, pool: EnginePool, opened: list[FakeEngine], problem: Any, failure: Any, is_changed: bool, after: EngineSpec, reason: str
    ) -> None:
        first: Any = FakeEngine(problem, failure)
        first.were_changed = is_changed
        pool.give_back(spec("a"), first)
        engine, opening = pool.open(after)
        assert [engine] == opened  # type: ignore[comparison-overlap]
        assert (opening["how"], opening["cold_because"], first.closed) == ("load", reason, 1)
        assert first.swaps == (failure is not None)

    def test_adapters_share_the_reading_of_their_base_and_a_write_while_it_lasts_is_seen(
        self, pool: EnginePool, opened: list[FakeEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        base = write(tmp_path / "base", {**GOOD, "model.safetensors": _weight("q_proj.weight", 6, 4)})
        folders = [write_adapter(tmp_path / name, lora("q_proj", 6, 4, seed=seed), base=base) for seed, name in enumerate("ab", 1)]
        read = []

        def hashed(files: Iterable[Path]) -> dict[Path, str]:
            found = hash_files(files)
            read.extend(found)
            if base / "model.safetensors" in found:  # a trainer writes meanwhile
                write_adapter(folders[0], lora("q_proj", 6, 4, seed=9), base=base)
            return found

        monkeypatch.setattr(identity, "hash_files", hashed)
        run_config = resolve({"model": [str(base), *map(str, folders)], "backend": ["hf"]}, {}, tmp_path)
        _, changed, kept = engine_specs(run_config, tmp_path)
        assert read.count(base / "model.safetensors") == 1
        kept.check_unchanged()
        with pytest.raises(CheckpointError, match="was written to, or removed, after the run had begun"):
            changed.check_unchanged()

    @pytest.mark.parametrize("part", ["base", "lora"])
    def test_a_checkpoint_that_was_written_to_since_the_run_began_is_not_taken_for_what_it_was(
        self, pool: EnginePool, opened: list[FakeEngine], tmp_path: Path, part: str
    ) -> None:
        base = write(tmp_path / "base", {**GOOD, "model.safetensors": _weight("q_proj.weight", 6, 4)})
        folder = write_adapter(tmp_path / "lora", lora("q_proj", 6, 4), base=base)
        run_config = resolve({"model": [str(folder)], "backend": ["hf"]}, {}, tmp_path)
        [adapted] = engine_specs(run_config, tmp_path)
        engine, _ = pool.open(adapted)
        weights = tmp_path / part / ("model.safetensors" if part == "base" else "adapter_model.safetensors")
        content = weights.read_bytes()
        weights.write_bytes(content)
        pool.open(adapted)  # the same bytes, written again
        weights.write_bytes(content[:-1] + b"\x7f")
        with pytest.raises(CheckpointError, match="lora was written to, or removed, after the run had begun"):
            pool.open(adapted)
        pool.give_back(adapted, engine)
        assert pool.open(adapted)[1] == {"how": "kept"}, "what is loaded stays"
        shutil.rmtree(tmp_path / part)
        with pytest.raises(CheckpointError, match="or removed"):
            pool.open(adapted)
        assert [each.closed for each in opened] == [0, 0, 1, 1]


def test_cached_answers_are_of_one_version_of_each_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = FakeEngine()
    run_config = resolve({}, {}, tmp_path)
    before = engine_loading.cache_identity(spec("a"), run_config, engine)
    assert before == engine_loading.cache_identity(spec("a"), run_config, engine)
    monkeypatch.setattr(engine_loading, "installed_versions", lambda packages: dict.fromkeys(packages, "0"))
    after = engine_loading.cache_identity(spec("a"), run_config, engine)
    assert before != after
    assert after["versions"].keys() >= {"evalharness", "peft", "pillow", "tokenizers"}


def test_cached_answers_say_nothing_of_options_that_are_off(tmp_path: Path) -> None:
    engine: Any = FakeEngine()
    off, drafted, invariant = (
        engine_loading.cache_identity(spec("a"), resolve(given, {}, tmp_path), engine)
        for given in ({}, {"draft_from": "latest"}, {"batch_invariant": True})
    )
    assert set(drafted) - set(off) == {"drafts"}
    assert set(invariant) - set(off) == {"batch_invariant"}
    assert "batch_invariant" not in off["options"]


def _weight(name: str, num_rows: int, num_columns: int) -> bytes:
    size = 4 * num_rows * num_columns
    head = json.dumps({name: {"dtype": "F32", "shape": [num_rows, num_columns], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(head)) + head + bytes(size)


def cached(found: Run) -> dict[str, list[bool]]:
    """By engine: of the rows in order, whether they came from the cache."""
    marks: dict[str, list[bool]] = {}
    for row in found.rows:
        marks.setdefault(row["engine"], []).append(row["generation"].get("cached", False))
    return marks


@pytest.mark.engine
def test_a_cache_serves_later_evals_of_the_same_weights_only(project: Project, checkpoints: Path, tmp_path: Path) -> None:
    found = run(
        project, checkpoints / "checkpoint-10", checkpoints / "checkpoint-20", checkpoints / "lora", arguments=(*OPTIONS, "--cache")
    )
    assert {engine: sum(marks) / len(marks) for engine, marks in cached(found).items()} == {
        "hf:checkpoint-10": 0.5, "hf:checkpoint-20": 0.5, "hf:checkpoint-10+lora": 0.5,
    }  # fmt: skip
    plain = run(Project(tmp_path / "plain"), checkpoints / "checkpoint-10", checkpoints / "checkpoint-20", checkpoints / "lora")
    assert not any(any(marks) for marks in cached(plain).values())
    for engine in cached(plain):
        assert texts(found, engine) == texts(plain, engine)


@pytest.mark.engine
def test_answers_on_disk_serve_the_next_run(project: Project, checkpoints: Path, tmp_path: Path) -> None:
    (project.root / "evalharness.toml").write_text(f'cache_dir = "{tmp_path / "kept"}"\n')
    first, second, without = (
        run(project, checkpoints / "checkpoint-10", arguments=(*OPTIONS, "--run-id", name, *more))
        for name, more in (("first", ()), ("second", ()), ("without", ("--no-cache",)))
    )
    [marks] = cached(second).values()
    assert all(marks)
    assert texts(first, "hf:checkpoint-10") == texts(second, "hf:checkpoint-10") == texts(without, "hf:checkpoint-10")
    assert "came from the cache of earlier answers" in (second.run_dir / "report.md").read_text()
    assert not any(cached(without)["hf:checkpoint-10"])
    assert [path.suffix for path in (tmp_path / "kept").iterdir()] == [".sqlite"]  # nothing beside it that a copy would lack
