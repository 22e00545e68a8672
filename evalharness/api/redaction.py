"""Keeps secrets out of every file and off the terminal: known ones by where they come from, others by what they look like.

A known secret is the value of a variable for keys (HF_TOKEN, OPENAI_API_KEY …), of an option or engine option that holds one, of the file
of Hugging Face's token, a password in a URL of the environment, or the value of any other variable with such a word in its name if it
looks like a secret as well. It is replaced by `[NAME hidden]` everywhere, even in answers, whose records then say so (`names_in`). What may
be a word of an answer, such as `EOS_TOKEN=<|im_end|>` or `PASS_LABEL=Verdict: pass`, is none: answers are recorded as they are.
All other texts (run.json, problems, tracebacks, messages) also lose what looks like a secret: user and password in a URL, its `?token=`,
`Bearer …`, `hf_token=…`, and the forms of well-known keys.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

API_KEY = "EVALHARNESS_API_KEY"
"""The environment variable that holds the key of an inference server."""

HIDDEN_VALUE = "…"
_MIN_CHARS = 6
"""Shorter values do not count as secrets: they would match everywhere."""
_PARTS = r"api[_-]?key|access[_-]?key|key|token|secret|password|passwd|passphrase|pass|credentials?|auth|bearer"
_SECRET_NAME = re.compile(rf"(?:^|[_-])(?:{_PARTS})(?:$|[_-]|\d)", re.IGNORECASE)
_SURE = (
    r"(?:hf|hub|hugging_?face(?:hub)?(?:_hub|_api)?|api|access|auth|refresh|id|session|bot|github|gitlab|wandb)[_-]?token|api[_-]?key|"
    r"(?:access|secret|private|signing)[_-]?key|secret|password|passwd|passphrase|credentials"
)
_SURE_NAME = re.compile(rf"(?:^|.*[_-])(?:{_SURE})\d*", re.IGNORECASE)
"""Names that hold nothing but secrets."""
_KINDS = r"eos|bos|pad|unk|sep|cls|mask|image|video|audio|start|stop|end|special|think\w*"
_OF_TEXTS = re.compile(rf"(?:.*[_-])?(?:{_KINDS})[_-]token.*", re.IGNORECASE)
"""Names of special tokens."""
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
    (re.compile(rf"(\b(?:\w{{1,40}}[_-])?(?:{_SURE})[\"']?[=:] ?[\"']?)(?!…)[^\s\"',;&\[\]]{{4,}}", re.IGNORECASE), r"\1" + HIDDEN_VALUE),
)
_KEY_FORM = re.compile(r"(?:hf_|gh[pousr]_|github_pat_|sk-|xox[baprs]-|glpat-|pypi-|AKIA|ASIA).{12,}")
_RANDOM_DIGITS = re.compile(r"\d(?=[A-Za-z])|[A-Za-z](?=\d)")
_RANDOM_CASES = re.compile(r"[a-z](?=[A-Z])|[A-Z](?=[a-z])")
# An answer may hold words and spaces (EMPTY, not-needed, Verdict: pass) and numbers; a secret has letters and digits, and no space.
_NO_SECRET = re.compile(r"\s|\A[^0-9]*\Z|\A[^A-Za-z]*\Z|\A[0-9.eE+-]+\Z")

# But where the name leaves no doubt, a word that is longer than those is one.
_LONG_WORD = re.compile(r"[A-Za-z_-]{13,}")

_RUNNING_TEST = os.fsencode("PYTEST_CURRENT_TEST")

_remembered: dict[str, str] = {}
_latest: list[tuple[Mapping[bytes, bytes], Redactor]] = []


def remember_options(arguments: Iterable[str]) -> None:
    """Make the values of secret options the known secrets of this process, in place of those of earlier calls."""
    _latest.clear()
    _remembered.clear()
    _remembered.update(_secret_options(list(arguments)))


def remember_values(values: Iterable[tuple[str, object]]) -> None:
    """Add the secrets among named values, such as engine options of a settings file, to those that this process knows."""
    _latest.clear()
    for name, value in values:
        if isinstance(value, Mapping):
            remember_values((str(part), entry) for part, entry in value.items())
        elif isinstance(value, str) and _is_secret_name(name):
            _remembered.update(_as_secret(value, name))


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

    def names_in(self, text: str) -> list[str]:
        """Return what the known secrets in a text are the values of."""
        return [shown[1:-1].removesuffix(" hidden") for value, shown in self._known if value in text]

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
            return {name: self._named(name, part) for name, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.data(part) for part in value]
        return value

    def _named(self, name: object, value: object) -> object:
        is_secret = isinstance(value, str) and value and isinstance(name, str) and _SURE_NAME.fullmatch(name)
        return HIDDEN_VALUE if is_secret else self.data(value)


def _replaced(text: str, secrets: Sequence[tuple[str, str]]) -> str:
    for value, shown in secrets:
        text = text.replace(value, shown)
    return text


def _secrets_of(env: Mapping[str, str]) -> dict[str, str]:
    """Return {value: name} of the environment's secrets, options in PYTEST_ADDOPTS included."""
    secrets = {}
    for name, value in env.items():
        if _SURE_NAME.fullmatch(name) or (_is_secret_name(name) and _looks_secret(value)):
            secrets.update(_as_secret(value, name))
        for match in _URL_PASSWORD.finditer(value) if "@" in value else ():
            secrets.update(_as_secret(match[2], f"password in {name}"))
    with contextlib.suppress(ValueError):  # an unclosed quote: pytest refuses it itself
        secrets.update(_secret_options(shlex.split(env.get("PYTEST_ADDOPTS", ""))))
    with contextlib.suppress(OSError, ValueError):
        home = env.get("HF_HOME") or os.path.join(env.get("HOME", "/nowhere"), ".cache/huggingface")
        file = Path(env.get("HF_TOKEN_PATH") or os.path.join(home, "token"))
        if file.is_file():
            with file.open("rb") as opened:
                secrets.update(_as_secret(opened.read(1000).decode("utf-8").strip(), "Hugging Face's token"))
    return secrets


