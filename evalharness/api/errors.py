"""Every error that evalharness raises on purpose, the exit codes of its commands, and hints for names and paths that are wrong.

    EvalHarnessError
    ├── ConfigError (ValueError)             an option or a settings file is wrong
    │   ├── UnsupportedOption                a backend cannot honour an option
    │   └── MissingData                      the data folder has nothing for an eval
    ├── ContractTypeError (TypeError)        a field of a contract has the wrong type
    ├── ContractValueError (ValueError)      a field of a contract is out of range
    ├── MissingDependency (ImportError)      a package is not installed; says which command installs it
    ├── CheckpointError (ValueError)         a checkpoint cannot be used; nothing was loaded
    ├── CapabilityError (RuntimeError)       a backend or plugin lacks a feature that was requested; nothing was generated
    ├── RequestError (ValueError)            one request cannot be run: its row is `invalid`, the others go on
    │   ├── PromptTooLong                    prompt exceeds its budget, or prompt + max_new_tokens the context
    │   ├── ImageError                       an image cannot be used, or images and placeholders differ
    │   └── TemplateError                    the chat template is absent or refuses the messages
    ├── BackendError (RuntimeError)          the machine, network or code failed: an `error` row, never a score
    ├── RequestsFailed (RuntimeError)        a batch call finished, but some of its requests failed
    ├── ComparisonError (ValueError)         two runs cannot be compared, or their requests differ
    │   └── BaselineError                    a baseline is absent, unreadable or of another kind
    ├── ScoreError (ValueError)              a test passed a value to `score` that is not a finite number
    └── RecordError (ValueError)             a run directory cannot be read or written

The built-in base (in brackets) lets callers catch them as Python's own exceptions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evalharness.api.wording import part_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from evalharness.api.requests import GenerationFailure, GenerationResult


class EvalHarnessError(Exception):
    """Root of every error that evalharness raises on purpose."""

    lines: Sequence[str] = ()
    """What a terminal shows beneath the message, such as the names to choose from."""
    command: str = ""
    """The command that helps; "" where the message tells, or the kind of error does."""

    def helped_by(self, command: str, lines: Sequence[str] = ()) -> Self:
        """Set the command that helps, and the lines beneath the message; return the error."""
        self.command, self.lines = command, lines
        return self


class ConfigError(EvalHarnessError, ValueError):
    """An option, an environment variable or a settings file is wrong."""


class UnsupportedOption(ConfigError):
    """A backend cannot honour an option that was set; nothing was generated."""


class MissingData(ConfigError):
    """The data folder has nothing for an eval: none was given, or the eval's file is not in it."""


class ContractTypeError(EvalHarnessError, TypeError):
    """A field of a contract has the wrong type; the message starts with the field's dotted path."""


class ContractValueError(EvalHarnessError, ValueError):
    """A field of a contract is out of range; the message starts with the field's dotted path."""


class MissingDependency(EvalHarnessError, ImportError):
    """A package is not installed; the message says which command installs it."""


class CheckpointError(EvalHarnessError, ValueError):
    """A checkpoint cannot be used as it is; nothing was loaded."""


class CapabilityError(EvalHarnessError, RuntimeError):
    """A backend or generation plugin lacks a feature that was requested; nothing was generated."""


class RequestError(EvalHarnessError, ValueError):
    """One request cannot be run; the others of its batch go on."""


class PromptTooLong(RequestError):
    """The prompt exceeds `max_prompt_tokens`, or prompt + max_new_tokens the context; it is never truncated."""


class ImageError(RequestError):
    """An image cannot be opened or used, or the images do not match the placeholders."""


class TemplateError(RequestError):
    """The chat template is absent or refuses these messages."""


class BackendError(EvalHarnessError, RuntimeError):
    """The machine, the network or the engine failed; this is never a score."""


class RequestsFailed(EvalHarnessError, RuntimeError):
    """A batch call finished, but some of its requests failed.

    `outcomes` holds one `GenerationResult` or `GenerationFailure` per request, in order.
    """

    def __init__(self, outcomes: Sequence[GenerationResult | GenerationFailure], problems: Sequence[str]) -> None:
        different = [*dict.fromkeys(problems)]
        shown = "; ".join(different[:3]) + ("; …" if len(different) > 3 else "")
        super().__init__(f"{part_of(len(problems), len(outcomes), 'request')} failed: {shown}")
        self.outcomes = tuple(outcomes)


class ComparisonError(EvalHarnessError, ValueError):
    """Two runs cannot be compared, or their requests differ."""


class BaselineError(ComparisonError):
    """A baseline is absent, unreadable or of another kind; nothing was compared."""


class ScoreError(EvalHarnessError, ValueError):
    """A test passed a value to `score` that is not a finite number or bool."""


class RecordError(EvalHarnessError, ValueError):
    """A run directory, journal or record cannot be read or written."""


DONE, NOT_PASSED, REFUSED, BROKEN, INTERRUPTED = 0, 1, 2, 10, 130
"""Exit codes of runs and of `evalharness`: everything passed; something did not (a gate, a comparison, an answer, a check); nothing was
done, because the command line or a file that it names is wrong; the machine, the network or the code failed; stopped by Ctrl-C."""


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return "; did you mean 'x'?" for the closest known word, or "" if none is close."""
    import difflib  # only for messages, so not when the plugin is imported

    by_folded = {name.casefold(): name for name in reversed(list(known))}
    close = difflib.get_close_matches(word.casefold(), by_folded, n=1, cutoff=cutoff)
    return f"; did you mean {by_folded[close[0]]!r}?" if close else ""


def nearest_folder(path: Path) -> Path:
    """Return the deepest existing folder among the path's parents (the path itself if it is one)."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
