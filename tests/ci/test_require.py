"""The checks of .ci/run: each must fail on what it is there for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.processes import python

ROOT = Path(__file__).parents[2]
CI = ROOT / ".ci"
CONFTEST = ROOT / "tests" / "conftest.py"


def answer(backend: str, case_id: str, *ids: int, **changes: Any) -> dict[str, Any]:
    whole = {"eval": "a", "test": "t", "checkpoint": "c", "backend": backend, "case_id": case_id, "outcome": "pass", "problem": None}
    return {**whole, "generation": {"token_ids": list(ids)}, **changes}


def checked(folder: Path, rows: list[dict[str, Any]], *backends: str) -> tuple[int, str]:
    for name in ("run.json", "report.md", "report.csv", "samples.csv"):
        (folder / name).touch()
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return python(CI / "require_answers.py", folder, *(backends or ("hf", "vllm")))


class TestAnswers:
    def test_the_same_tokens_on_both_backends_pass(self, tmp_path: Path) -> None:
        rows = [answer(backend, case_id, 1, 2, 3) for backend in ("hf", "vllm") for case_id in ("x", "y")]
        each = "hf: 2 cases, all answered\nvllm: 2 cases, all answered\n"
        assert checked(tmp_path, rows) == (0, f"{each}hf and vllm: 2 cases, the same tokens\n")

    @pytest.mark.parametrize("ids", [(1, 9, 3), (1, 2), (1, 2, 3, 4)], ids=["other", "shorter", "longer"])
    def test_one_different_token_fails(self, tmp_path: Path, ids: tuple[int, ...]) -> None:
        rows = [answer("hf", "x", 1, 2, 3), answer("hf", "y", 5), answer("vllm", "x", *ids), answer("vllm", "y", 5)]
        code, output = checked(tmp_path, rows)
        assert (code, "hf and vllm differ in 1 of 2 cases:\n  a::t::c::x: sample 0, token " in output) == (1, True)

    def test_all_samples_of_a_case_are_compared(self, tmp_path: Path) -> None:
        several = [{"token_ids": [1]}, {"token_ids": [2]}], [{"token_ids": [1]}, {"token_ids": [3]}]
        rows = [answer(name, "x", 1, generations=samples) for name, samples in zip(("hf", "vllm"), several, strict=True)]
        assert "sample 1, token 0: [2] or [3]" in checked(tmp_path, rows)[1]

    def test_a_case_of_one_backend_only_fails(self, tmp_path: Path) -> None:
        code, output = checked(tmp_path, [answer("hf", "x", 1), answer("hf", "y", 1), answer("vllm", "x", 1)])
        assert (code, "hf and vllm were not asked the same: [('a', 't', 'c', 'y')] of one only" in output) == (1, True)

    @pytest.mark.parametrize("made", [{"text": "x"}, {"token_ids": None}, {"token_ids": []}, None], ids=["absent", "null", "empty", "none"])
    def test_answers_without_token_ids_are_no_agreement(self, tmp_path: Path, made: dict[str, Any] | None) -> None:
        code, output = checked(tmp_path, [answer(backend, "x", generation=made) for backend in ("hf", "vllm")])
        assert (code, "answers without token ids" in output) == (1, True)

    def test_another_number_of_samples_fails(self, tmp_path: Path) -> None:
        several = [{"token_ids": [1]}, {"token_ids": [2]}], [{"token_ids": [1]}]
        rows = [answer(name, "x", 1, generations=samples) for name, samples in zip(("hf", "vllm"), several, strict=True)]
        assert "a::t::c::x: 2 or 1 samples" in checked(tmp_path, rows)[1]

    def test_a_run_without_its_reports_fails(self, tmp_path: Path) -> None:
        lacking = f"{tmp_path} lacks run.json, samples.jsonl, report.md, report.csv, samples.csv\n"
        assert python(CI / "require_answers.py", tmp_path, "hf", "vllm") == (1, lacking)

    @pytest.mark.parametrize("outcome", ["error", "invalid", "skip", "fail"])
    def test_a_case_without_an_answer_fails(self, tmp_path: Path, outcome: str) -> None:
        rows = [answer("hf", "x", 1), answer("vllm", "x", 1, outcome=outcome, problem="broken")]
        code, output = checked(tmp_path, rows)
        assert (code, f"on vllm the cases ended as {{'{outcome}': 1}}, not all in an answer: ['broken']" in output) == (1, True)


@pytest.mark.slow
class TestRan:
    def ran(self, folder: Path, tests: str, *arguments: str, groups: tuple[str, ...] = ("vllm",)) -> tuple[int, str]:
        """Run tests under the real conftest.py and return what the check says of their JUnit file."""
        (folder / "conftest.py").write_text(CONFTEST.read_text("utf-8"))
        (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    vllm: x\n    slow: x\n")
        (folder / "test_a.py").write_text("import pytest\n" + tests)
        finds_tests = {**os.environ, "PYTHONPATH": str(ROOT)}  # conftest.py imports from the folder that it is copied from
        options = ("-q", "-p", "no:cacheprovider", "--junitxml=out.xml", *arguments)
        code, output = python("-m", "pytest", *options, cwd=folder, env=finds_tests)
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return code, output
        return python(CI / "require_ran.py", folder / "out.xml", *groups)

    def test_those_with_the_marker_count_and_no_others(self, tmp_path: Path) -> None:
        tests = "@pytest.mark.vllm\ndef test_a(): pass\n\n@pytest.mark.parametrize('name', ['vllm'])\ndef test_vllm(name): pass\n"
        assert self.ran(tmp_path, tests) == (0, "1 tests of vllm ran, none was skipped\n")

    @pytest.mark.parametrize(
        "tests",
        [
            pytest.param("@pytest.mark.vllm\ndef test_b(): pytest.skip('no')\n", id="in-the-test"),
            pytest.param("@pytest.mark.vllm\n@pytest.mark.skip\ndef test_b(): pass\n", id="by-marker"),
            pytest.param("@pytest.fixture\ndef f(): pytest.skip('no')\n\n@pytest.mark.vllm\ndef test_b(f): pass\n", id="in-setup"),
            pytest.param("def test_b(): pytest.skip('vLLM is not installed')\n", id="by-reason"),
        ],
    )
    def test_one_skipped_fails(self, tmp_path: Path, tests: str) -> None:
        code, output = self.ran(tmp_path, "@pytest.mark.vllm\ndef test_a(): pass\n\n" + tests)
        assert (code, "1 tests of vllm were skipped:\n  test_a::test_b: " in output) == (1, True)

    def test_only_the_reason_of_a_skip_counts_not_its_file(self, tmp_path: Path) -> None:
        """As in tests/gpu/test_vllm_on_gpu.py: JUnit's text of a skip begins with the path."""
        folder = tmp_path / "vllm"
        folder.mkdir()
        tests = "@pytest.mark.vllm\ndef test_a(): pass\n\n@pytest.mark.skip(reason='needs a card')\ndef test_b(): pass\n"
        assert self.ran(folder, tests) == (0, "1 tests of vllm ran, none was skipped\n")

    def test_all_deselected_fails(self, tmp_path: Path) -> None:
        tests = "@pytest.mark.vllm\ndef test_a(): pass\n\ndef test_b(): pass\n"
        assert self.ran(tmp_path, tests, "-m", "not vllm") == (1, "no test of vllm ran\n")

    def test_an_engine_without_the_marker_is_refused(self, tmp_path: Path) -> None:
        code, output = self.ran(tmp_path, "def test_a(vllm_vlm_backend): pass\n")
        assert (code, "test_a.py::test_a takes a vLLM engine, so it needs the marker vllm" in output) == (1, True)

    def test_each_group_must_have_run(self, tmp_path: Path) -> None:
        tests = "@pytest.mark.vllm\ndef test_a(): pass\n\ndef test_b(request): request.node.user_properties.append(('starts', 'browser'))\n"
        said = "1 tests of vllm ran, none was skipped\n1 tests of browser ran, none was skipped\n"
        assert self.ran(tmp_path, tests, groups=("vllm", "browser")) == (0, said)
        code, output = self.ran(tmp_path, tests, "-k", "not test_b", groups=("vllm", "browser"))
        assert (code, "no test of browser ran" in output) == (1, True)

    def test_an_id_that_each_process_writes_otherwise_is_refused(self, tmp_path: Path) -> None:
        code, output = self.ran(tmp_path, "@pytest.mark.parametrize('x', [object()], ids=repr)\ndef test_a(x): pass\n")
        assert (code, "so workers cannot share it: give ids=" in output) == (pytest.ExitCode.TESTS_FAILED, True)
