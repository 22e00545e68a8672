"""Secrets planted wherever a user may have them, and every byte that a run writes searched for them."""

from __future__ import annotations

import html
import json
import os
import subprocess
import sys
from collections import UserDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from evalharness.api.redaction import Redactor, redactor, remember_options, remember_values
from evalharness.cli import main
from tests.growth import assert_linear
from tests.pytest_plugin.project import HEADER, MODES, Project, environment

ENV = {
    "HF_TOKEN": "hf_aBcDeFgHiJkLmNoPqRsTuVwXyZ012345",
    "OPENAI_API_KEY": "sk-proj-0123456789abcdefABCDEF",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
    "MY_SERVICE_PASSWORD": 'p"ss\\wörd-1',
    "DATABASE_URL": "postgres://me:db-pass-77@host/db",
    "PYTEST_ADDOPTS": "--x-api-key=addopts-secret-1 -p no:cacheprovider",
}
PLANTED = [
    *(value for name, value in ENV.items() if name not in ("DATABASE_URL", "PYTEST_ADDOPTS")),
    "db-pass-77", "addopts-secret-1", "cli-secret-2", "ini-secret-3", "remote-pass-4", "url-pass-5", "query-secret-6", "bearer-secret-7"
]  # fmt: skip

CONFTEST = """
def pytest_addoption(parser):
    for name in ("--x-api-key", "--x-token", "--x-secret"):
        parser.addoption(name)
"""
EVAL = (
    HEADER
    + """
SECRETS = [os.environ[name] for name in ("HF_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_SERVICE_PASSWORD", "DATABASE_URL")]
SECRETS += ["addopts-secret-1", "cli-secret-2", "ini-secret-3"]

def ask(case):
    if case.id == "c3":
        raise RuntimeError("GET https://me:url-pass-5@host/x?api_key=query-secret-6 failed; Authorization: Bearer bearer-secret-7")
    return TextGenerationRequest([{"role": "user", "content": f"ask {case.id} {SECRETS}"}])

pytestmark = pytest.mark.eval(
    cases=cases, request=ask, tables=lambda rows: {"T": [{"secret": str(SECRETS)}]},
    outputs=lambda rows, target: (target.folder / "out.txt").write_text(str(rows)),
)

@pytest.mark.gate("x >= 0")
def test_gated(case, generation, score, details):
    print(SECRETS)
    score(x=1)
    details(secret=SECRETS, env=dict(os.environ))
    assert case.id != "c1", f"{SECRETS} https://me:url-pass-5@host"

def test_plain(case, generation, record_property):
    record_property("token", SECRETS[0])
    assert case.id != "c1", SECRETS

def test_skipped(case, generation):
    pytest.skip(f"no {SECRETS}")
"""
)


ORDINARY = """
import os, pytest

@pytest.mark.parametrize("given", [os.environ["OPENAI_API_KEY"]])
def test_of_somebody_else(given, record_property):
    print(given)
    record_property("url", "https://me:url-pass-5@host")
    assert not given, f"{given} Bearer bearer-secret-7"

def test_skipped_by_somebody_else():
    pytest.skip(os.environ["HF_TOKEN"])
"""


def planted(project: Project) -> Project:
    project.write(conftest=CONFTEST, test_a=EVAL, test_b=ORDINARY)
    (project.root / "pytest.ini").write_text("[pytest]\naddopts = --x-secret=ini-secret-3\n")
    for command in (["init", "-q"], ["remote", "add", "origin", "https://me:remote-pass-4@host/x.git"]):
        subprocess.run(["git", *command], cwd=project.root, check=True, capture_output=True, timeout=300)
    return project


def leaks(folder: Path) -> list[str]:
    """Return every file below a folder that has a planted secret, as it is or as JSON, XML or HTML write it."""
    leaking = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            for secret in PLANTED:
                forms = {secret, json.dumps(secret)[1:-1], secret.replace('"', "&quot;"), secret.replace('"', "&#34;")}
                if any(form.encode("utf-8") in content for form in forms):
                    leaking.append(f"{path.relative_to(folder)}: {secret}")
    return leaking


def test_a_leak_is_found_in_every_form(tmp_path: Path) -> None:
    secret = ENV["MY_SERVICE_PASSWORD"]
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a").write_text(f"x {secret}")
    (tmp_path / "sub/b").write_text(json.dumps([secret]))
    (tmp_path / "sub/c").write_text(html.escape(secret))
    (tmp_path / "sub/d").write_text("p ss")
    assert leaks(tmp_path) == [f"sub/{name}: {secret}" for name in "abc"]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return planted(Project(tmp_path / "project"))


