"""Linear models on sparse data larger than memory, with a proof of how close to the optimum they are."""

TYPE_CHECKING = False  # instead of typing.TYPE_CHECKING, because importing typing is slow
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "ConvertConfig": "config",
    "CsrBlock": "store.csr_block",
    "Existing": "conversion.output_check",
    "Model": "scoring.model",
    "OocPegasosError": "errors",
    "Store": "store.store",
    "TrainConfig": "config",
    "TrainResult": "training.result",
    "convert": "conversion.pipeline",
    "train": "training.api",
    "verify": "store.verify",
}
__all__ = [
    "ConvertConfig",
    "CsrBlock",
    "Existing",
    "Model",
    "OocPegasosError",
    "Store",
    "TrainConfig",
    "TrainResult",
    "convert",
    "train",
    "verify",
]


def __getattr__(name: str) -> "Any":
    """Import a public name on first use, because importing numba and pyarrow is slow."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
