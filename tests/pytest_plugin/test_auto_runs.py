"""`--backend auto` in runs: chosen once, recorded, and kept by a resumed run. Real probes, real tiny checkpoints."""

from __future__ import annotations

from pathlib import Path

from evalharness.config import resolve
from evalharness.hardware.auto_backend import Chosen
from evalharness.pytest_plugin.execution.engine_specs import EngineSpec, choices_of_auto, engine_specs
from tests.checkpoints.test_info import GOOD, write
from tests.pytest_plugin.project import MARK, Project

TEST = "def test_s(case, generation, score): score(n=len(generation.text))\n"


def test_auto_on_a_cpu_takes_hf_and_records_it(project: Project, tiny_vlm_checkpoint: Path) -> None:
    given = [f"--model={tiny_vlm_checkpoint}", "--devices=cpu", "--dtype=float32", "--max-new-tokens=4"]
    found = project.write(test_a=MARK + TEST).run(*given, "--run-id=r", backend="auto")
    name = tiny_vlm_checkpoint.name
    why = "it is to run on the CPU (--devices cpu), and transformers 5"
    assert f"auto chose hf for {name}: {why}" in found.output
    [engine] = found.facts["engines"]
    assert (engine["id"], engine["backend"], engine["chosen"].startswith(why)) == (f"hf:{name}", "hf", True)
    assert found.facts["config"]["backend"] == {"value": ["auto"], "origin": "command line"}
    assert {row["backend"] for row in found.rows} == {"hf"}
    assert f"`--backend auto` chose hf:{name}: {why}" in (found.run_dir / "report.md").read_text("utf-8").replace("\\", "")
    again = project.run("--resume=r", given[0], backend=None)
    assert (again.exit_code, f"auto chose hf for {name}: {why}" in again.output) == (0, True)


def test_a_resumed_run_keeps_what_auto_took(tmp_path: Path) -> None:
    folder = write(tmp_path / "ckpt", GOOD)
    run = resolve({"backend": ["auto"], "model": [str(folder)]}, {}, tmp_path, cwd=tmp_path)
    [spec] = engine_specs(run, tmp_path, chosen={str(folder): Chosen("vllm", "there is a GPU")})
    assert (spec.id, spec.chosen) == ("vllm:ckpt", "there is a GPU")
    assert EngineSpec.from_json(spec.to_json()) == spec


def test_equal_choices_are_told_together() -> None:
    specs = [EngineSpec(f"{backend}:{name}", backend, name, name, chosen=why) for backend, name, why in
             [("hf", "a", "no GPU"), ("hf", "b", "no GPU"), ("vllm", "c", "it can")]]  # fmt: skip
    assert list(choices_of_auto(specs)) == ["auto chose hf for a, b: no GPU", "auto chose vllm for c: it can"]
    assert list(choices_of_auto([EngineSpec("hf:a", "hf", "a", "a")])) == []
