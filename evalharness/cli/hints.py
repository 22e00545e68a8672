"""The command that helps after an error: for words that are none of ours, and for each kind of error."""

from __future__ import annotations

import re

from evalharness.api import errors
from evalharness.api.errors import EvalHarnessError

_START = "pytest evals --model PATH"
GUESSES: tuple[tuple[str, str, str], ...] = (
    ("run eval evals evaluate test start bench benchmark", "runs are started with pytest", _START),
    ("resume continue retry", "an unfinished run is continued with pytest", "pytest evals --resume RUN"),
    ("ls runs history log logs status index", "the runs are listed by `list`", "evalharness list"),
    ("view browse html page serve server ui web dashboard", "reports are files for the browser: nothing is served", "evalharness open"),
    ("monitor progress tail ps", "how far a running run is, `top` shows", "evalharness top"),
    ("case cases inspect sample samples", "a case is shown by `show`", "evalharness show RUN CASE"),
    ("diff vs", "runs are compared by `compare`", "evalharness compare latest~1 latest"),
    ("baseline approve accept", "a run becomes a baseline by `bless`", "evalharness bless RUN NAME"),
    ("plot trend", "checkpoints along training are drawn by `timeline`", "evalharness timeline 'reports/*'"),
    ("score judge", "stored answers are judged again by `rescore`", "evalharness rescore RUN"),
    ("ask chat prompt complete", "a checkpoint is asked by `generate`", "evalharness generate --model PATH --prompt TEXT"),
    ("new create template", "a new project is written by `init`", "evalharness init FOLDER"),
    ("check diagnose env info", "the machine is checked by `doctor`", "evalharness doctor"),
    ("help", "help is an option", "evalharness --help"),
    ("version", "the version is an option", "evalharness --version"),
)  # fmt: skip
_BY_KIND: tuple[tuple[type[EvalHarnessError], str], ...] = (
    (errors.MissingDependency, ""),  # the message names what installs it
    (errors.BaselineError, "evalharness bless --help"),
    (errors.RecordError, "evalharness list"),
    (errors.CheckpointError, "evalharness doctor PATH"),
    (errors.BackendError, "evalharness doctor"),
    (errors.CapabilityError, "evalharness doctor"),
)


_ENDS_WITH_A_COMMAND = re.compile(r"(?:: |; |→ )(?:evalharness|pytest|pip) [^;]+$")


def guess(word: str) -> tuple[str, str] | None:
    """Return what a word was probably meant for, and the command for that; None for a word that nobody tries."""
    return next(((why, command) for words, why, command in GUESSES if word.lower() in words.split()), None)


def command_for(error: EvalHarnessError, running: str) -> str:
    """Return the command that helps after an error of the command `running`, its own help if no other does; "" if the message has it."""
    if error.command or _ENDS_WITH_A_COMMAND.search(str(error)):
        return error.command
    return next((command for kind, command in _BY_KIND if isinstance(error, kind)), f"{running} --help")
