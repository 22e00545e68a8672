"""Checks of single fields, and how messages show values.

A check raises an error with the field's dotted path, the value and the legal values. Wrong type: `ContractTypeError`; out of range:
`ContractValueError`. A `bool` is never a number. Long texts, long lists of names and hashes are cut, and the cut is visible.
"""

from __future__ import annotations

import errno
import functools
import inspect
import json
import math
import os
import re
import reprlib
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, ParamSpec, TypeVar

from evalharness.api.errors import ContractTypeError, ContractValueError, did_you_mean
from evalharness.api.wording import plural


def check_number(
    path: str, value: object, *, integer: bool, minimum: float | None = None, above: float | None = None, maximum: float | None = None
) -> None:
    wanted = "an int" if integer else "a number"
    if isinstance(value, bool) or not isinstance(value, int if integer else (int, float)):
        raise ContractTypeError(f"{path} must be {wanted}, got {value!r} ({type(value).__name__})")
    if not integer and not abs(value) <= sys.float_info.max:  # NaN, infinity, and an int beyond every float
        raise ContractValueError(f"{path} must be finite, got {value!r}")
    if minimum is not None and value < minimum:
        raise ContractValueError(f"{path} must be at least {minimum}, got {value!r}")
    if above is not None and value <= above:
        raise ContractValueError(f"{path} must be greater than {above}, got {value!r}")
    if maximum is not None and value > maximum:
        raise ContractValueError(f"{path} must be at most {maximum}, got {value!r}")


def check_integer(path: str, value: object, *, minimum: int | None = None, maximum: int | None = None, optional: bool = False) -> None:
    if not (optional and value is None):
        check_number(path, value, integer=True, minimum=minimum, maximum=maximum)


MAX_TOKEN_ID = 2**31 - 1  # far beyond every vocabulary; larger ids do not fit the engines' integers


def check_token_ids(path: str, value: Sequence[Any]) -> None:
    if set(map(type, value)) <= {int} and min(value, default=0) >= 0 and max(value, default=0) <= MAX_TOKEN_ID:
        return  # fast path: prompts have thousands of ids, and trainers pass them once per sample
    for position, token_id in enumerate(value):
        check_integer(f"{path}[{position}]", token_id, minimum=0, maximum=MAX_TOKEN_ID)


_TEMPERATURES = (0.01, 2.0)  # vLLM silently raises a lower temperature; vLLM and servers refuse a higher one


def check_temperature(path: str, value: object) -> None:
    """Raise unless the value is 0 (greedy) or in the range that every backend accepts, so that an eval runs on all of them."""
    check_number(path, value, integer=False, minimum=0.0)
    low, high = _TEMPERATURES
    if value and not low <= value <= high:  # type: ignore[operator]
        raise ContractValueError(f"{path} must be 0 (greedy) or from {low} to {high:g}, which every backend can honour, got {value!r}")


def check_boolean(path: str, value: object, *, optional: bool = False) -> None:
    check_instance(path, value, bool, optional=optional)


def check_text(path: str, value: object, *, optional: bool = False) -> None:
    check_instance(path, value, str, optional=optional)


def check_instance(path: str, value: object, wanted: type, *, optional: bool = False) -> None:
    if not (optional and value is None) and not isinstance(value, wanted):
        raise ContractTypeError(f"{path} must be a {wanted.__name__}, got {excerpt(shown(value), 200)} ({type(value).__name__})")


def check_sequence(path: str, value: object, of: str) -> None:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        # Arrays and tensors hold no Python ints, and their repr may be long.
        hint = "; give its .tolist()" if hasattr(value, "tolist") else ""
        raise ContractTypeError(f"{path} must be a sequence of {of}, got {reprlib.repr(value)} ({type(value).__name__}){hint}")


def check_json(path: str, value: object) -> None:
    """Raise unless `value` is plain JSON data: options are part of every run's record."""
    try:
        json.dumps(value, allow_nan=False)
    except TypeError as error:
        raise ContractTypeError(f"{path} must be plain JSON data (numbers, texts, lists, mappings): {error}") from None
    except (ValueError, RecursionError) as error:  # NaN, infinity, a huge int, a value that contains itself
        raise ContractValueError(f"{path} must be plain JSON data, and finite: {error}") from None


def known_keys(path: str, mapping: object, cls: type) -> Mapping[str, Any]:
    if not isinstance(mapping, Mapping):
        raise ContractTypeError(f"{path} must be a mapping, got {mapping!r} ({type(mapping).__name__})")
    unknown = [key for key in mapping if key not in _field_names(cls)]
    if unknown:
        raise ContractValueError(f"{path}.{unknown[0]} is unknown{_instead(str(unknown[0]), cls)}")
    return mapping


_C = TypeVar("_C")
_R = TypeVar("_R")
_P = ParamSpec("_P")
_MEANT: dict[type, Mapping[str, str]] = {}


