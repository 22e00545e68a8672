"""Jinja for chat templates, which anyone may have written: sandboxed as transformers has it, and with limits of time and size.

`range` of jinja2's own sandbox is bounded, but not nested loops, `'x' * 10**10`, or a text that is doubled forty times. Here every loop
step, and every value that an operator, call, filter or literal makes, is counted before others can be made of it. A value counts by its
characters and parts, each as often as it would be written, so that nothing small stands for something huge.
"""

from __future__ import annotations

import functools
import re
import string
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_SOURCE_CHARS = 1 << 20
MAX_VALUE = 1 << 24
"""Characters of one value, with 16 for each of its parts: a prompt of a million tokens has 5 million characters."""
MAX_MADE = 1 << 28
"""Of all values of one rendering together."""
MAX_CPU_S = 5.0
"""Of the rendering thread: time in which the process is stopped, or others work, does not count."""
_STEP = _PART = 16
_MAX_BITS = 4096
_MAX_DIGITS = 5  # of a width
# In a form for `%`: a width or precision that is an argument, and those that it names, behind a key too.
_GIVEN_WIDTH = re.compile(r"%[-#0 +]*(?:\d*\.)?\*")
_WIDTHS = re.compile(r"%[-#0 +]*(\d*)\.?(\d*)")
_WIDTHS_OF_KEYS = re.compile(r"[%)][-#0 +]*(\d*)\.?(\d*)")
_PADDING = ("ljust", "rjust", "center", "zfill", "expandtabs", "to_bytes")
# Their time or output grows with the square of a text, and no chat template needs them.
_LEFT_OUT = ("urlize", "pprint", "wordwrap", "striptags", "xmlattr")


class TemplateLimit(SecurityError):
    """The rendering takes more than a chat template may."""


class _Budget:
    def __init__(self) -> None:
        self.left = MAX_MADE
        self.until = time.thread_time() + MAX_CPU_S


_rendering = threading.local()


def _spend(weight: int) -> None:
    budget: _Budget | None = getattr(_rendering, "budget", None)
    if budget is None:
        return  # constants are computed when the template is compiled
    budget.left -= weight
    if budget.left < 0:
        raise TemplateLimit(f"it makes more than {MAX_MADE} characters and steps on the way to one prompt")
    if time.thread_time() > budget.until:
        raise TemplateLimit(f"one prompt takes more than {MAX_CPU_S:.0f} s of CPU time")


def _weight(value: Any) -> tuple[int, int]:
    """Return how much a value counts, and how deeply it is nested; stops early where that is too much."""
    total = deepest = 0
    waiting = [(value, 0)]
    while waiting and total <= MAX_VALUE:
        part, depth = waiting.pop()
        total, deepest = total + _PART, max(deepest, depth)
        if isinstance(part, (str, bytes, bytearray)):
            total += len(part)
        elif isinstance(part, int):
            total += part.bit_length() // 4
        elif isinstance(part, Namespace):
            waiting.append((object.__getattribute__(part, "_Namespace__attrs"), depth + 1))
        elif isinstance(part, Mapping):
            waiting += [(child, depth + 1) for entry in part.items() for child in entry]
        elif isinstance(part, (list, tuple, set, frozenset)):
            waiting += [(child, depth + 1) for child in part]
    return total, deepest


def _made(value: Any) -> Any:
    weight, _ = _weight(value)
    if weight > MAX_VALUE:
        raise TemplateLimit(f"it makes a value of more than {MAX_VALUE} characters, or {MAX_VALUE // _PART} parts")
    _spend(weight)
    return value


def _refuse_growth(size: int) -> None:
    if size > MAX_MADE:
        raise TemplateLimit(f"it asks for a value of some {size} characters or bits")


