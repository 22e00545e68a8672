"""A small project with evals of its own, on which the real pytest runs: in this process or in one of its own."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from _pytest.unraisableexception import gc_collect_iterations_key

import evalharness.pytest_plugin
from evalharness.cli import main
from tests import fast_tier

PLUGINS = ("-p", "evalharness.pytest_plugin")
TIMEOUT_S = 400  # where other test workers and other people keep the machine busy
MODES = ("no-xdist", "n0", pytest.param("n2", marks=pytest.mark.slow))
_ALWAYS = {"COLUMNS": "160", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
_IGNORED = ("-W", "ignore:Module already imported so cannot be rewritten")  # in this process the plugin is, one way or another
_FLAGS = {"no-xdist": (), "xdist": ("-p", "xdist"), "n0": ("-p", "xdist", "-n0"), "n2": ("-p", "xdist", "-n2")}

HEADER = """
import os, pytest
from evalharness import Case, GenerationOptions, TextGenerationRequest

def cases(data_dir):
    return [Case(id=f"c{i}", group=f"g{i % 2}", tags={"parity": "odd" if i % 2 else "even"}) for i in range(4)]

def ask(case):
    return TextGenerationRequest([{"role": "user", "content": f"ask {case.id}"}])

"""
MARK = HEADER + "pytestmark = pytest.mark.eval(cases=cases, request=ask)\n"
"""A head that is enough for an eval: four cases c0 to c3, each answered with `ask c0`…"""
PLAIN = MARK + "def test_s(case, generation): pass\n"
"""An eval whose four tests pass."""
RERUN = """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):  # as pytest-rerunfailures does it
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    runtestprotocol(item, nextitem=nextitem, log=False)
    item._initrequest()
    runtestprotocol(item, nextitem=nextitem, log=True)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
"""
"""A conftest.py that runs each test twice."""


def eval_module(text: str) -> str:
    """Return a module of the usual head and this text, which has the eval's mark."""
    return HEADER + text


@dataclass(frozen=True)
class Run:
    """What one pytest run left behind."""

    exit_code: int
    output: str
    duration_s: float
    root: Path
    run_id: str | None = None

    @cached_property
    def run_dir(self) -> Path:
        """The run's directory: the one that --run-id or --resume names, or the only one."""
        if self.run_id is not None:
            return self.root / "reports" / self.run_id
        (found,) = (path for path in (self.root / "reports").iterdir() if path.is_dir())
        return found

    @property
    def opened_no_run(self) -> bool:
        """Whether there is no run directory at all."""
        return not (self.root / "reports").exists()

    @cached_property
    def facts(self) -> dict[str, Any]:
        """run.json."""
        return json.loads((self.run_dir / "run.json").read_bytes())

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """samples.jsonl."""
        return [json.loads(line) for line in (self.run_dir / "samples.jsonl").read_bytes().splitlines()]

    @cached_property
    def journal(self) -> list[dict[str, Any]]:
        """All journals' lines."""
        files = sorted((self.run_dir / "journal").glob("*.jsonl"))
        return [json.loads(line) for path in files for line in path.read_bytes().splitlines()]

    @property
    def outcomes(self) -> dict[str, str]:
        """Outcome by `test/case`."""
        assert len({row["nodeid"] for row in self.rows}) == len(self.rows)
        return {f"{row['test']}/{row['case_id']}": row["outcome"] for row in self.rows}

    @property
    def counts(self) -> dict[str, int]:
        """How often each outcome was."""
        return dict(Counter(row["outcome"] for row in self.rows))

    def row(self, case_id: str, test: str | None = None) -> dict[str, Any]:
        """Return the one row of a case."""
        (found,) = [row for row in self.rows if row["case_id"] == case_id and test in (None, row["test"])]
        return found

    def gate(self, expression: str) -> dict[str, Any]:
        """Return one gate's verdict."""
        (found,) = [gate for gate in self.facts["gates"] if gate["expression"] == expression]
        return found

    def summary(self) -> str:
        """Return pytest's last line, without its ruler."""
        return self.output.rstrip().splitlines()[-1].strip("= ")


