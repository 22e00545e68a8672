"""Which engines a run gets, what each of them does not take, and what is handed to a backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalharness.analysis.eval_functions import engines_to_compare
from evalharness.api.errors import CheckpointError
from evalharness.api.options import GenerationOptions, ModelLoadConfig, VllmEngineOptions
from evalharness.api.requests import TextGenerationRequest
from evalharness.backends.fake import FakeBackend
from evalharness.config import RunConfig, resolve
from evalharness.engine import build as engine_building
from evalharness.engine.build import build_engine
from evalharness.pytest_plugin.execution.engine_specs import EngineSpec, engine_specs
from evalharness.pytest_plugin.execution.engines import open_engine
from tests.checkpoints.test_info import GOOD, write
from tests.pytest_plugin.project import MARK, Project

TEST = "def test_s(case, generation): pass\n"


def config(root: Path, *models: str, file: str = "", **given: object) -> RunConfig:
    (root / "evalharness.toml").write_text(file)
    return resolve({**({"model": list(models)} if models else {}), **given}, {}, root, cwd=root)


def fakes(root: Path, *models: str, backend: str = "fake", **given: Any) -> list[EngineSpec]:
    return [spec for spec in engine_specs(config(root, *models, backend=[backend], **given), root) if spec.backend == "fake"]


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    for name in ("answers.jsonl", "more-answers.jsonl", "a/answers.jsonl", "a/echo.jsonl", "answers.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"text": "x"}\n')
    write(tmp_path / "ckpt", GOOD)
    return tmp_path


class TestFakeScripts:
    @pytest.mark.parametrize(
        ("models", "names"),
        [
            ([], ["echo"]),
            (["echo"], ["echo"]),
            (["answers.jsonl", "echo", "answers.jsonl"], ["answers", "echo"]),
            (["*.jsonl"], ["answers", "more-answers"]),
            (["**/echo*"], ["echo"]),
            (["echo", "a/echo.jsonl"], ["echo", "a_echo"]),
            (["answers.jsonl", "answers.json"], ["answers.jsonl", "answers.json"]),
        ],
        ids=lambda value: ",".join(value) or "none",
    )
    def test_each_is_one_engine_with_a_name_of_its_own(self, scripts: Path, models: list[str], names: list[str]) -> None:
        assert [spec.checkpoint for spec in fakes(scripts, *models)] == names

    @pytest.mark.parametrize(
        ("model", "problem"),
        [
            (
                "ckpt",
                "takes no checkpoint, but got the folder .*ckpt; give 'echo' or a JSONL file of answers or choose --backend hf or vllm",
            ),
            ("nowhere.jsonl", "got --model .*nowhere.jsonl, which is not a file; give 'echo' or a JSONL file of answers"),
            ("*.csv", r"got --model .*\*.csv, which is not a file"),
        ],
    )
    def test_all_else_is_refused(self, scripts: Path, model: str, problem: str) -> None:
        with pytest.raises(CheckpointError, match=problem):
            fakes(scripts, "answers.jsonl", model)

    def test_a_checkpoint_in_the_settings_or_beside_a_real_backend_leaves_the_fake_echoing(self, scripts: Path) -> None:
        assert [spec.checkpoint for spec in fakes(scripts, file="model = 'ckpt'")] == ["echo"]
        assert [spec.checkpoint for spec in fakes(scripts, "ckpt", backend="hf,fake")] == ["echo"]
        assert [spec.checkpoint for spec in fakes(scripts, file="model = 'answers.jsonl'")] == ["answers"]
        names = [spec.id for spec in fakes(scripts, "answers.jsonl", "a/answers.jsonl")]
        assert names == [f"fake:{scripts.name}_answers", "fake:a_answers"], "equal names in other folders are told apart"

    @pytest.mark.parametrize("model", ["nowhere.jsonl", "."])
    def test_a_refusal_is_a_usage_error(self, project: Project, model: str) -> None:
        run = project.write(test_a=MARK + TEST).run_inline("--model", model)
        assert run.exit_code == pytest.ExitCode.USAGE_ERROR
        assert "ERROR: backend 'fake'" in run.output
        assert run.opened_no_run


class TestChatTemplates:
    BARE = {**GOOD, "tokenizer_config.json": {}}  # noqa: RUF012

    @pytest.mark.parametrize("backend", ["hf", "vllm"])
    def test_a_checkpoint_without_one_is_told_of_before_anything_is_loaded(self, tmp_path: Path, backend: str) -> None:
        write(tmp_path / "base", self.BARE)
        said: list[str] = []
        assert [spec.id for spec in engine_specs(config(tmp_path, "base", backend=[backend]), tmp_path, said.append)] == [f"{backend}:base"]
        assert [sentence.partition("/base ")[2][:60] for sentence in said] == [
            "has no chat template, so only bare texts can be asked (Compl"
        ]

    @pytest.mark.parametrize("more", [{"tekken.json": {}}, {"tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["x.Y", None]}}}])
    def test_a_tokenizer_that_makes_its_own_is_not_judged_by_its_files(self, tmp_path: Path, more: dict[str, Any]) -> None:
        write(tmp_path / "own", {**self.BARE, **more})
        run = config(tmp_path, "own", trust_remote_code=True)
        said: list[str] = []
        assert [spec.id for spec in engine_specs(run, tmp_path, said.append)] == ["hf:own"]
        assert said == []


class TestMatrix:
    def test_each_engine_lists_the_options_that_it_does_not_take(self, scripts: Path) -> None:
        run = config(
            scripts, "ckpt", backend=["hf,vllm"], device="cpu", enforce_eager=True, max_new_tokens="5", file="attn_implementation='sdpa'"
        )
        assert {spec.id: spec.options_not_taken for spec in engine_specs(run, scripts)} == {
            "hf:ckpt": ("enforce_eager",),
            "vllm:ckpt": ("device", "attn_implementation"),
        }
        run = config(scripts, "ckpt", backend=["vllm"], fallback_backend="hf", device="cpu")
        assert [spec.options_not_taken for spec in engine_specs(run, scripts)] == [()], "what a fallback takes is taken"

    def test_a_spec_survives_json(self, scripts: Path) -> None:
        for spec in engine_specs(config(scripts, "ckpt", backend=["hf,fake"], device="cpu"), scripts):
            assert EngineSpec.from_json(spec.to_json()) == spec

    @pytest.mark.parametrize("asked", [None, True, False])
    def test_enforce_eager_reaches_the_backend_as_it_was_given(
        self, scripts: Path, monkeypatch: pytest.MonkeyPatch, asked: bool | None
    ) -> None:
        given: dict[str, Any] = {}
        monkeypatch.setattr(engine_building, "build_engine", lambda *_, **keywords: given.update(keywords))
        run = config(scripts, "ckpt", backend=["vllm"], enforce_eager=asked)
        open_engine(engine_specs(run, scripts)[0], run, print)
        assert given["vllm_options"].enforce_eager is asked


class TestContext:
    def test_max_model_len_holds_on_every_backend_and_run_json_lists_what_is_not_taken(self, project: Project) -> None:
        (project.root / "evalharness.toml").write_text("device = 'cpu'\n")
        run = project.write(test_a=MARK + TEST).run_inline("--max-model-len", "280")
        assert run.counts == {"invalid": 4}
        assert "exceed the context of 280" in run.rows[0]["problem"]
        (engine,) = run.facts["engines"]
        assert (engine["settings"]["max_model_len"], engine["options_not_taken"]) == (280, ["device"])

    def test_one_beyond_the_checkpoints_own_is_refused_and_nothing_stays_open(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        closed: list[str] = []

        class Small(FakeBackend):
            def __init__(self, *_: object) -> None:
                self._start(["x"], 100)

            def close(self) -> None:
                closed.append(self.name)

        monkeypatch.setattr(engine_building, "load_backend_class", lambda name: Small)
        with pytest.raises(ValueError, match="max_model_len 101 is more than the checkpoint's context of 100 tokens"):
            build_engine("hf", ModelLoadConfig(str(tmp_path)), vllm_options=VllmEngineOptions(max_model_len=101))
        assert closed == ["fake"]
        limited = build_engine("hf", ModelLoadConfig(str(tmp_path)), vllm_options=VllmEngineOptions(max_model_len=100))
        assert limited.describe()["max_model_len"] == 100


def test_several_dtypes_give_engines_of_their_own_that_are_compared_except_for_the_fake_backend(scripts: Path) -> None:
    specs = engine_specs(config(scripts, "ckpt", backend=["hf,fake"], dtype=["float32,bfloat16"]), scripts)
    engines = [("hf:ckpt@float32", "float32"), ("hf:ckpt@bfloat16", "bfloat16"), ("fake:echo", None)]
    assert [(spec.id, spec.dtype) for spec in specs] == engines
    assert engines_to_compare(spec.to_json() for spec in specs) == [["hf:ckpt@float32", "hf:ckpt@bfloat16"]]
    (spec,) = engine_specs(config(scripts, "ckpt", backend=["hf"], dtype=["bfloat16"]), scripts)
    assert (spec.id, spec.dtype) == ("hf:ckpt", "bfloat16"), "one changes no name"


def test_what_is_said_of_checkpoints_that_are_not_there_is_named(scripts: Path) -> None:
    notices: list[str] = []
    for given in ({"base_model": "ckpt"}, {"coordinates": ["ckp*=pixels", "base-*=unit", "norm1000"]}, {}):
        engine_specs(config(scripts, "ckpt", **given), scripts, notices.append)
    engine_specs(config(scripts, "ckpt", file="coordinates = 'base-*=unit'\nbase_model = 'ckpt'"), scripts, notices.append)
    assert notices == [
        f"--base-model {scripts / 'ckpt'} is not used: no checkpoint of this run is an adapter",
        "--coordinates base-*=unit matches no checkpoint of this run: ckpt",
    ]


def test_thinking_and_its_marks_reach_the_engine(tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").write_text('{"text": "<thought>2 and 2</thought>4"}\n')
    run = config(tmp_path, str(tmp_path / "answers.jsonl"), backend=["fake"], thinking=True, thinking_marks="<thought>,</thought>")
    told: list[str] = []
    with open_engine(engine_specs(run, tmp_path)[0], run, told.append) as engine:
        (result,) = engine.generate_text_batch([TextGenerationRequest([{"role": "user", "content": "?"}])], GenerationOptions())
        assert engine.describe()["enable_thinking"] is True
    assert (result.answer, told) == (
        "4",
        ["thinking was asked for, but the chat template does not know enable_thinking: the prompts are as without it"],
    )
