"""The models by the name of their contract: that of NAME is declared in `kvlockstep.models.NAME`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
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


def model_of(contract: str) -> type[Model[Any]]:
    """The model of a contract. Raises KeyError."""
    return MODELS[contract]


class _Models(Mapping[str, type[Model[Any]]]):
    """Imports a model when it is first asked for; all of them take longer than the rest of the command line."""

    def __init__(self) -> None:
        self.imported: dict[str, type[Model[Any]]] = {}

    def __getitem__(self, contract: str) -> type[Model[Any]]:
        if contract not in self.imported:
            if contract not in CONTRACTS:
                raise KeyError(contract)
            self.imported[contract] = _declared(contract)
        return self.imported[contract]

    def __iter__(self) -> Iterator[str]:
        return iter(CONTRACTS)

    def __len__(self) -> int:
        return len(CONTRACTS)

    def __contains__(self, contract: object) -> bool:
        return contract in CONTRACTS


MODELS = _Models()
