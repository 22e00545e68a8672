"""Compiled templates in `__pycache__` beside their sources, as Python keeps its modules: compiling them takes 0.15 s of every run."""

from __future__ import annotations

import contextlib
import marshal
import sys
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import jinja2
from jinja2.bccache import Bucket, BytecodeCache

from evalharness.api.errors import RecordError
from evalharness.runs.files import write_atomically

_FOLDER = Path(__file__).parent / "templates" / "__pycache__"
_ENVIRONMENT = Path(__file__).with_name("page.py")
"""Whose options of Jinja are compiled into the templates, too."""


class CompiledTemplates(BytecodeCache):
    """Whoever can write there can change the modules as well; where nobody can, or Python is told not to, nothing is kept."""

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        """Return the name of the template's file."""
        return f"{name}.{sys.implementation.cache_tag}.pyc"

    def load_bytecode(self, bucket: Bucket) -> None:
        """Set the code, if it was compiled from this very source."""
        with contextlib.suppress(OSError, ValueError, EOFError, TypeError):
            content, made_from = (_FOLDER / bucket.key).read_bytes(), _made_from(bucket)
            if content.startswith(made_from):
                bucket.code = marshal.loads(content[len(made_from) :])

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep the code."""
        if not sys.dont_write_bytecode and bucket.code is not None:
            with contextlib.suppress(RecordError), write_atomically(_FOLDER / bucket.key, make_folder=True) as file:
                file.write(_made_from(bucket) + marshal.dumps(bucket.code))


def _made_from(bucket: Bucket) -> bytes:
    facts = jinja2.__version__, bucket.checksum, _ENVIRONMENT.stat().st_mtime_ns, bucket.environment.autoescape
    return MAGIC_NUMBER + f"{facts}\n".encode()  # escaping is compiled in: a page never takes what was made for Markdown
