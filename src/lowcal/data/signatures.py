"""Keywords that many functions share: declared once as a TypedDict, named one by one in every signature."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def spelled_out(keywords: Any, **defaults: Any) -> Callable[[F], F]:
    """Let `help`, editors and the docs show each key of a TypedDict in place of `**shared`, with its default or None.

    >>> from typing import TypedDict
    >>> class Shared(TypedDict, total=False):
    ...     sample_weight: list[float] | None
    >>> @spelled_out(Shared)
    ... def total(y, **shared):
    ...     return sum(y)
    >>> list(signature(total).parameters)
    ['y', 'sample_weight']
    """

    def decorate(function: F) -> F:
        own = signature(function)
        parameters = [one for one in own.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        for name, kind in keywords.__annotations__.items():
            annotation = getattr(kind, "__forward_arg__", kind)
            parameters.append(
                Parameter(name, Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=annotation)
            )
        function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return decorate
