"""One page: a template's markup, then its data block by block, then its script; never all of it in memory.

The policy is written for exactly these bytes, so a page has one style and one script element.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any, TextIO

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from evalharness.report.html.filters import FILTERS
from evalharness.report.text import visible_text

__all__ = ["content_security_policy", "write_page"]

_PACKAGE = "evalharness.report.html"


def write_page(
    file: TextIO,
    template: str,
    *,
    title: str,
    scripts: Sequence[str] = (),
    styles: Sequence[str] = (),
    blocks: Iterable[str] = (),
    **context: Any,
) -> None:
    """Write the page of `templates/<template>`, which extends base.html.j2 and shows what `context` names.

    `scripts` and `styles` are files of `static/` that come after base.js and base.css; `blocks` are those of `blocks.py`,
    each written as it comes. Every text of `context` is escaped, whatever it is.
    """
    script = _joined(("base.js", *scripts))
    style = _joined(("base.css", *styles))
    policy = content_security_policy(script, style)
    head = _environment().get_template(template)
    file.writelines(head.generate(title=title, style=Markup(style), policy=Markup(policy), **context))
    for block in blocks:
        file.write(block)
    file.write(f"<script>{script}</script>\n</body>\n</html>\n")


def content_security_policy(script: str, style: str) -> str:
    """Return the policy of a page: its own script and style by their hashes, pictures from data URLs, nothing else."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"


@lru_cache(maxsize=16)
def _joined(names: tuple[str, ...]) -> str:
    folder = resources.files(_PACKAGE) / "static"
    return "\n".join((folder / name).read_text("utf-8").replace("\r\n", "\n") for name in names)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters.update(FILTERS)
    return environment


def _shown(value: Any) -> Any:
    """Return text with its control, bidi and surrogate characters by their codes; anything else as it is."""
    return visible_text(value) if isinstance(value, str) and not isinstance(value, Markup) else value
