"""What `mkdocs build` does with our pages: takes in those outside docs/, and reads Markdown as GitHub does."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {
    "README.md": "getting_started.md",
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "benchmarks/README.md": "benchmarks.md",
}
"""Pages outside docs/, and their names in the site."""
_HOMES = {name: path for path, name in OUTSIDE.items()}
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=\"(https?:[^\"]+)")
_TIGHT = re.compile(r"^(?![-|]|\d+\. |\s)(.+)\n(?=- |\| |1\. )", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages outside docs/."""
    for path, name in OUTSIDE.items():
        files.append(File.generated(config, name, content=(ROOT / path).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Set lists and tables off from the text before them, and let links lead to pages of the site; others become their text."""
    name = page.file.src_uri
    folder = posixpath.dirname(_HOMES.get(name, f"docs/{name}"))

    def linked(match: re.Match[str]) -> str:
        mark, text, target, anchor = match.groups(default="")
        if ":" in target:
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        if path in OUTSIDE:
            return f"[{text}]({OUTSIDE[path]}{anchor})"
        path = "docs/README.md" if path == "docs" else path
        return f"{mark}[{text}]({path[5:]}{anchor})" if path.startswith("docs/") else text

    parts = _FENCED.split(markdown)
    parts[::2] = [_TIGHT.sub(r"\1\n\n", _LINK.sub(linked, part)) for part in parts[::2]]
    return "".join(parts)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Search on disk with our own script, where the theme loads one from the network; refuse a page that loads anything else from there."""
    output = output.replace("https://unpkg.com/iframe-worker/shim", "offline_search.js")
    loaded = _LOADED.findall(output)
    if loaded:
        raise PluginError(f"{page.file.src_uri} loads from the network: {', '.join(loaded)}")
    return output