def test_a_secret_that_changes_is_known_as_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("first-key-0123", "other-key-4567"):
        monkeypatch.setenv("EVALHARNESS_API_KEY", key)
        assert redactor().text(f"who is {key}?") == "who is [EVALHARNESS_API_KEY hidden]?"
    monkeypatch.setenv("A_PLACE", "here")
    redactor()
    monkeypatch.delenv("A_PLACE")
    monkeypatch.setenv("X_API_KEY", "new-key-0123")
    assert redactor().text("who is new-key-0123?") == "who is [X_API_KEY hidden]?"
    for address in ("http://store.example", "http://me:pass-0123@store.example"):
        monkeypatch.setenv("STORE", address)
        known = redactor()
    assert "pass-0123" not in known.text("who is pass-0123?")
    monkeypatch.setenv("SOME_ADDRESS", "")
    redactor()
    monkeypatch.setenv("SOME_ADDRESS", "postgres://me:pässword-9@host/db")
    assert redactor().known("with pässword-9") == "with [password in SOME_ADDRESS hidden]"


def test_a_variable_that_goes_while_the_environment_is_read_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Changing(UserDict[str, str]):
        """A name that was just there has no value any more."""

        def __iter__(self) -> Iterator[str]:
            return iter([*self.data, "GONE_TOKEN"])

    monkeypatch.setattr(os, "environ", Changing({"A_API_KEY": "q7w9-alpha"}))
    assert redactor().known("q7w9-alpha") == "[A_API_KEY hidden]"