class Project:
    """A folder with eval modules; `run` starts pytest in it with the fake backend."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / "pytest.ini").write_text("[pytest]\n")

    def write(self, **files: str) -> Project:
        """Write Python modules by name."""
        for name, content in files.items():
            (self.root / f"{name}.py").write_text(textwrap.dedent(content), "utf-8")
        return self

    def take(self, other: Project) -> Project:
        """Copy all that is in another project into this one, its runs included, which takes a tenth of running them again."""
        shutil.copytree(other.root, self.root, symlinks=True, dirs_exist_ok=True)
        return self

    def script(self, *rows: Mapping[str, Any]) -> str:
        """Write the fake backend's answers; returns the file's name for --model."""
        (self.root / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "ascii")
        return "answers.jsonl"

    def run(self, *arguments: str, mode: str = "no-xdist", backend: str | None = "fake", apart: bool = False) -> Run:
        """Run pytest to its end; without workers in this process, which is much faster, unless it is to be `apart`.

        The controller of workers has a process of its own: conftest.py of tests about disks and descriptors breaks it for good.
        """
        if mode == "n2" or apart:
            with self.start(*arguments, mode=mode, backend=backend) as process:
                return self.wait(process, run_id=_run_id(arguments))
        return self.run_inline(*_FLAGS[mode], *arguments, backend=backend)

    def wait(self, process: subprocess.Popen[str], timeout_s: float = TIMEOUT_S, run_id: str | None = None) -> Run:
        """Return what a started run left, once it has ended by itself."""
        started = time.monotonic()
        output, _ = process.communicate(timeout=timeout_s)
        return Run(process.returncode, output, time.monotonic() - started, self.root, run_id)

    @contextlib.contextmanager
    def start(
        self, *arguments: str, mode: str = "no-xdist", backend: str | None = "fake", env: Mapping[str, str] | None = None
    ) -> Iterator[subprocess.Popen[str]]:
        """Start pytest in a process group of its own, which does not outlive the block."""
        if fast_tier.is_on():
            pytest.fail("this test starts pytest in a process of its own: mark it slow, so that it leaves the fast tier", pytrace=False)
        self._forget_bytecode()
        process = subprocess.Popen(
            self.command(*arguments, mode=mode, backend=backend),
            cwd=self.root,
            env=environment(**(env or {})),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def _forget_bytecode(self) -> None:
        """Remove what earlier runs compiled: a module written again within a second, as long as before, would be taken for that one."""
        for folder in list(self.root.rglob("__pycache__")):
            shutil.rmtree(folder, ignore_errors=True)  # a run that goes on may write there

    @staticmethod
    def command(*arguments: str, mode: str = "no-xdist", backend: str | None = "fake") -> list[str]:
        """Return the command line."""
        chosen = ("--backend", backend) if backend is not None else ()
        return [sys.executable, "-m", "pytest", *PLUGINS, *_FLAGS[mode], *chosen, *arguments]

    def run_inline(self, *arguments: str, backend: str | None = "fake", env: Mapping[str, str] | None = None, by_name: bool = False) -> Run:
        """Run pytest to its end in this process: for what needs no signals.

        The plugin is given as a module, or `by_name`: then pytest does not know its options when it looks for rootdir, and reads what all
        installed distributions offer, which takes a tenth of a small run.
        """
        flags, plugins = (PLUGINS, []) if by_name else ((), [evalharness.pytest_plugin])
        chosen = ("--backend", backend) if backend is not None else ()
        self._forget_bytecode()
        started = time.monotonic()
        with self._inside(env or {}) as output, pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["pytest", *chosen, *arguments])  # a worker of the tests' own session has no command
            code = pytest.main(["--capture=sys", *_IGNORED, *flags, *chosen, *arguments], [*plugins, _NoGarbageRounds])
        return Run(int(code), output.getvalue(), time.monotonic() - started, self.root, _run_id(arguments))

    def evalharness(self, *arguments: str) -> tuple[int, str]:
        """Run a command of evalharness in this process; returns its exit code and everything printed."""
        with self._inside({}) as output:
            code = main(list(arguments))
        return code, output.getvalue()

    @contextlib.contextmanager
    def _inside(self, env: Mapping[str, str]) -> Iterator[io.StringIO]:
        """Be in this folder, without what would steer a run from outside; yields what is printed."""
        output = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, _own_modules():
            for name in unwanted(os.environ):
                patch.delenv(name)
            for name, value in {**_ALWAYS, **env}.items():
                patch.setenv(name, value)
            patch.chdir(self.root)
            with warnings.catch_warnings(), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                warnings.resetwarnings()  # the tests' own filters are not the project's
                yield output


def wait_until(holds: Callable[[], object]) -> None:
    """Return as soon as it holds, however busy the machine is; what never comes is a failure."""
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def _run_id(arguments: Sequence[str]) -> str | None:
    named = [value for flag, value in itertools.pairwise(arguments) if flag in ("--run-id", "--resume")]
    return named[0] if named else None


class _NoGarbageRounds:
    """Spares a run in this process pytest's five rounds of the garbage collector, among all that other tests have imported.

    pytest's own `pytester` does the same.
    """

    @staticmethod
    def pytest_configure(config: pytest.Config) -> None:
        config.stash[gc_collect_iterations_key] = 0


@contextlib.contextmanager
def _own_modules() -> Iterator[None]:
    """Forget the test modules that a run imported: the next project has others of the same names."""
    before, path = set(sys.modules), list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - before:
            if name.startswith(("test_", "conftest", "helper_")):
                del sys.modules[name]


def unwanted(names: Mapping[str, str]) -> list[str]:
    """Return the variables that would steer a run from outside."""
    return [name for name in names if name.startswith(("EVALHARNESS_", "PYTEST_", "OMP_NUM_", "GITHUB_STEP_SUMMARY"))]


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a run."""
    inherited = {name: value for name, value in os.environ.items() if name not in unwanted(os.environ)}
    return {**inherited, **_ALWAYS, **more}
