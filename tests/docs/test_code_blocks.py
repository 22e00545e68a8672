"""Every block of code in the documentation runs, or is at least what its tool takes.

Languages of blocks: `python`, `bash`, `console` (commands with what they print), `json`, `toml`, `yaml`, and `text` for what no tool reads.
Python runs here with the backend `fake`, or, where it needs a model, in the test that `RUN_BY` names.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from PIL import Image

from evalharness.cli import group
from evalharness.config.options import ARGUMENTS
from tests.docs.pages import PAGES, ROOT, Block, blocks, without_blocks
from tests.pytest_plugin.project import Project

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RUN_BY = {
    "README.md": "tests/docs/test_readme.py",
    "docs/backends.md": "tests/third_party_backend/test_contract.py",
    "docs/from_lm_eval.md": "tests/public/test_from_lm_eval.py",
    "docs/many_machines.md": "tests/docs/test_many_machines.py",
    "docs/other_interfaces.md": "tests/docs/test_other_interfaces.py",
    "docs/scoring.md": "tests/backends/hf/test_scoring.py",
    "docs/training_loops.md": "tests/docs/test_training_loops.py",
    "docs/other_tools.md": "tests/report/test_notebook.py",
}
"""Pages whose Python runs elsewhere."""
HERE = [block for block in blocks("python") if block.page not in RUN_BY]
EVALS = [block for block in HERE if "pytest.mark.eval(" in block.text and "def test_" in block.text]
SMALLEST = next(block for block in EVALS if block.page == "docs/writing_evals.md")
RESCORED = [block for block in HERE if "def test_" in block.text and block not in EVALS and "(engine)" not in block.text]
PLAIN = [block for block in HERE if "(engine)" in block.text]
SCRIPTS = [block for block in HERE if "def test_" not in block.text]


def test_every_block_says_its_language() -> None:
    assert {block.language for block in blocks()} == {"python", "bash", "console", "json", "toml", "yaml", "text"}
    indented = re.compile(r"\n\n {4}\S")
    assert [page for page in PAGES if page != "CHANGELOG.md" and indented.search(without_blocks(page))] == []
    assert all((ROOT / test).is_file() for test in RUN_BY.values())


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with every eval of the pages, and the files that they read."""
    project = Project(tmp_path_factory.mktemp("blocks"))
    data = project.root / "data"
    data.mkdir()
    (data / "questions.csv").write_text("id,document,topic,answer\nWhy?,d1,causes,Because\n")
    rows = [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(6)]
    (data / "train.jsonl").write_text("\n".join(map(json.dumps, rows[:4])))
    more = {"document": "d1", "subject": "art", "image": "white.png"}
    (data / "test.jsonl").write_text("\n".join(json.dumps({"qid": f"q{n}", **rows[n], **more}) for n in (4, 5)))
    (project.root / "verdicts.csv").write_text("case_id,good\nFrance,yes\nJapan,yes\n")
    (project.root / "judge.jsonl").write_text('{"text": "4"}\n')
    Image.new("RGB", (8, 8)).save(data / "white.png")
    any_text = {"text": "Three", "logprobs": -1.0}
    project.script({"contains": "capital of", "text": "Paris"}, {"contains": "set_timer", "text": "No."}, any_text)
    return project


@pytest.mark.parametrize("block", [*EVALS, *PLAIN], ids=str)
def test_an_eval_of_the_pages_runs(block: Block, project: Project) -> None:
    name = f"test_{block.page.removesuffix('.md').replace('/', '_')}_{block.number}"
    project.write(**{name: block.text})
    model = "answers.jsonl" if "structured" in block.text or "ask_choices" in block.text else "echo"
    run = project.run(f"{name}.py", "--model", model, "--run-id", name)
    assert run.exit_code in (0, 1), run.output
    assert set(run.counts) <= {"pass", "miss", "fail"}, run.output
    assert run.rows
    assert not run.facts["problems"]
    for gate in run.facts.get("gates", []):
        assert gate["value"] is not None, gate


@pytest.mark.parametrize("block", RESCORED, ids=str)
def test_a_module_that_judges_stored_generations_rescores_a_run(block: Block, project: Project) -> None:
    project.write(test_stored=SMALLEST.text, judging=block.text)
    run_id = f"stored-{block.number}"
    project.run("test_stored.py", "--model", "echo", "--run-id", run_id)
    code, printed = project.evalharness("rescore", run_id, "--tests", "judging.py", "--run-id", f"{run_id}-again")
    assert code == 0, printed


