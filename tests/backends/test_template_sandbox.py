"""Chat templates of strangers: whatever they compute ends soon, and takes little."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from evalharness.backends import template_sandbox
from evalharness.backends.template_sandbox import LimitedEnvironment, TemplateLimit

DOUBLED = "{{% set n = namespace(s={0}) %}}{{% for i in range(60) %}}{{% set n.s = {1} %}}{{% endfor %}}{{{{ n.s }}}}"

TOO_MUCH = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops over a list": "{% set r = range(99999)|list %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
    "comparisons": "{% set a = range(99999)|list %}{% set b = range(99999)|list %}{% for x in a %}{% if a == b %}{% endif %}{% endfor %}",
    "recursion": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "repeated": "{{ 'x' * 10**10 }}",
    "repeated list": "{{ 10**10 * [1] }}",
    "power": "{{ 10 ** 10 ** 3 * 10 ** 10 ** 3 }}{{ 7 ** 99999999 }}",
    "doubled by +": DOUBLED.format("'x'", "n.s + n.s"),
    "doubled by ~": DOUBLED.format("'x'", "n.s ~ n.s"),
    "doubled list": DOUBLED.format("[1]", "[n.s, n.s]"),
    "doubled tuple": DOUBLED.format("(1,)", "(n.s, n.s)"),
    "doubled dict": DOUBLED.format("{}", "{'a': n.s, 'b': n.s}"),
    "doubled by dict()": DOUBLED.format("{}", "dict(a=n.s, b=n.s)"),
    "doubled namespace": DOUBLED.format("1", "namespace(a=n.s, b=n.s)"),
    "doubled block": DOUBLED.format("'x'", "s").replace("{% set n.s = s", "{% set s %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = s"),
    "text in a loop": "{% for a in range(99999) %}" + "y" * 10_000 + "{% endfor %}",
    "text in a macro": "{% macro m() %}{% for a in range(99999) %}" + "y" * 10_000 + "{% endfor %}{% endmacro %}{{ m() }}",
    "center": "{{ 'x'|center(10000000000) }}",
    "ljust": "{{ 'x'.ljust(10000000000) }}",
    "expandtabs": "{{ '\\t'.expandtabs(10000000000) }}",
    "format method": "{{ '{:>10000000000}'.format(1) }}",
    "width of a format": "{{ '{:>{}}'.format(1, 10000000000) }}",
    "percent": "{{ '%10000000000d' % 1 }}",
    "many widths": "{{ ('{:>99999}' * 9999).format(1) }}",
    "width of bytes": "{{ '%9999999d'.encode() % 1 }}",
    "named width": "{{ '%(a)9999999s' % {'a': 1} }}{{ '{a!r:>9999999}'.format(a=1) }}",
    "widths behind odd keys": "{{ '%((a))9999999s' % {'(a)': 1} }}",
    "width behind a key with a brace": "{{ '{a[}]:>9999999}'.format_map({'a': {'}': 1}}) }}",
    "precision": "{{ '%.9999999f' % 1.5 }}",
    "width behind a fill": "{{ '{:0>9999999}'.format(1) }}",
    "width of percent": "{{ '%*d' % (10000000000, 1) }}",
    "format filter": "{{ '%10000000000d'|format(1) }}",
    "replace": "{% set s = 'x' * 1000000 %}{{ s|replace('x', s) }}",
    "replace method": "{% set s = 'x' * 1000000 %}{{ s.replace('', s) }}",
    "join": "{% set s = 'x' * 100000 %}{{ s|join(s) }}",
    "join method": "{% set s = 'x' * 100000 %}{{ s.join(s) }}",
    "join of a map": "{% set s = 'x' * 20000 %}{{ s|map('upper')|join(s) }}",
    "translate": "{% set s = 'x' * 1000000 %}{{ s.translate({120: s}) }}",
    "tojson": "{{ [[1]]|tojson(indent=10000000000) }}",
    "indent": "{{ 'a\\nb'|indent(width=10000000000) }}",
    "batch": "{{ [1]|batch(10000000000, 'x')|list }}",
    "slice": "{{ [1]|slice(10000000000)|list }}",
    "bytes": "{{ (1).to_bytes(10000000000, 'big') }}",
    "sum": "{% set l = range(9999)|list %}{{ [l, l]|sum(start=[]) }}",
    "slices": "{% set s = 'x' * 9000000 %}{% set n = namespace(a=[]) %}{% for i in range(99) %}{% set n.a = n.a + [s[1:]] %}{% endfor %}",
    "source": "x" * 2_000_000,
}  # fmt: skip


@pytest.mark.parametrize("source", TOO_MUCH.values(), ids=TOO_MUCH.keys())
def test_a_template_that_takes_too_much_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_CPU_S", 0.1)
    with pytest.raises(TemplateLimit):
        LimitedEnvironment().from_string(source).render()


@pytest.mark.parametrize("source", ["{{ lipsum(1000) }}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{{ 1|urlize }}"])
def test_other_ways_are_closed(source: str) -> None:
    with pytest.raises(Exception, match="undefined|recursion|No filter"):
        LimitedEnvironment().from_string(source).render()


def test_what_is_not_kept_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TemplateLimit):
            LimitedEnvironment().from_string(TOO_MUCH["doubled by ~"]).render()
        assert tracemalloc.get_traced_memory()[1] < 300 << 20
    finally:
        tracemalloc.stop()


ORDINARY: dict[str, tuple[str, str]] = {
    "loop": ("{% for m in x %}{{ loop.index }}/{{ loop.length }}{{ m }}{% if loop.last %}.{% endif %}{% endfor %}", "1/2a2/2b."),
    "else": ("{% for m in [] %}{% else %}none{% endfor %}", "none"),
    "filtered": ("{% for m in x if m != 'a' %}{{ m }}{% endfor %}", "b"),
    "pairs": ("{% for k, v in {'k': 1}.items() %}{{ k ~ v }}{% endfor %}", "k1"),
    "unpacked": ("{% set a, b = 1, 2 %}{{ a + b }}", "3"),
    "reversed": ("{% for m in x[::-1] %}{{ m }}{% endfor %}", "ba"),
    "long": ("{{ ('word ' * 100000)|trim|length }}", "499999"),
    "replaced": ("{{ 'a b'|replace(' ', '-') }}{{ 'a b'.replace('a', 'c') }}{{ 'abc'|replace('b', '') }}", "a-bc bac"),
    "formatted": ("{{ '%s-%05.2f' % ('a', 1.5) }}{{ '{}{:>3}'.format('a', 'b') }}{{ '%s'|format('c') }}", "a-01.50a  bc"),
    "with stars": ("{{ '**%s**' % 'a' }}{{ '*{}*'.format('b') }}{{ '**%s**'|format(x[0]) }}{{ '%d%%*' % 5 }}", "**a***b***a**5%*"),
    "large numbers": ("{{ '%s' % 1700000000 }}{{ '{:,}'.format(8000000) }}{{ '%d'|format(8000000) }}", "17000000008,000,0008000000"),
    "shortened": ("{{ ('word ' * 4000)|truncate(15000)|length }}", "14997"),
    "joined": ("{{ x|join(', ') }}{{ ','.join(x) }}{{ x|map('upper')|join }}", "a, ba,bAB"),
    "sum": ("{{ [1, 2]|sum }}{{ 7 // 2 }}{{ 2 ** 10 }}{{ 7 % 4 }}", "3310243"),
    "json": ("{{ {'a': [1, {}]}|tojson }}", '{"a": [1, {}]}'),
    "undefined": ("{% for m in nothing %}{% endfor %}{{ nothing }}{{ none }}", "None"),
}  # fmt: skip


@pytest.mark.parametrize(("source", "text"), ORDINARY.values(), ids=ORDINARY.keys())
def test_ordinary_templates_are_as_without_limits(source: str, text: str) -> None:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    values: dict[str, Any] = {"x": ["a", "b"]}
    assert LimitedEnvironment().from_string(source).render(values) == text
    assert ImmutableSandboxedEnvironment().from_string(source).render(values) == text


def test_renderings_have_limits_of_their_own() -> None:
    template = LimitedEnvironment().from_string("{{ 'x' * 9000000 }}")
    assert {len(template.render()) for _ in range(40)} == {9_000_000}


def test_a_long_chat_is_no_attack() -> None:
    chat = [{"role": "user", "content": "word " * 1000}] * 1000  # a million tokens
    template = "{% for m in x %}<|im_start|>{{ m.role }}\n{{ m.content.strip() + '<|im_end|>' }}\n{% endfor %}"
    assert len(LimitedEnvironment().from_string(template).render(x=chat)) > 5_000_000