def named_arguments(**meant: str) -> Callable[[type[_C]], type[_C]]:
    """Return the decorator of a dataclass whose unknown arguments are refused with what was meant: a name, or how it is written here."""

    def decorate(cls: type[_C]) -> type[_C]:
        _MEANT[cls] = meant
        make: Any = cls.__init__
        known = _field_names(cls)

        @functools.wraps(make)
        def checked(self: _C, *args: Any, **values: Any) -> None:
            for name in values:
                if name not in known:
                    raise ContractTypeError(f"{cls.__name__} has no argument {name!r}{_instead(name, cls)}")
            make(self, *args, **values)

        setattr(cls, "__init__", checked)  # noqa: B010  # mypy allows no assignment to a method
        return cls

    return decorate


def named_parameters(**meant: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return the decorator of a function that does the same for its arguments."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        known = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def checked(*args: _P.args, **values: _P.kwargs) -> _R:
            for name in values:
                if name not in known:
                    raise ContractTypeError(f"{function.__name__} has no argument {name!r}{_meant_by(name, known, meant)}")
            return function(*args, **values)

        return checked

    return decorate


def _field_names(cls: type) -> list[str]:
    return [f.name for f in fields(cls)]


def _instead(name: str, cls: type) -> str:
    return _meant_by(name, _field_names(cls), _MEANT.get(cls, {}))


def _meant_by(name: str, known: Sequence[str], meant: Mapping[str, str]) -> str:
    return f"; did you mean {meant[name]}?" if name in meant else f"{did_you_mean(name, known) or ';'} known: {', '.join(known)}"


def plain_name(value: Any) -> Any:
    """Return torch's dtypes and devices as their names, and paths as texts; anything else unchanged."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    kind = type(value)
    is_torch = kind.__module__ == "torch" and kind.__name__ in ("dtype", "device")
    return str(value).removeprefix("torch.") if is_torch else value


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether the entry is a folder or a link to one; False for circular links, for which `is_dir` raises."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def open_regular(path: Path | str) -> BinaryIO:
    """Open a regular file, links followed; `OSError` for a folder, and for a device or a pipe, which may never end."""
    if stat.S_ISREG(os.stat(path).st_mode):  # opening a device may already do something
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # else a pipe without a writer would be waited for
        if stat.S_ISREG(os.fstat(number).st_mode):  # it is the file that was looked at
            return os.fdopen(number, "rb")
        os.close(number)
    raise OSError(errno.EINVAL, "a folder, device or pipe is not a regular file", str(path))


def read_regular(path: Path | str) -> bytes:
    """Return the content of a file as `open_regular` opens it."""
    with open_regular(path) as file:
        return file.read()


def is_deeper(value: Any, limit: int) -> bool:
    """Return whether lists and mappings are nested more than `limit` deep. Looks at them level by level, without recursion."""
    level = [value]
    for _ in range(limit + 1):
        holders = [part for part in level if isinstance(part, (dict, list, tuple))]
        if not holders:
            return False
        level = [inner for holder in holders for inner in (holder.values() if isinstance(holder, dict) else holder)]
    return True


def excerpt(text: str, max_chars: int, *, count_rest: bool = False) -> str:
    """Return the text, or its first `max_chars` characters and "…", with the number of missing characters if `count_rest`."""
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}…" + (f" ({plural(len(text) - max_chars, 'more character')})" if count_rest else "")


MAX_BITS = 14_000
"""Of an int that may be recorded: just below 4,300 digits, the longest that Python reads or writes."""


def shown(value: object) -> str:
    """Return a short repr of any value, also of one whose own repr raises, such as that of an int of 5,000 digits."""
    try:
        return reprlib.repr(value)
    except Exception:
        return f"<{type(value).__name__} that cannot be shown>"


def any_text(value: object) -> str:
    """Return the text of any value or error, also of one that cannot be made into a text."""
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__} that cannot be shown>"


def plain_number(value: Any) -> Any:
    """Return numpy's and torch's numbers as Python numbers, anything else unchanged."""
    is_foreign = not isinstance(value, (bool, int, float)) and hasattr(value, "item") and getattr(value, "ndim", 0) == 0
    return value.item() if is_foreign else value


def first_names(names: Sequence[object], max_names: int) -> str:
    """Return the names, comma-separated; after `max_names` of them only ", …"."""
    return ", ".join(map(str, names[:max_names])) + (", …" if len(names) > max_names else "")


def short_hash(text: str) -> str:
    """Return the first 12 digits of a SHA-256 in hex; any other text as it is."""
    return text[:12] if re.fullmatch("[0-9a-f]{64}", text) else text


def refuse_constant(name: str) -> NoReturn:
    """Raise `ValueError` for `NaN` and `Infinity`, which Python's json takes: for `parse_constant`."""
    raise ValueError(f"{name} is not JSON")


def finite_number(literal: str) -> float:
    """Return the number, `ValueError` for one beyond every float: for `parse_float`."""
    number = float(literal)
    if math.isinf(number):
        raise ValueError(f"{excerpt(literal, 40)} is not a finite number")
    return number
