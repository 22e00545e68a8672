"""Secrets kept out of everything that is written: values of the environment and of options whose names say that they are secret.

A value is known to be secret by the name it has (HF_TOKEN, OPENAI_API_KEY, --x-password …), or as the password in a URL; wherever it
then stands, `[NAME hidden]` is written instead, in a generated text, too. Texts that are no generation (run.json, problems, tracebacks)
also lose what looks like a secret whoever knows it: user and password in a URL, its `?token=`, `Bearer …`, and the forms of well-known
keys.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["API_KEY", "Redactor", "redactor", "remember_options"]

API_KEY = "EVALHARNESS_API_KEY"
"""The environment variable that holds the key of an inference server."""

HIDDEN_VALUE = "…"
_MIN_CHARS = 6
"""Shorter values are no secrets, and would be found everywhere."""
_PARTS = r"api[_-]?key|access[_-]?key|key|token|secret|password|passwd|passphrase|pass|credentials?|auth|bearer"
_SECRET_NAME = re.compile(rf"(?:^|[_-])(?:{_PARTS})(?:$|[_-]|\d)", re.IGNORECASE)
# Every repetition has an end: a text of a million characters takes milliseconds, whatever it is made of.
_URL_PASSWORD = re.compile(r":/{1,2}([^/\s\"'@:]{0,200}):([^/\s\"'@]{1,500})@")
_URL_USER = re.compile(r"(?<=[A-Za-z0-9+.-])(:/{1,2})[^/\s\"'@]{1,500}@")
_LOOKS = (
    (re.compile(rf"([?&](?:[\w-]{{0,40}}[_-])?(?:{_PARTS}|sig|signature)=)[^&\s\"'#]+", re.IGNORECASE), r"\1" + HIDDEN_VALUE),
    (re.compile(r"(\bauthorization[\"']?\s{0,5}[:=]\s{0,5}[\"']?(?:\w{1,20}\s{1,5})?)[^\s\"',]+", re.IGNORECASE), r"\1" + HIDDEN_VALUE),
    (re.compile(r"(\bBearer\s{1,5})(?=\S{0,200}\d)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), r"\1" + HIDDEN_VALUE),
    # Plugins have hooks named hf_…: a name has small letters only, a token of Hugging Face has others.
    (re.compile(r"\b(?:hf_(?![a-z_]{1,60}(?![\w-]))|gh[pousr]_|github_pat_|sk-|xox[baprs]-|glpat-|pypi-)[A-Za-z0-9_-]{16,}"), HIDDEN_VALUE),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), HIDDEN_VALUE),
)
# A word of a few letters is a placeholder (EMPTY, not-needed), and what has no letter may be a number of the data.
_NO_SECRET = re.compile(r"[a-z_-]{1,12}|[A-Z_-]{1,12}|[^A-Za-z]*|[0-9.eE+-]+")

_RUNNING_TEST = os.fsencode("PYTEST_CURRENT_TEST")

_remembered: dict[str, str] = {}
_latest: list[tuple[Mapping[bytes, bytes], Redactor]] = []


def remember_options(arguments: Iterable[str]) -> None:
    """Take the values of options whose names say that they are secret for secrets of this process, in place of those before."""
    _latest.clear()
    _remembered.clear()
    _remembered.update(_secret_options(list(arguments)))


def redactor() -> Redactor:
    """Return what this process knows to be secret now; made anew when the environment changed.

    A conftest.py that reads a .env file changes it. May be called by any thread.
    """
    # `os.environ` decodes each of its names in Python, which would be half of the time of a journal line. And a copy cannot change
    # while another thread looks at it, as pytest changes the name of the running test, which is left out.
    env: dict[bytes, bytes] = os.environ._data.copy()  # type: ignore[attr-defined]
    env.pop(_RUNNING_TEST, None)
    if not _latest or _latest[0][0] != env:
        _latest[:] = [(env, Redactor({os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}))]
    return _latest[0][1]


class Redactor:
    """What an environment, and the options that were remembered, make known to be secret."""

    def __init__(self, env: Mapping[str, str]) -> None:
        found = {**_remembered, **_secrets_of(env)}
        # Longest first, so that no secret is left as the rest of another.
        self._known = sorted(found.items(), key=lambda entry: -len(entry[0]))
        self._in_json = [(json.dumps(value)[1:-1], f"[{name} hidden]") for value, name in self._known]

    def known(self, text: str) -> str:
        """Return a text without the values that are known to be secret."""
        for value, name in self._known:
            if value in text:
                text = text.replace(value, f"[{name} hidden]")
        return text

    def text(self, text: str) -> str:
        """Return a text that is no generation without secrets, and without what looks like one."""
        text = _URL_USER.sub(rf"\1{HIDDEN_VALUE}@", self.known(text))
        for pattern, shown in _LOOKS:
            text = pattern.sub(shown, text)
        return text

    def json_line(self, line: str) -> str:
        """Return plain data as ASCII JSON without the values that are known to be secret."""
        for value, shown in self._in_json:
            if value in line:
                line = line.replace(value, shown)
        return line

    def data(self, value: object) -> object:
        """Return plain data with every text in it as `text` gives it; names of fields stay."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {name: self.data(part) for name, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.data(part) for part in value]
        return value


def _secrets_of(env: Mapping[str, str]) -> dict[str, str]:
    """Return {value: name} of the environment's secrets, options in PYTEST_ADDOPTS included."""
    found = {}
    for name, value in env.items():
        if _SECRET_NAME.search(name):
            found.update(_as_secret(value, name))
        for match in _URL_PASSWORD.finditer(value) if "@" in value else ():
            found.update(_as_secret(match[2], f"password in {name}"))
    with contextlib.suppress(ValueError):  # an unclosed quote: pytest refuses it itself
        found.update(_secret_options(shlex.split(env.get("PYTEST_ADDOPTS", ""))))
    return found


def _as_secret(value: str, name: str) -> dict[str, str]:
    # A path says where a secret lies (GOOGLE_APPLICATION_CREDENTIALS, SSH_AUTH_SOCK).
    return {} if len(value) < _MIN_CHARS or value.startswith(("/", "~")) or _NO_SECRET.fullmatch(value) else {value: name}


def _secret_options(arguments: Sequence[str]) -> dict[str, str]:
    return {value: name for name, text in _options(arguments) for value in _as_secret(text, name) if _SECRET_NAME.search(name)}


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield name and value of whatever may be an option with a value, also of settings given with `-o`."""
    for place, part in enumerate(arguments):
        name, equals, value = part.partition("=")
        if equals:
            yield name.removeprefix("-o").lstrip("-") if name.startswith("-o") and not name.startswith("--") else name.lstrip("-"), value
            if name == "--override-ini":
                setting, _, own = value.partition("=")
                yield setting, own
        elif part.startswith("-") and place + 1 < len(arguments):
            yield part.lstrip("-"), arguments[place + 1]
