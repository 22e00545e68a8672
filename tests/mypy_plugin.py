"""A mypy plugin that reports `get` of a key that a TypedDict does not have, which mypy itself passes as `object`."""

from __future__ import annotations

from collections.abc import Callable

from mypy.plugin import MethodContext, Plugin
from mypy.plugins.default import typed_dict_get_callback
from mypy.typeops import try_getting_str_literals
from mypy.types import Type, TypedDictType


class _StrictGet(Plugin):
    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        return _get if fullname == "typing.Mapping.get" else None


def _get(context: MethodContext) -> Type:
    if isinstance(context.type, TypedDictType) and context.args and context.args[0]:
        for key in try_getting_str_literals(context.args[0][0], context.arg_types[0][0]) or ():
            if key not in context.type.items:
                known = context.type.fallback.type.name
                context.api.fail(f'TypedDict "{known}" has no key "{key}"', context.context)
    return typed_dict_get_callback(context)


def plugin(version: str) -> type[Plugin]:
    """Return the plugin for this version of mypy; mypy calls it by this name."""
    return _StrictGet