def _steps(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        _spend(_STEP)
        yield value


def _concatenated(parts: Iterable[str]) -> str:
    kept = []
    for part in parts:
        _spend(len(part) + 1)
        kept.append(part)
    return "".join(kept)


def _written(*values: Any) -> str:
    return str(_made("".join([str(_made(value)) for value in values])))


def _check_numbers(arguments: Iterable[Any], size: int) -> None:
    _refuse_growth(size * max((abs(part) for part in arguments if isinstance(part, int)), default=1))


def _check_format(widths: list[str], num_fields: int, arguments: tuple[Any, ...]) -> None:
    if any(len(digits) > _MAX_DIGITS for digits in widths):
        raise TemplateLimit("a format names a width of more than five digits")
    _refuse_growth(sum(int(digits or 0) for digits in widths) + (num_fields + 1) * _weight(arguments)[0])


def _check_percent(form: str | bytes, arguments: tuple[Any, ...]) -> None:
    text = (form if isinstance(form, str) else form.decode("latin-1")).replace("%%", "")
    if _GIVEN_WIDTH.search(text):
        raise TemplateLimit(f"a format takes a width from its arguments: {text[:60]!r}")
    found = (_WIDTHS_OF_KEYS if "%(" in text else _WIDTHS).finditer(text)
    _check_format([digits for widths in found for digits in widths.groups()], text.count("%"), arguments)


def _check_braces(form: str, arguments: tuple[Any, ...]) -> None:
    try:
        specs = [spec for _, _, spec, _ in string.Formatter().parse(form) if spec]
    except ValueError:
        return  # it is no form to Python either, which says so
    if any("{" in spec for spec in specs):
        raise TemplateLimit(f"a format takes a width from its arguments: {form[:60]!r}")
    _check_format([digits for spec in specs for digits in re.findall(r"\d+", spec)], form.count("{"), arguments)


def _check_method(method: Any, arguments: tuple[Any, ...]) -> None:
    """Refuse a method of a text, bytes or a number whose result would be too large to be made."""
    method = getattr(method, "__wrapped__", method)  # jinja2 wraps str.format
    owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    if not isinstance(owner, (str, bytes, bytearray, int)):
        return
    if name in _PADDING:
        _check_numbers(arguments, _weight(owner)[0])
    elif name == "replace" and len(arguments) >= 2:
        _refuse_growth((owner.count(arguments[0]) + 1) * len(arguments[1]))  # type: ignore[union-attr]
    elif name == "join" and arguments:
        _check_join(arguments[0], owner)
    elif name in ("format", "format_map") and isinstance(owner, str):
        _check_braces(owner, arguments)
    elif name == "translate":
        _refuse_growth(_weight(owner)[0] * _weight(arguments)[0])


def _check_join(values: Any, between: Any) -> None:
    _refuse_growth(_weight(values)[0] + (len(values) if hasattr(values, "__len__") else MAX_VALUE) * _weight(between)[0])


def _check_filter(name: str, arguments: tuple[Any, ...]) -> None:
    if not arguments:
        return
    value, *others = arguments
    if name == "replace" and len(others) >= 2:
        _refuse_growth((str(value).count(str(others[0])) + 1) * len(str(others[1])))
    elif name == "join":
        _check_join(value, others[0] if others else "")
    elif name == "format":
        _check_percent(str(value), tuple(others))
    elif name == "sum" and any(not isinstance(start, (int, float, str)) for start in others):
        raise TemplateLimit("sum is for numbers")
    elif name in ("center", "indent", "batch", "slice", "tojson", "round"):
        weight, depth = _weight(value)
        _check_numbers(others, weight * (depth + 1))


def _limited(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter with limits; what jinja2 passes to it before the value stays."""

    @functools.wraps(function)
    def limited(*arguments: Any, **named: Any) -> Any:
        if name == "join":  # what map() gives can be looked at only once
            arguments = tuple(list(_steps(part)) if isinstance(part, Iterator) else part for part in arguments)
        own = arguments[1:] if hasattr(function, "jinja_pass_arg") else arguments
        _check_filter(name, (*own, *named.values()))
        return _made(function(*arguments, **named))

    return limited


class _Filters(dict[str, Any]):
    """Filters by name, each with limits, also those that are added later."""

    def __setitem__(self, name: str, function: Callable[..., Any]) -> None:
        super().__setitem__(name, _limited(name, function))


class _Counted(NodeTransformer):
    """Lets loops count their steps, and `~` and literals what they make."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        assert isinstance(node.iter, nodes.Expr)
        node.iter = _called("steps", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _called("written", *node.nodes)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return node if not node.items else _called("made", node)

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _called("made", node) if node.ctx == "load" and node.items else node


def _called(name: str, *arguments: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(arguments), [], None, None, lineno=arguments[0].lineno)


class _LimitedTemplate(Template):
    def render(self, *arguments: Any, **named: Any) -> str:
        before = getattr(_rendering, "budget", None)
        _rendering.budget = _Budget()
        try:
            return super().render(*arguments, **named)
        finally:
            _rendering.budget = before


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """jinja2's immutable sandbox in which a rendering has limits; a template that exceeds them raises `TemplateLimit`."""

    template_class = _LimitedTemplate
    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(_concatenated)
    steps, written, made = staticmethod(_steps), staticmethod(_written), staticmethod(_made)

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=_made, **options)
        filters, self.filters = self.filters, _Filters()
        for name, function in filters.items():
            if name not in _LEFT_OUT:
                self.filters[name] = function
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MAX_SOURCE_CHARS:
            raise TemplateLimit(f"its source has {len(source)} characters, at most {MAX_SOURCE_CHARS} are taken")
        tree: nodes.Template = _Counted().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Return what the operator makes, if that is not too large to be made."""
        if operator == "%" and isinstance(left, (str, bytes)):
            _check_percent(left, right if isinstance(right, tuple) else (right,))
        elif operator == "*":
            sizes = sorted((_weight(left)[0], _weight(right)[0]))
            if isinstance(left, int) and isinstance(right, int):
                _refuse_bits(left.bit_length() + right.bit_length())
            else:
                _check_numbers((left, right), sizes[1])
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _refuse_bits(left.bit_length() * max(right, 0))
        return _made(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Return what a call gives, if that is not too large to be made."""
        _check_method(__obj, (*args, *kwargs.values()))
        result = super().call(__context, __obj, *args, **kwargs)
        return result if any(__obj is own for own in (_steps, _written, _made)) else _made(result)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an item; a part of a text or list is a new value."""
        value = super().getitem(obj, argument)
        return _made(value) if isinstance(argument, slice) else value


def _refuse_bits(num_bits: int) -> None:
    if num_bits > _MAX_BITS:
        raise TemplateLimit(f"it computes a number of {num_bits} bits")
