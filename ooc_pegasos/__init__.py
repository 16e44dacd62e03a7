"""Linear models on sparse data larger than memory, with a proof of how close to the optimum they are."""

TYPE_CHECKING = False  # instead of typing.TYPE_CHECKING, because importing typing is slow
if TYPE_CHECKING:
    from ooc_pegasos.config import ConvertConfig, TrainConfig
    from ooc_pegasos.conversion.output_check import Existing
    from ooc_pegasos.conversion.pipeline import convert
    from ooc_pegasos.errors import OocPegasosError
    from ooc_pegasos.scoring.model import Model
    from ooc_pegasos.store.csr_block import CsrBlock
    from ooc_pegasos.store.store import Store
    from ooc_pegasos.store.verify import verify
    from ooc_pegasos.training.api import fit, train
    from ooc_pegasos.training.result import TrainResult

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
    "fit": "training.api",
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
    "fit",
    "train",
    "verify",
]


if not TYPE_CHECKING:  # for type checkers a misspelt name is an error

    def __getattr__(name: str) -> object:
        """Import a public name when it is used: numba and pyarrow take a while."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
