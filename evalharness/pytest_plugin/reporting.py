"""What the reporting process shows and collects: what will run, misses, crashes, and why a session ends early.

Reports of eval tests quote generated text, which may control a terminal, flood it, or break xdist; `make_safe` changes them before they
leave.
"""

from __future__ import annotations

import copy
import errno
import html
import re
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

from evalharness.analysis.judge import why_absent
from evalharness.api.checks import any_text
from evalharness.api.errors import BROKEN, RecordError
from evalharness.api.garbage import collector
from evalharness.api.redaction import redactor
from evalharness.pytest_plugin._pytest_internals import change_last_line, change_texts, terminal_width
from evalharness.pytest_plugin.execution.engine_specs import choices_of_auto
from evalharness.pytest_plugin.failures import shorten
from evalharness.pytest_plugin.last_screen import EqualFailures, darken_last_line, write_lines, write_places
from evalharness.pytest_plugin.options import asked_on_command_line
from evalharness.pytest_plugin.outcomes import CANNOT_GO_ON
from evalharness.report.text import plural, terminal_text
from evalharness.runs.partial import NOT_ASKED, part_texts
from evalharness.runs.run_file import read_run
from evalharness.runs.samples import NOT_RUN
from evalharness.runs.schema import Row, RunFile

if TYPE_CHECKING:
    from evalharness.pytest_plugin.progress.showing import Progress
    from evalharness.pytest_plugin.session import EvalSession

CONTROLLER_NAMES = ("main", "controller")
"""The names of processes that report; all others are workers."""
CANNOT_BEGIN = "the run cannot begin"
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM, errno.EAGAIN)
_SYSTEM_ERROR = re.compile(r"\[Errno (\d+)\] .+")
_END_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


def announce(state: EvalSession) -> str:
    """Return a line that says what will run, and further lines with notices about checkpoints and the baseline."""
    context, registry = state.context, state.registry
    engines = ", ".join(registry.engine_ids)
    workers = f", {context.num_workers} workers" if context.num_workers > 1 else ""
    num_repeats = sum(unit.repeat > 0 for unit in state.execution.plan.units.values())
    tests = plural(len(state.execution.plan.units) - num_repeats, "eval test")
    tests += f" and {plural(num_repeats, 'repeat')} (--noise)" if num_repeats else ""
    line = f"evalharness: {tests} on {engines}{workers}; run {context.run.run_id} -> {context.run_dir}"
    resumed = [] if context.resumed is None else [context.resumed.announcement]
    notices = [*choices_of_auto(registry.known_engines), *resumed, *registry.notices]
    line = "\n".join([line, *(f"evalharness: {notice}" for notice in notices)])
    baseline = state.run_file_at_start.get("baseline")
    if baseline is None:
        return line
    path = baseline["path"] or ""
    problem = baseline["problem"] or (None if Path(path).exists() else why_absent(Path(path)))
    if state.has_idle_baseline:
        return f"{line}\nevalharness: --baseline changes nothing: no test of this run has a gate that compares with it"
    if problem is not None:
        return f"{line}\nevalharness: baseline cannot be used, gates on it will fail: {problem}"
    parts = part_texts(read_run(Path(path))).values() if Path(path).is_dir() else ()
    of_part = f", which holds only part of an eval: {'; '.join(parts)}" if parts else ""
    return f"{line}\nevalharness: baseline {path}{of_part}"