def _is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None and not _OF_TEXTS.fullmatch(name)


def _looks_secret(value: str) -> bool:
    """Return whether a value has the form of a key, or letters, digits and cases as mixed as words never are."""
    if _KEY_FORM.fullmatch(value):
        return True
    num_digits, num_cases = len(_RANDOM_DIGITS.findall(value)), len(_RANDOM_CASES.findall(value))
    return len(value) >= 12 and (num_digits >= 3 or (len(value) >= 20 and num_cases >= 6))


def _as_secret(value: str, name: str) -> dict[str, str]:
    # A path names the place of a secret (GOOGLE_APPLICATION_CREDENTIALS, SSH_AUTH_SOCK).
    is_text = len(value) < _MIN_CHARS or value.startswith(("/", "~", "<", "[")) or bool(_NO_SECRET.search(value))
    is_secret = _KEY_FORM.fullmatch(value) or _looks_secret(value) or (_SURE_NAME.fullmatch(name) and _LONG_WORD.fullmatch(value))
    return {} if is_text and not is_secret else {value: name}


def _secret_options(arguments: Sequence[str]) -> dict[str, str]:
    return {value: name for name, text in _options(arguments) for value in _as_secret(text, name) if _is_secret_name(name)}


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield name and value of every argument that may be an option with a value, also of settings given with `-o`."""
    for place, part in enumerate(arguments):
        name, equals, value = part.partition("=")
        if equals:
            yield name.removeprefix("-o").lstrip("-") if name.startswith("-o") and not name.startswith("--") else name.lstrip("-"), value
            if name in ("--override-ini", "--engine-option"):
                setting, _, text = value.partition("=")
                yield setting, text
        elif part.startswith("-") and place + 1 < len(arguments):
            yield part.lstrip("-"), arguments[place + 1]
