"""The models by the name of their contract: that of NAME is declared in `kvlockstep.models.NAME`."""

from __future__ import annotations

import importlib
from typing import Any

from kvlockstep.models.core.model import Model
from kvlockstep.reference.catalogue import CONTRACTS


def _declared(contract: str) -> type[Model[Any]]:
    """The model in the module, or the package, that is named after the contract.

    Raises TypeError unless there is exactly one whose attribute `contract` says so.
    """
    module = importlib.import_module(f"kvlockstep.models.{contract}")
    classes = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Model)]
    found = [model for model in classes if vars(model).get("contract") == contract]
    if len(found) != 1:
        raise TypeError(f"{module.__name__} has {len(found)} models with contract = {contract!r}, not one")
    return found[0]


MODELS: dict[str, type[Model[Any]]] = {contract: _declared(contract) for contract in CONTRACTS}


def model_of(contract: str) -> type[Model[Any]]:
    """The model of a contract. Raises KeyError."""
    return MODELS[contract]
