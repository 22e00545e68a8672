"""One page: a template's markup, then its data block by block, then its script; never all of it in memory.

The policy is written for exactly these bytes, so a page has one style and one script element.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, TextIO

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from evalharness.report.html.compiled_templates import CompiledTemplates
from evalharness.report.html.site import page_links
from evalharness.report.text import figure_text, markdown_cell, number_text, one_line, plural, visible_text


def percent(share: float) -> str:
    """Return a place on a scale from 0 to 1 as an SVG length."""
    return f"{100 * min(max(share, 0.0), 1.0):.2f}%"


_FILTERS: Mapping[str, Callable[..., str]] = {
    "number": number_text, "figure": figure_text, "percent": percent, "plural": plural, "short": one_line,
}  # fmt: skip


_PACKAGE = "evalharness.report.html"


def write_page(
    file: TextIO,
    template: str,
    *,
    path: Path,
    title: str,
    scripts: Sequence[str] = (),
    styles: Sequence[str] = (),
    blocks: Iterable[str] = (),
    **context: Any,
) -> None:
    """Write the page of `templates/<template>`, which extends base.html.j2 and shows what `context` names; it will lie at `path`.

    `scripts` and `styles` are files of `static/` that come after base.js and base.css; `blocks` are those below,
    each written as it comes. Every text of `context` is escaped, whatever it is.
    """
    script = _joined(("base.js", *scripts))
    style = _joined(("base.css", *styles))
    # The page's own script and style by their hashes, pictures from data URLs, nothing else.
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    file.writelines(render(template, title=title, links=page_links(path), style=Markup(style), policy=Markup(policy), **context))
    for block in blocks:
        file.write(block)
    file.write(f"<script>{script}</script>\n</body>\n</html>\n")


def render(template: str, **context: Any) -> Iterator[str]:
    """Yield the text of `templates/<template>` part by part; every text of `context` is escaped, whatever it is."""
    return _environment().get_template(template).generate(**context)


def render_markdown(template: str, **context: Any) -> Iterator[str]:
    """Yield the text of a Markdown `templates/<template>`; texts are escaped, at full length with the filter `cell`, but for `Markup`."""
    return _markdown_environment().get_template(template).generate(**context)


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"


@lru_cache(maxsize=16)
def _joined(names: tuple[str, ...]) -> str:
    folder = resources.files(_PACKAGE) / "static"
    return "\n".join((folder / name).read_text("utf-8").replace("\r\n", "\n") for name in names)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    return _made(autoescape=True, finalize=_shown)


@lru_cache(maxsize=1)
def _markdown_environment() -> Environment:
    environment = _made(
        autoescape=False,
        keep_trailing_newline=True,
        finalize=lambda value: value if isinstance(value, Markup) or not isinstance(value, str) else markdown_cell(value),
    )
    environment.filters["cell"] = lambda text, max_chars: Markup(markdown_cell(text, max_chars))
    return environment


def _made(**options: Any) -> Environment:
    environment = Environment(
        loader=PackageLoader(_PACKAGE),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=CompiledTemplates(),
        **options,
    )
    environment.filters.update(_FILTERS)
    return environment


def _shown(value: Any) -> Any:
    """Return text with its control, bidi and surrogate characters by their codes; anything else as it is."""
    return visible_text(value) if isinstance(value, str) and not isinstance(value, Markup) else value


_ID = re.compile(r"[a-z][a-z0-9-]*")
# Nothing of these may stand in a script element as it is: they could end it, or open a comment in it.
_UNSAFE = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}
_LEVEL = 1
"""Of zlib: level 6 saves a fifth of the bytes for five times the seconds."""


def json_block(block_id: str, data: Any) -> str:
    """Return an inert script element that holds `data` as JSON; `ValueError` for NaN, `TypeError` for anything that is not JSON.

    ASCII only, so no surrogate, line separator or encoding can spoil it.
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":")).translate(_UNSAFE)
    return _element(block_id, "application/json", text)


def packed_block(block_id: str, data: bytes) -> str:
    """Return an inert script element that holds `data` compressed; `openBlock` of base.js gives it back as text."""
    return _element(block_id, "application/octet-stream", base64.b64encode(zlib.compress(data, _LEVEL)).decode("ascii"))


def text_block(block_id: str, data: bytes) -> str:
    """Return an inert script element that holds `data` as base64, for compressed data such as a JPEG."""
    return _element(block_id, "text/plain", base64.b64encode(data).decode("ascii"))


def _element(block_id: str, kind: str, content: str) -> str:
    if not _ID.fullmatch(block_id):
        raise ValueError(f"a block's id must look like rows-1, got {block_id!r}")
    return f'<script type="{kind}" id="{block_id}">{content}</script>\n'