@pytest.mark.parametrize("block", SCRIPTS, ids=str)
def test_a_script_of_the_pages_runs(block: Block) -> None:
    exec(compile(block.text.replace('"hf"', '"fake"').replace("path/to/checkpoint", "echo"), str(block), "exec"), {})


@pytest.mark.parametrize("block", blocks("json", "toml", "yaml"), ids=str)
def test_data_can_be_read(block: Block) -> None:
    if block.language == "toml":
        tomllib.loads(block.text)
    elif block.language == "yaml":
        pytest.importorskip("yaml").safe_load(block.text)  # brought by engines and by Ray
    else:
        assert all(isinstance(json.loads(line), dict) for line in block.text.splitlines())


SHOWN = [block for block in blocks("console") if re.match(r"\$ evalharness (init|run|generate --backend fake) ", block.text)]


@pytest.mark.parametrize("block", SHOWN, ids=str)
def test_a_command_that_needs_no_run_prints_what_is_shown(block: Block, tmp_path: Path) -> None:
    line, *shown = block.text.splitlines()
    _, printed = Project(tmp_path).evalharness(*shlex.split(line.removeprefix("$ evalharness ")))
    assert [one for one in shown if one not in printed.splitlines() and not one.startswith("time ")] == [], printed


def commands(page: str) -> Iterator[str]:
    """Yield each command line of a page, of its blocks and in its text, that starts pytest or evalharness.

    Left out: those that show how a wrong one is refused.
    """
    texts = [block.text for block in blocks("bash", "console", "text") if block.page == page]
    found = [line for text in texts for line in re.sub(r"^\$ .*\n(?=evalharness: error)", "", text, flags=re.MULTILINE).splitlines()]
    found += re.findall(r"`((?:pytest|evalharness) [^`]+)`", without_blocks(page))
    for line in found:
        for part in re.split(r" && |; | \| ", re.sub(r"\s+#.*", "", line.removeprefix("$ "))):
            match = re.match(r"(?:\w+=\S+ |exec |flock \S+ \S+ |\S*python -m )*((?:pytest|evalharness)(?: .*)?)$", part)
            if match and not re.search(r"[{…]|-> ", match[1]):
                yield match[1].rstrip("\\")


COMMANDS = {page: sorted(set(commands(page))) for page in PAGES}


def flags(words: list[str]) -> set[str]:
    """Return the options among the words of a command line; `-n2` is `-n`."""
    return {re.sub(r"^(-[nk])\d+$", r"\1", word.partition("=")[0]) for word in words if re.match(r"--?[a-zA-Z]", word)}


def unknown_to_evalharness(words: list[str]) -> set[str]:
    """Return what `evalharness` would not take: a command, an option, or a choice of an option."""
    command = group.get_command(click.Context(group), words[0])
    if command is None:
        return {words[0]}
    words = words[: words.index("--")] if "--" in words else words
    choices = {flag: set(one.type.choices) for one in command.params if isinstance(one.type, click.Choice) for flag in one.opts}
    wrong = {value for flag, value in itertools.pairwise(words) if not set(value.split("|")) <= choices.get(flag, set(value.split("|")))}
    return (flags(words) | wrong) - {flag for one in command.params for flag in one.opts} - {"--help"}


@pytest.mark.parametrize("page", [page for page in PAGES if COMMANDS[page]])
def test_commands_of_a_page_have_options_that_exist(page: str, pytestconfig: pytest.Config) -> None:
    parser = pytestconfig._parser
    options = {flag for part in (parser._anonymous, *parser._groups) for option in part.options for flag in option.names()}
    options |= {option.flag for option in ARGUMENTS} | {"-n", "--help"}
    unknown = {}
    for line in COMMANDS[page]:
        program, *words = shlex.split(re.sub(r"[\"']?\$\{?\w[^ ]*", "VALUE", line))
        if program == "pytest":
            unknown[line] = flags(words) - options
        elif words and re.match(r"[a-z]", words[0]):
            unknown[line] = unknown_to_evalharness(words)
    assert {line: names for line, names in unknown.items() if names} == {}


def test_there_are_commands_to_check() -> None:
    assert len(SHOWN) >= 3
    assert sum(map(len, COMMANDS.values())) > 80
    assert unknown_to_evalharness(["init", "--template", "jsn", "--modle", "x"]) == {"jsn", "--modle"}
