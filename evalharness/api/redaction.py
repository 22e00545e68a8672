"""Keeps secrets out of every file: values of variables and options whose names mark them as secret, and texts that look like secrets.

A known secret is the value of such a name (HF_TOKEN, OPENAI_API_KEY, --x-password …) or a password in a URL of the environment; it is
replaced by `[NAME hidden]` everywhere, even in generated texts. All other texts (run.json, problems, tracebacks) also lose what looks
like a secret: user and password in a URL, its `?token=`, `Bearer …`, and the forms of well-known keys.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

API_KEY = "EVALHARNESS_API_KEY"
"""The environment variable that holds the key of an inference server."""

HIDDEN_VALUE = "…"
_MIN_CHARS = 6
"""Shorter values do not count as secrets: they would match everywhere."""
_PARTS = r"api[_-]?key|access[_-]?key|key|token|secret|password|passwd|passphrase|pass|credentials?|auth|bearer"
_SECRET_NAME = re.compile(rf"(?:^|[_-])(?:{_PARTS})(?:$|[_-]|\d)", re.IGNORECASE)
# Every repetition is bounded: a text of a million characters takes milliseconds.
_URL_PASSWORD = re.compile(r":/{1,2}([^/\s\"'@:]{0,200}):([^/\s\"'@]{1,500})@")
_URL_USER = re.compile(r"(?<=[A-Za-z0-9+.-])(:/{1,2})[^/\s\"'@]{1,500}@")
_LOOKS = (
    (re.compile(rf"([?&](?:[\w-]{{0,40}}[_-])?(?:{_PARTS}|sig|signature)=)[^&\s\"'#]+", re.IGNORECASE), r"\1" + HIDDEN_VALUE),
    (re.compile(r"(\bauthorization[\"']?\s{0,5}[:=]\s{0,5}[\"']?(?:\w{1,20}\s{1,5})?)[^\s\"',]+", re.IGNORECASE), r"\1" + HIDDEN_VALUE),
    (re.compile(r"(\bBearer\s{1,5})(?=\S{0,200}\d)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), r"\1" + HIDDEN_VALUE),
    # Plugins have hooks named hf_…, in lower case; tokens of Hugging Face have other characters too.
    (re.compile(r"\b(?:hf_(?![a-z_]{1,60}(?![\w-]))|gh[pousr]_|github_pat_|sk-|xox[baprs]-|glpat-|pypi-)[A-Za-z0-9_-]{16,}"), HIDDEN_VALUE),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), HIDDEN_VALUE),
)
# Short words are placeholders (EMPTY, not-needed), and values without letters may be numbers of the data.
_NO_SECRET = re.compile(r"[a-z_-]{1,12}|[A-Z_-]{1,12}|[^A-Za-z]*|[0-9.eE+-]+")

_RUNNING_TEST = os.fsencode("PYTEST_CURRENT_TEST")

_remembered: dict[str, str] = {}
_latest: list[tuple[Mapping[bytes, bytes], Redactor]] = []


def remember_options(arguments: Iterable[str]) -> None:
    """Make the values of secret options the known secrets of this process, in place of those of earlier calls."""
    _latest.clear()
    _remembered.clear()
    _remembered.update(_secret_options(list(arguments)))


def redactor() -> Redactor:
    """Return the redactor of the secrets that this process knows now; safe to call from any thread.

    It is rebuilt when the environment changed, as after a conftest.py read a .env file.
    """
    env = _environment()
    env.pop(_RUNNING_TEST, None)
    if not _latest or _latest[0][0] != env:
        _latest[:] = [(env, Redactor({os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}))]
    return _latest[0][1]


def _environment() -> dict[bytes, bytes]:
    """Return a copy of the environment; no error if another thread changes it, as pytest does from test to test."""
    # `os.environ` decodes every name in Python, which would take half the time of a journal line: its dictionary is copied instead.
    data = getattr(os.environ, "_data", None)
    if isinstance(data, dict):
        return data.copy()
    # A library put another mapping in its place. A name that was there a moment ago may have no value any more.
    return {os.fsencode(name): os.fsencode(value) for name in tuple(os.environ) if (value := os.environ.get(name)) is not None}


class Redactor:
    """Replaces the secrets of an environment and of the remembered options."""

    def __init__(self, env: Mapping[str, str]) -> None:
        secrets = {**_remembered, **_secrets_of(env)}
        # Longest first, as a secret may contain another.
        known = sorted(secrets.items(), key=lambda entry: -len(entry[0]))
        self._known = [(value, f"[{name} hidden]") for value, name in known]
        self._in_json = [(json.dumps(value)[1:-1], shown) for value, shown in self._known]

    def known(self, text: str) -> str:
        """Return a text, such as a generated one, without known secrets."""
        return _replaced(text, self._known)

    def text(self, text: str) -> str:
        """Return a text that no model generated, without known secrets and without anything that looks like a secret."""
        text = _URL_USER.sub(rf"\1{HIDDEN_VALUE}@", self.known(text))
        for pattern, shown in _LOOKS:
            text = pattern.sub(shown, text)
        return text

    def json_line(self, line: str) -> str:
        """Return a line of ASCII JSON without known secrets."""
        return _replaced(line, self._in_json)

    def data(self, value: object) -> object:
        """Return plain data with `text` applied to every text in it; names of fields stay."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {name: self.data(part) for name, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.data(part) for part in value]
        return value


def _replaced(text: str, secrets: Sequence[tuple[str, str]]) -> str:
    for value, shown in secrets:
        text = text.replace(value, shown)
    return text


def _secrets_of(env: Mapping[str, str]) -> dict[str, str]:
    """Return {value: name} of the environment's secrets, options in PYTEST_ADDOPTS included."""
    secrets = {}
    for name, value in env.items():
        if _SECRET_NAME.search(name):
            secrets.update(_as_secret(value, name))
        for match in _URL_PASSWORD.finditer(value) if "@" in value else ():
            secrets.update(_as_secret(match[2], f"password in {name}"))
    with contextlib.suppress(ValueError):  # an unclosed quote: pytest refuses it itself
        secrets.update(_secret_options(shlex.split(env.get("PYTEST_ADDOPTS", ""))))
    return secrets


def _as_secret(value: str, name: str) -> dict[str, str]:
    # A path names the place of a secret (GOOGLE_APPLICATION_CREDENTIALS, SSH_AUTH_SOCK).
    return {} if len(value) < _MIN_CHARS or value.startswith(("/", "~")) or _NO_SECRET.fullmatch(value) else {value: name}


def _secret_options(arguments: Sequence[str]) -> dict[str, str]:
    return {value: name for name, text in _options(arguments) for value in _as_secret(text, name) if _SECRET_NAME.search(name)}


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield name and value of every argument that may be an option with a value, also of settings given with `-o`."""
    for place, part in enumerate(arguments):
        name, equals, value = part.partition("=")
        if equals:
            yield name.removeprefix("-o").lstrip("-") if name.startswith("-o") and not name.startswith("--") else name.lstrip("-"), value
            if name == "--override-ini":
                setting, _, text = value.partition("=")
                yield setting, text
        elif part.startswith("-") and place + 1 < len(arguments):
            yield part.lstrip("-"), arguments[place + 1]
