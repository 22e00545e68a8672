"""Which run the commands take for a word: a path, a name in the report folder, `latest` and `latest~1`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from evalharness.api.errors import RecordError
from evalharness.cli import main
from evalharness.cli.framework import expand_run, find_run
from tests.analysis.comparison.runs import cases, run_dir
from tests.cli.conftest import Command

EVERY_COMMAND = [
    pytest.param(["report", "RUN"], id="report"),
    pytest.param(["summary", "RUN"], id="summary"),
    pytest.param(["export", "RUN", "--format", "jsonl"], id="export"),
    pytest.param(["show", "RUN", "c000"], id="show"),
    pytest.param(["bless", "RUN", "nightly"], id="bless"),
    pytest.param(["compare", "RUN", "reports/other"], id="compare-base"),
    pytest.param(["compare", "reports/other", "RUN"], id="compare-candidate"),
    pytest.param(["timeline", "RUN"], id="timeline"),
]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with runs `old`, then `other`, then `new`; it is the current folder."""
    monkeypatch.delenv("EVALHARNESS_REPORT_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").touch()
    for day, (name, fingerprint) in enumerate((("old", "f1"), ("other", "f2"), ("new", "f3")), 1):
        run_dir(tmp_path / "reports" / name, cases([1.0] * 30), {"fingerprint": fingerprint}, finished_at=f"2030-01-0{day}T00:00:00+00:00")
    return tmp_path


def with_run(arguments: Sequence[str], word: str) -> list[str]:
    return [word if argument == "RUN" else argument for argument in arguments]


class TestEveryCommand:
    @pytest.mark.parametrize("arguments", EVERY_COMMAND)
    @pytest.mark.parametrize("word", ["latest", "latest~2", "new"])
    def test_it_takes_the_latest_run_and_says_which_or_a_name_in_the_report_folder(
        self, root: Path, arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(with_run(arguments, word)) == 0
        meant = {"latest": "new", "latest~2": "old"}.get(word)
        assert capsys.readouterr().err == (f"evalharness: {word} is {root / 'reports' / meant}\n" if meant else "")

    @pytest.mark.parametrize("arguments", [*EVERY_COMMAND, pytest.param(["rescore", "RUN"], id="rescore")])
    def test_without_such_a_run_it_is_refused(self, root: Path, arguments: list[str], refused: Command) -> None:
        message = f"there is no run latest~3: {root / 'reports'} holds 3 complete runs; count back to latest~2 at most"
        assert message in " ".join(refused(*with_run(arguments, "latest~3")).split())


class TestComparing:
    @pytest.mark.parametrize(
        ("text", "side"),
        [
            pytest.param("latest", "{reports}/new", id="latest"),
            pytest.param("latest~1:hf:tiny", "{reports}/other:hf:tiny", id="latest-engine"),
            pytest.param("old", "{reports}/old", id="name"),
            pytest.param("old:tiny", "{reports}/old:tiny", id="name-engine"),
            pytest.param("reports/old:tiny", "reports/old:tiny", id="path-engine"),
            pytest.param("baselines/nightly.json", "baselines/nightly.json", id="baseline"),
            pytest.param("./nowhere:tiny", "./nowhere:tiny", id="path-that-is-not-there"),
        ],
    )
    def test_a_side_is_a_run_or_one_of_its_engines(self, root: Path, text: str, side: str) -> None:
        assert expand_run(text) == side.format(reports=root / "reports")

    def test_a_baseline_is_taken_by_its_name_where_no_run_has_it(self, root: Path) -> None:
        Path("baselines").mkdir()
        for name in ("nightly", "old"):
            (root / "baselines" / f"{name}.json").touch()
        assert [expand_run(word) for word in ("nightly", "old")] == [str(root / "baselines/nightly.json"), str(root / "reports/old")]

    @pytest.mark.parametrize("word", ["odl", "odl:tiny", "latst"])
    def test_a_name_that_no_run_has_is_told_from_those_that_there_are(self, root: Path, word: str, refused: Command) -> None:
        meant = "latest" if word == "latst" else "old"
        for arguments in (["compare", word, "new"], ["compare", "new", word], ["timeline", word], ["bless", word, "x"]):
            error = refused(*arguments)
            assert f"did you mean {meant!r}?" in error
            assert error.endswith("try: evalharness list\n")

    def test_the_run_before_and_the_latest_are_compared(self, root: Path, printed: Command) -> None:
        lines = printed("compare", "latest~1", "latest").splitlines()
        assert [line.split()[:2] for line in lines[:2]] == [["base", "other"], ["candidate", "new"]]
        assert (root / "reports" / "new" / "compare.html").is_file()

    def test_a_path_comes_before_a_name(self, root: Path) -> None:
        Path("old:tiny").mkdir()
        run_dir(root / "other", cases([1.0]))
        assert [expand_run(text) for text in ("old:tiny", "other", "other:tiny")] == ["old:tiny", "other", "other:tiny"]

    def test_a_folder_that_is_no_run_does_not_hide_the_run_of_its_name(self, root: Path) -> None:
        Path("other").mkdir()
        run = root / "reports" / "other"
        with pytest.raises(RecordError, match="^odl is not a run directory, .*; did you mean 'old'[?] give"):
            find_run("odl")
        assert (find_run("other"), find_run("./other")) == (run, Path("other"))
        assert [expand_run(text) for text in ("other", "other:tiny")] == [str(run), f"{run}:tiny"]


class TestFolder:
    def test_settings_and_environment_say_where_runs_are(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run_dir(root / "kept" / "k", cases([1.0]))
        run_dir(root / "given" / "g", cases([1.0]))
        Path("evalharness.toml").write_text('report_dir = "kept"\n')
        assert [find_run(word) for word in ("latest", "k")] == [root / "kept" / "k"] * 2
        monkeypatch.setenv("EVALHARNESS_REPORT_DIR", "given")
        assert find_run("latest") == root / "given" / "g"

    def test_it_is_that_of_the_project_in_a_folder_below(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        Path("evals").mkdir()
        monkeypatch.chdir("evals")
        assert find_run("latest") == root / "reports" / "new"


class TestWords:
    def test_latest_is_never_a_folder_of_that_name(self, root: Path) -> None:
        run_dir(root / "latest", cases([1.0]))
        assert find_run("latest") == root / "reports" / "new"
        assert find_run("./latest") == Path("latest")

    def test_a_name_that_is_none_is_refused(self, root: Path) -> None:
        with pytest.raises(RecordError, match="^nwe is not a run directory, and .*reports has no run of that name; did you mean 'new'"):
            find_run("nwe")

    def test_the_name_of_a_run_cannot_steer_the_terminal(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run_dir(root / "reports" / "\x1b[31mred", cases([1.0]), finished_at="2031-01-01T00:00:00+00:00")
        find_run("latest")
        assert capsys.readouterr().err.endswith("\\x1b[31mred\n")
