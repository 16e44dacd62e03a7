"""Choice of the functions of a loss while numba compiles: by its number, or by the type of a registered loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.extending import models, overload, register_model


class PluggedLossType(types.Type):  # type: ignore[misc]
    """The numba type of a registered loss, for which kernels are compiled."""

    def __init__(self, name: str, functions: Any) -> None:
        super().__init__(name=f"PluggedLoss({name}, {id(functions)})")
        self.functions = functions


register_model(PluggedLossType)(models.OpaqueModel)


def choice(
    built_in: Callable[..., Any], plugged: Callable[[Any], Callable[..., Any]], is_inlined: bool
) -> Callable[..., Any]:
    """Return a function (loss, *arguments) that numba replaces by `built_in`, or by `plugged` of the functions."""

    def chosen(loss: Any, *arguments: Any) -> Any:
        """Stand for the function that the type of the loss chooses."""

    @overload(chosen, strict=False, jit_options={"forceinline": is_inlined})
    def choose(loss: Any, *_arguments: Any) -> Callable[..., Any]:
        if isinstance(loss, PluggedLossType):
            function = plugged(loss.functions)
            return lambda loss, *arguments: function(*arguments)
        return built_in

    return chosen