def test_answers_are_written_while_pytest_names_one_test_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generations are journalled by another thread than that of the tests, which changes the environment for each of them."""
    monkeypatch.setenv("A_API_KEY", "q7w9-alpha")
    switched_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as pool:
            written = pool.submit(lambda: [redactor().known("q7w9-alpha") for _ in range(6000)])
            while not written.done():
                os.environ["OF_THIS_TEST"] = "1"
                del os.environ["OF_THIS_TEST"]
    finally:
        sys.setswitchinterval(switched_s)
    assert set(written.result()) == {"[A_API_KEY hidden]"}


def test_nothing_is_made_anew_for_each_test(monkeypatch: pytest.MonkeyPatch) -> None:
    made = redactor()
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "test_a.py::test_other (call)")
    assert redactor() is made
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    assert redactor() is made


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES[::2])
def test_no_secret_is_written_anywhere(project: Project, mode: str) -> None:
    command = project.command("--x-token", "cli-secret-2", "--run-id", "a", f"--junitxml={project.root}/reports/junit.xml", mode=mode)
    env = environment(**ENV, GITHUB_STEP_SUMMARY=str(project.root / "reports/summary.md"))
    (project.root / "reports").mkdir()
    done = subprocess.run(command, cwd=project.root, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert (project.root / "reports/a/samples.jsonl").is_file(), done.stdout + done.stderr
    assert "hidden]" in (project.root / "reports/a/samples.jsonl").read_text()
    junit = (project.root / "reports/junit.xml").read_text()
    assert "[HF_TOKEN hidden]" in junit
    assert "test_of_somebody_else[[OPENAI_API_KEY hidden]]" in junit
    assert main(["export", str(project.root / "reports/a"), "--format", "jsonl"]) == main(["report", str(project.root / "reports/a")]) == 0
    assert leaks(project.root / "reports") == []
    rows = [json.loads(line) for line in (project.root / "reports/a/samples.jsonl").read_text().splitlines()]
    assert {row["outcome"] for row in rows} == {"pass", "miss", "fail", "skip", "error"}


@pytest.fixture
def _forgotten() -> object:
    yield None
    remember_options([])


@pytest.mark.usefixtures("_forgotten")
class TestRedactor:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            pytest.param("https://me:pw@host/x", "https://…@host/x", id="url"),
            pytest.param("https://token@host/x", "https://…@host/x", id="url-user"),
            pytest.param("/cwd/https:/me:pw@host/x", "/cwd/https:/…@host/x", id="url-as-path"),
            pytest.param("GET /x?a=1&api_key=abc&b=2", "GET /x?a=1&api_key=…&b=2", id="query"),
            pytest.param("Authorization: Bearer abcdefgh12", "Authorization: Bearer …", id="bearer"),
            pytest.param("{'Authorization': 'Basic YWJjZGVm'}", "{'Authorization': 'Basic …'}", id="basic"),
            pytest.param("curl -H 'Bearer a1b2c3d4e5'", "curl -H 'Bearer …'", id="bearer-alone"),
            pytest.param("basic knowledge of bearer instruments", None, id="words"),
            pytest.param("hf_0123456789abcdefghij is it", "… is it", id="hugging-face"),
            pytest.param("hf_stopping_criteria(prompt_lengths), hf_logits_processor", None, id="hooks"),
            pytest.param("hf_abcdefghijklmnopqrstuV and hf_abcdefghijklmnopqr-st", "… and …", id="hugging-face-like-a-hook"),
            pytest.param("AKIAABCDEFGHIJKLMNOP", "…", id="aws"),
            pytest.param("mail me@host.org, 12:30@noon, key=value, sk-learn", None, id="nothing"),
        ],
    )
    def test_what_looks_like_a_secret_is_hidden(self, text: str, shown: str | None) -> None:
        assert Redactor({}).text(text) == (text if shown is None else shown)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            pytest.param("OPENAI_API_KEY", "EMPTY", id="short"),
            pytest.param("OPENAI_API_KEY", "not-needed", id="placeholder"),
            pytest.param("SOME_TOKEN", "12345678", id="number"),
            pytest.param("SSH_AUTH_SOCK", "/run/agent.123", id="path"),
            pytest.param("TOKENIZERS_PARALLELISM", "a1b2c3d4", id="tokenizers"),
            pytest.param("EVALHARNESS_MAX_NEW_TOKENS", "a1b2c3d4", id="tokens"),
            pytest.param("KEYBOARD", "a1b2c3d4", id="keyboard"),
            pytest.param("PASS_LABEL", "Verdict: pass", id="spaces"),
            pytest.param("PASS_LABEL", "verdict-passed-2024", id="words"),
            pytest.param("EOS_TOKEN", "<|im_end|>", id="special-token"),
            pytest.param("EOS_TOKEN", "im_end_a1b2c3d4e5", id="name-of-a-special-token"),
            pytest.param("STOP_KEY", "answer:", id="stop"),
            pytest.param("HF_TOKEN", "<|endoftext|>", id="special-token-of-a-key"),
            pytest.param("OPENAI_API_KEY", "Verdict: pass 1", id="spaces-of-a-key"),
            pytest.param("DB_PASSWORD", "postgres", id="word"),
            pytest.param("AUTH", "label-1", id="auth"),
        ],
    )
    def test_what_is_no_secret_stays(self, name: str, value: str) -> None:
        assert Redactor({name: value}).known(f"x {value} y") == f"x {value} y"

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            pytest.param("HF_TOKEN", "hf_aBcDeFgHiJkLmNoPqRsTuVwXyZ", id="hugging-face"),
            pytest.param("EVALHARNESS_API_KEY", "token-abc123", id="key-of-a-server"),
            pytest.param("EVALHARNESS_API_KEY", "mysupersecretkey", id="key-of-letters"),
            pytest.param("DB_PASSWORD", "correct-horse-battery", id="password-of-words"),
            pytest.param("MY_TOKEN", "k3J9xQ2mZ7pL", id="random"),
            pytest.param("THEIR_AUTH", "sk-abcdefghijklmnop", id="form-of-a-key"),
            pytest.param("URL", "https://me:pass77word@host", id="url"),
        ],
    )
    def test_what_is_secret_by_its_source_or_its_form_is_known(self, name: str, value: str) -> None:
        secret = "pass77word" if name == "URL" else value
        assert secret not in Redactor({name: value}).known(f"x {secret} y")

    def test_the_file_of_hugging_faces_token_is_known(self, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("hf_aBcDeFgHiJkLmNoPqRsTuVwXyZ\n")
        hide = Redactor({"HF_HOME": str(tmp_path)})
        assert hide.known("hf_aBcDeFgHiJkLmNoPqRsTuVwXyZ") == "[Hugging Face's token hidden]"

    def test_secrets_of_a_table_of_settings_are_hidden_and_known(self) -> None:
        options = {"hf_token": "abc123", "hf_overrides": {"api_key": "def456"}, "eos_token": "<|end|>7", "seed": 1}
        shown = {"hf_token": "…", "hf_overrides": {"api_key": "…"}, "eos_token": "<|end|>7", "seed": 1}
        assert Redactor({}).data({"engine_option": options}) == {"engine_option": shown}
        assert Redactor({}).text("it must be a table, got 'hf_token=secret'") == "it must be a table, got 'hf_token=…'"
        remember_values(options.items())
        assert "abc123" not in Redactor({}).known("vllm: abc123 def456")
        assert "def456" not in Redactor({}).known("vllm: abc123 def456")

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "piece", ["a", "://a", ":/:", "?a_", "&key", "authorization : ", "Bearer ", "bearer  a", "sk-", "hf_", "\x1b[31m", "="]
    )
    def test_long_texts_take_time_by_their_length(self, piece: str) -> None:
        assert_linear(Redactor({"X_API_KEY": "abc123"}).text, piece * (1_000_000 // len(piece)))

    def test_json_stays_json_and_a_longer_secret_is_hidden_whole(self) -> None:
        hide = Redactor({"A_API_KEY": "abc123", "B_API_KEY": 'abc123"456'})
        assert json.loads(hide.json_line(json.dumps({"x": 'abc123"456', "y": "abc123"}))) == {
            "x": "[B_API_KEY hidden]",
            "y": "[A_API_KEY hidden]",
        }

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--x-token", "abc123"],
            ["--x-token=abc123"],
            ["-o", "my_secret=abc123"],
            ["-omy_secret=abc123"],
            ["--override-ini=my_key=abc123"],
            ["--engine-option=hf_token=abc123"],
            ["--engine-option", "hf_token=abc123"],
        ],
    )
    def test_values_of_secret_options_are_known(self, arguments: list[str]) -> None:
        remember_options(arguments)
        assert "abc123" not in Redactor({}).known("x abc123")

    def test_a_crash_of_a_command_shows_none(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def broken(run_dir: Path) -> bool:
            raise ZeroDivisionError("https://me:pw-123@host")

        monkeypatch.setattr("evalharness.report.writing.rebuild_run", broken)
        assert main(["report", str(tmp_path)]) == 10
        assert "pw-123" not in capsys.readouterr().err