class EndSignals:
    """Ends a run on SIGTERM and SIGHUP as Ctrl-C does, with everything written; by default they end a process at once. Answers the first.

    From `take` to `give_back`; once all is `written`, the first one changes nothing any more: the process is about to end by itself.
    A signal that is ignored (nohup) or handled by others stays as it is. `answer` says that it was heard: what then ends may take a while.
    """

    def __init__(self, answer: Callable[[], None]) -> None:
        self._answer = answer
        self._is_answered = False
        self.num_interrupts = 0
        self._is_put_off = False
        self.received: str | None = None
        """The name of the last one."""
        self.written = False
        """Whether the end of the run has been written."""
        self._before: dict[int, Any] = {}

    def take(self) -> None:
        """Begin to handle them; does nothing outside of the main thread, where Python allows no handlers."""
        if threading.current_thread() is threading.main_thread():
            for number in _END_SIGNALS:
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._before[number] = signal.signal(number, self._on_signal)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._on_interrupt)

    def give_back(self) -> None:
        """Put the former handlers back. Idempotent."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def answer(self) -> None:
        """Answer, once. The process may be in the middle of a write, in which case a later call does it."""
        if not self._is_answered and not self.written:
            with suppress(RuntimeError, OSError, ValueError):
                self._answer()
                self._is_answered = True

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        __tracebackhide__ = True  # pytest names the place where it came
        self.num_interrupts += 1
        self.answer()
        if not self._is_put_off:
            signal.default_int_handler(number, frame)

    def put_off(self) -> None:
        """Keep a second interruption until the session's end begins: where pytest handles the first, it would come out as a traceback."""
        self._is_put_off = self._before.get(signal.SIGINT) is not None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Raise what was put off."""
        was_put_off, self._is_put_off = self._is_put_off, False
        if was_put_off and self.num_interrupts > 1:
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number).name
        if self.written:
            self.give_back()  # a second one ends the process at once, whatever it waits for
            return
        on_interrupt = signal.getsignal(signal.SIGINT)
        if callable(on_interrupt):
            on_interrupt(signal.SIGINT, frame)
        else:  # Ctrl-C is ignored, as in the background of a script
            raise KeyboardInterrupt


def cannot_begin(error: OSError) -> pytest.UsageError:
    """Return the error that ends a session whose run could not begin: without it, pytest would take that for its own fault."""
    return pytest.UsageError(redactor().text(f"{CANNOT_BEGIN}: {error}; start it again once that is mended"))


class Reporting:
    """Misses, crashed tests, the progress and the finished run of a process that reports; a plugin of its session."""

    def __init__(self, config: pytest.Config, state: EvalSession) -> None:
        self._config = config
        self._state = state
        self.misses: list[tuple[str, str, str]] = []
        self.crashes: dict[str, str] = {}
        self.put_back: dict[str, str] = {}
        """Tests that run once more because their worker died; those still here at the end never did."""
        self.progress: Progress | None = None
        self.run: RunFile | None = None
        self.problem: str | None = None
        self._said: set[str] = set()
        self.interrupted: str | None = None
        self.signals = EndSignals(self._answer_interruption)
        self.summary = ""
        self.verdict = ""
        self.equal = EqualFailures()
        self._is_ending = False

    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, Any] | None:
        """Give misses and invalid samples names and letters of their own."""
        facts = getattr(report, "evalharness", None)
        if getattr(report, "evalharness_repeat", False):
            return ("repeated", "", "REPEATED") if report.when == "call" else ("", "", "")
        if facts is None or hasattr(report, "wasxfail"):
            return None
        if facts["outcome"] == "miss":
            return "miss", "m", ("MISS", {"yellow": True})
        if facts["outcome"] == "invalid":
            # In a test without gates it is a failure, which pytest then explains like any other.
            return "failed" if report.failed else "invalid", "i", ("INVALID", {"yellow": True})
        if facts["outcome"] == "skip" and (facts["problem"] or "").startswith(NOT_RUN):
            return "not run", "", ("NOT RUN", {"yellow": True})
        if facts["outcome"] == "skip" and (facts["problem"] or "").startswith(NOT_ASKED):
            return "not asked", "", ("NOT ASKED", {})
        return None

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count; `--lf` and `--sw` treat misses and invalid samples as failures."""
        if self.signals.received is not None:  # what a destructor or a weak reference's callback was interrupted by, Python ignores
            raise KeyboardInterrupt
        if report.when in ("teardown", "???"):
            self.put_back.pop(report.nodeid, None)
        facts = getattr(report, "evalharness", None)
        if facts is None:
            if self.progress is not None and getattr(report, "evalharness_repeat", False) and (report.when == "call" or report.skipped):
                self.progress.gathering.test_ended(is_problem=False)
            if report.when == "???":  # xdist's report of a test whose worker died
                self.crashes[report.nodeid] = problem = shorten(str(report.longrepr))
                report.evalharness_reason = [problem]  # of an engine that kills workers, all its tests have one
            return
        if facts["notice"] and facts["notice"] not in self._said:  # each worker has a first case
            self._said.add(facts["notice"])
            self._say(f"evalharness: {terminal_text(facts['notice'], 400)}")
        outcome = facts["outcome"]
        is_expected = hasattr(report, "wasxfail")
        if outcome == "miss" and not is_expected:
            self.misses.append((report.nodeid, facts["location"], facts["problem"]))
        if outcome in ("miss", "invalid") and not report.failed and not is_expected:
            self._report_as_failed(report)
        if self.progress is not None:
            self.progress.gathering.test_ended(is_problem=outcome != "pass")
        if outcome == "pass":
            del report.evalharness  # pytest keeps the reports of all tests until the end

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_row(self, report: Any, cells: list[str]) -> None:
        """Say miss or invalid in pytest-html's table, which knows pytest's own outcomes only."""
        category = (self.pytest_report_teststatus(report) or ("",))[0]
        if category in ("miss", "invalid"):
            cells[0] = f'<td class="col-result">{category.capitalize()}</td>'

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_html(self, report: Any, data: list[str]) -> None:
        """Say there why."""
        if (self.pytest_report_teststatus(report) or ("",))[0] in ("miss", "invalid"):
            data.insert(0, html.escape(report.evalharness["problem"] or ""))

    def _report_as_failed(self, report: Any) -> None:
        failed = copy.copy(report)
        failed.outcome, failed.when = "failed", "call"
        for name in ("lfplugin", "stepwiseplugin"):
            plugin = self._config.pluginmanager.get_plugin(name)
            if plugin is not None and hasattr(plugin, "pytest_runtest_logreport"):
                plugin.pytest_runtest_logreport(report=failed)

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self, excrepr: object) -> None:
        """End as documented where the machine gives no more files, room or memory, whoever met that: here or in a worker."""
        found = next((error for error in _SYSTEM_ERROR.finditer(str(excrepr)) if int(error[1]) in _EXHAUSTED), None)
        if found is None or not (self._state.has_started_run or asked_on_command_line(self._config)):
            return  # a fault, or a session without evals, which ends as it would without evalharness
        has_begun = self._state.has_started_run
        self.interrupted = redactor().text(f"{CANNOT_GO_ON if has_begun else CANNOT_BEGIN}: {found[0]}")
        raise pytest.exit.Exception(self.interrupted, returncode=BROKEN if has_begun else pytest.ExitCode.USAGE_ERROR)

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note why the session breaks off: Ctrl-C, `pytest.exit`, or pytest's own reason."""
        self.signals.put_off()
        self.signals.answer()
        by = self.signals.received
        self.interrupted = shorten(str(excinfo.value)) or ("interrupted by the user" if by is None else f"interrupted by {by}")

    def _answer_interruption(self) -> None:
        """Say at once what now ends, and what another Ctrl-C does; while the end is written, the first one ends that."""
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or not self._state.has_started_run or self._is_ending:
            return
        num_workers = self._state.context.num_workers
        what = f"stopping {plural(num_workers, 'worker')}" if num_workers else "stopping the engine"
        self._say(f"evalharness: interrupted; {what} and writing the report (Ctrl-C again to stop now)")

    def _say(self, line: str) -> None:
        """Write a line of its own while tests run."""
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if (self.progress is None or not self.progress.say(line)) and reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(line)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Write the end of a run that is interrupted only now, while fixtures are torn down; the next interruption ends that at once."""
        try:
            yield
        except KeyboardInterrupt:
            session.exitstatus = pytest.ExitCode.INTERRUPTED
            if self._state.has_started_run:
                self._end_interrupted(session)
        finally:
            self.signals.written = True

    def _end_interrupted(self, session: pytest.Session) -> None:
        if not self._is_ending and self.signals.num_interrupts < 2:
            self.pytest_keyboard_interrupt(pytest.ExceptionInfo.from_current())
            with suppress(KeyboardInterrupt):
                self._state.close()
                return self.finish(session, pytest.ExitCode.INTERRUPTED)
        context = self._state.context
        again = f"evalharness report {context.run_dir} makes the reports of it, and --resume {context.run.run_id} goes on with it"
        self.problem = f"interrupted while the end of the run was written; the results are safe in the journal: {again}"

    def finish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write all results and reports, judge the gates, and set the session's exit code; what fails becomes `problem`."""
        self._is_ending = True
        ended = str(session.shouldfail or session.shouldstop or self.interrupted or "")
        if not ended and exitstatus == pytest.ExitCode.INTERNAL_ERROR:
            ended = "internal error"
        run_dir, crashes = self._state.context.run_dir, {**self.put_back, **self.crashes}
        try:
            from evalharness.pytest_plugin.finish import finish_run
            from evalharness.pytest_plugin.finish.ci_files import add_to_junit_file

            code = BROKEN if CANNOT_GO_ON in ended else int(exitstatus)
            run, rows = finish_run(self._config, exit_code=code, interrupted=ended or None, crashes=crashes)
            with collector(on=False):  # not around the eval's own functions
                self.summary = self._write_reports(run, rows)
            add_to_junit_file(self._config, run)
            self.end_progress()  # its thread may be writing the index, with this run as a running one
            self.summary += _renewed_index(run_dir.parent)
            self.run, session.exitstatus = run, run["exit_code"]
        except RecordError as error:
            self.problem = str(error)
        except Exception as error:  # whatever breaks here, the journal holds every result and must be named
            self.problem = f"{type(error).__name__}: {any_text(error)}; the results are safe in {run_dir / 'journal'}"
        finally:
            self.end_progress()
        if self.problem is not None:
            session.exitstatus = BROKEN

    def end_progress(self) -> None:
        """Show no progress any more. Idempotent."""
        if self.progress is not None:
            self.progress.close()

    def pytest_enter_pdb(self) -> None:
        """Leave the terminal to the debugger."""
        if self.progress is not None:
            self.progress.pause(on=True)

    def pytest_leave_pdb(self) -> None:
        """Take it again."""
        if self.progress is not None:
            self.progress.pause(on=False)

    def _write_reports(self, run: RunFile, rows: list[Row]) -> str:
        """Write the reports and return the closing lines; if a page fails, note that in `run` and in run.json."""
        from evalharness.pytest_plugin.finish.ci_files import write_github_summary
        from evalharness.report.terminal import verdict_line
        from evalharness.report.writing import report_rows, terminal_summary  # numpy and tabulate, only now

        tables = report_rows(self._state.context.run_dir, rows)
        run["problems"], run["exit_code"] = tables.run["problems"], tables.run["exit_code"]
        write_github_summary(tables)
        self.verdict = verdict_line(tables)
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        return terminal_summary(tables, None if reporter is None else terminal_width(reporter))

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Show the scores, the misses where `-rm` asks for them, and where the report lies."""
        self.equal.before_short_summary(terminalreporter)
        if self.problem is not None:
            terminalreporter.write_sep("=", "evalharness", red=True)
            terminalreporter.write_line(f"no report: {terminal_text(self.problem, 2000)}", red=True)
            change_last_line(terminalreporter, ["no report"], "red")
        if self.run is None:
            return
        from evalharness.report.findings import gate_counts  # loads numpy: only where there is a run

        if "m" in terminalreporter.reportchars and self.misses:
            terminalreporter.write_sep("=", "misses")
            for nodeid, location, problem in self.misses:
                terminalreporter.write_line(f"MISS {nodeid} ({location})", yellow=True)
                for line in problem.splitlines():
                    terminalreporter.write_line(f"E   {terminal_text(line)}")
        if terminalreporter.config.get_verbosity() < -1:
            write_lines(terminalreporter, [self.verdict])
        else:
            terminalreporter.write_sep("=", "evalharness")
            write_lines(terminalreporter, self.summary.splitlines())
        write_places(terminalreporter, self._state.context.run_dir)
        darken_last_line(terminalreporter, self.verdict.partition(":")[0], gate_counts(self.run))


def _renewed_index(report_dir: Path) -> str:
    """Renew the index of all runs; return "", or a line that says why that failed (not a problem of this run)."""
    from evalharness.report.html.index_page import write_index
    from evalharness.report.html.site import INDEX

    try:
        write_index(report_dir)
    except Exception as error:  # whatever another run's folder holds, this run has its reports
        return f"\n{INDEX} of all runs could not be renewed: {type(error).__name__}: {shorten(any_text(error))}"
    return ""


REPORTING = pytest.StashKey[Reporting]()


_MAX_SECTION_CHARS = 20_000
# All control characters but newline and tab, bidi controls, line separators, lone surrogates.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff]")
_PLAIN = (bool, float, type(None))


def make_safe(report: pytest.TestReport) -> None:
    """Change the report's texts in place so that terminals, JUnit files and xdist can take them."""
    if report.sections:
        report.sections = [(name, _safe(content, _MAX_SECTION_CHARS)) for name, content in report.sections]
    if report.user_properties:
        report.user_properties = [(_safe(any_text(name)), _plain(value)) for name, value in report.user_properties]
    if hasattr(report, "wasxfail"):
        report.wasxfail = _safe(any_text(report.wasxfail))
    context: Any = getattr(report, "context", None)
    if context is not None:  # a subtest's description; its values are a repr already
        described = replace(context, msg=None if context.msg is None else _safe(str(context.msg)), kwargs={})
        described.kwargs.update({_safe(name): value for name, value in context.kwargs.items()})
        report.context = described  # type: ignore[attr-defined]
    longrepr: Any = report.longrepr
    if longrepr is None:
        return
    if isinstance(longrepr, tuple):  # a skip: path, line, reason
        path, line, reason = longrepr
        report.longrepr = path, line, _safe(reason)
    elif not change_texts(longrepr, _safe):
        report.longrepr = _safe(str(longrepr))


def _plain(value: object) -> object:
    return value if type(value) in _PLAIN or (type(value) is int and value.bit_length() < 64) else shorten(redactor().text(any_text(value)))


def _safe(text: str, max_chars: int = 2000) -> str:
    text = redactor().text(text)  # before it is cut: half a secret would not be found
    head = text[:max_chars]
    if not head.isprintable():
        head = _UNSAFE.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), head)
    return head if len(text) <= max_chars else f"{head}… ({plural(len(text) - max_chars, 'more character')})"
