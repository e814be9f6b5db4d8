"""Kernels of an engine, imported without the engine: its files as they lie on disk, and by hand what they import."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from kvlockstep.impl.engines.loading import Engine, without_the_rest
from kvlockstep.impl.interpreted import DEVICE, INTERPRETED


class Apart:
    """Modules of an engine, below its `bare` packages, that other adapters of it do not see.

    `given` has, by the name of a module, what the others import from it. A name that is not there is an ImportError, so
    that a new release is loud. Other adapters load the same package with other stubs: what they have in sys.modules is
    set aside `inside`, and is there again afterwards.
    """

    def __init__(self, engine: Engine, bare: Iterable[str], given: Mapping[str, Mapping[str, Any]]) -> None:
        self._engine, self._given = engine, given
        self._bare = sorted(_with_parents([*bare, *given]))
        self._own: dict[str, ModuleType] = {}

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Lets the engine's code import its modules, also those that it imports while it runs."""
        package = self._engine.package
        before = {name: sys.modules.pop(name) for name in _below(package)}
        sys.modules.update(self._own)
        try:
            with without_the_rest(self._engine, self._bare, ()):
                if not self._own:
                    self._give()
                yield
        finally:
            self._own = {name: sys.modules.pop(name) for name in _below(package)}
            sys.modules.update(before)

    def load(self, *names: str) -> list[Any]:
        """Imports modules of the engine."""
        with self.inside():
            return [importlib.import_module(name) for name in names]

    def _give(self) -> None:
        for name, values in self._given.items():
            module = ModuleType(name)
            vars(module).update(values)
            vars(module)["__path__"] = []
            sys.modules[name] = module
            parent, _, last = name.rpartition(".")
            setattr(sys.modules[parent], last, module)


def _below(package: str) -> list[str]:
    return [name for name in sys.modules if name.split(".")[0] == package]


def _with_parents(names: Iterable[str]) -> set[str]:
    """The packages above these modules."""
    parts = [name.split(".") for name in names]
    return {".".join(each[:i]) for each in parts for i in range(1, len(each))}


def cuda_platform() -> SimpleNamespace:
    """What kernels ask of an engine's platform: a card of this machine's kind, or one of today where there is none."""
    capability = torch.cuda.get_device_capability() if not INTERPRETED else (9, 0)
    return SimpleNamespace(
        has_device_capability=lambda wanted: 10 * capability[0] + capability[1] >= wanted,
        get_device_capability=lambda: capability,
        is_rocm=lambda: False,
        is_xpu=lambda: False,
        is_cuda=lambda: True,
        fp8_dtype=lambda: torch.float8_e4m3fn,
        device_type=DEVICE,
    )
