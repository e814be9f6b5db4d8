"""Engines as they lie on disk, imported without what they need a GPU, a server or a network for.

A package's own `__init__` is not run: its folders become bare packages, so that only the modules asked for are
imported. What those import and a KV manager does not need is a stub, whose attributes are empty classes.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType
from typing import Any

ENGINE_PATH = "KVLOCKSTEP_ENGINE_PATH"
DEPTH = 4


class EngineMissing(ImportError):
    """The engine is not on this machine, or not in a version that the adapter knows."""


@dataclass(frozen=True)
class Engine:
    """`root` is the folder that holds the package; `version` is "unknown" where nothing beside it names one."""

    package: str
    root: Path
    version: str


def find(package: str, file: str, get: str) -> Engine:
    """The engine, from the folders named in KVLOCKSTEP_ENGINE_PATH or as an installed package.

    A folder named there may hold the package, or hold it up to three folders deeper, as unpacked archives do. `file`
    is one that the adapter needs, relative to the package: a version without it does not count.
    Raises EngineMissing, which says how to `get` it.
    """
    given = [Path(folder) for folder in os.environ.get(ENGINE_PATH, "").split(os.pathsep) if folder]
    for folder in given:
        for depth in range(DEPTH):
            for held in sorted(folder.glob("*/" * depth + f"{package}/{file}")):
                return _engine(package, held.parents[len(Path(file).parts)])
    spec = None if package in sys.modules else importlib.util.find_spec(package)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        if Path(location, file).is_file():
            return _engine(package, Path(location).parent)
    looked = f"neither installed nor under {', '.join(map(str, given))}" if given else "not installed"
    raise EngineMissing(f"{package} with {file} is {looked}; get it with: {get}, or name its folder with --engine-path")


def _engine(package: str, root: Path) -> Engine:
    return Engine(package, root, _version(package, root))


def _version(package: str, root: Path) -> str:
    names = {package, package.replace("_", "-")}
    for found in distributions(path=[str(root)]):
        if found.metadata["Name"] in names or (found.read_text("top_level.txt") or "").split() == [package]:
            return found.version
    patterns = {
        "PKG-INFO": r"^Version: (\S+)",
        "pyproject.toml": r'^version *= *"([^"]+)"',
        "setup.py": r'^ *version="([^"]+)"',
        f"{package}/version.py": r"^__version__ = '([^']+)'",
    }
    for beside, pattern in patterns.items():
        for folder in (root, root.parent):
            file = folder / beside
            match = re.search(pattern, file.read_text(), re.MULTILINE) if file.is_file() else None
            if match:
                return match[1]
    return "unknown"


@contextmanager
def without_the_rest(engine: Engine, bare: Sequence[str], stubs: Sequence[str]) -> Iterator[None]:
    """Lets modules of the engine be imported without the `__init__` of its `bare` packages and without its `stubs`.

    A stub of another project's package is used only where that package is missing, and only inside the block.
    Modules below a stub are stubs as well.
    """
    with suppress(ImportError):
        # Many modules of engines import Triton, which has to run its kernels in the interpreter where there is no card.
        importlib.import_module("kvlockstep.impl.interpreted")
    below = _BelowStubs()
    sys.meta_path.append(below)
    sys.path.insert(0, str(engine.root))
    if "torchvision" in stubs:
        with suppress(ImportError):
            # transformers remembers whether torchvision is there, so it has to look before the stub is.
            importlib.import_module("transformers.utils").is_torchvision_available()
    foreign = [name for name in stubs if name.split(".")[0] != engine.package]
    missing = [name for name in foreign if name not in sys.modules and not _importable(name)]
    try:
        for name in bare:
            _install(name, _package(name, engine.root.joinpath(*name.split("."))))
        for name in [*missing, *(name for name in stubs if name not in foreign)]:
            _install(name, Stub(name))
        yield
    finally:
        sys.path.remove(str(engine.root))
        sys.meta_path.remove(below)
        for name in [n for n in sys.modules if any(n == m or n.startswith(f"{m}.") for m in missing)]:
            del sys.modules[name]


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False


def _install(name: str, module: ModuleType) -> None:
    if name in sys.modules:
        return
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, module)


def _package(name: str, folder: Path) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    module.__path__ = [str(folder)]
    return module


class _Anything(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _anything(name)
        setattr(cls, name, value)
        return value


class Placeholder(metaclass=_Anything):
    """Attribute of a stub: a class to inherit from, subscript or decorate with, which does nothing."""

    def __new__(cls, *given: Any, **_options: Any) -> Any:
        decorated = len(given) == 1 and callable(given[0]) and cls.__init__ is object.__init__
        return given[0] if decorated else super().__new__(cls)

    def __class_getitem__(cls, _item: Any) -> Any:
        return cls

    def __getattr__(self, name: str) -> Any:
        return getattr(type(self), name)

    def __call__(self, *given: Any, **_options: Any) -> Any:
        return given[0] if len(given) == 1 and callable(given[0]) else self


def _anything(name: str) -> Any:
    return _Anything(name, (Placeholder,), {})


class Stub(ModuleType):
    """A module that has every attribute."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None, is_package=True)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _anything(name)
        setattr(self, name, value)
        return value


class _BelowStubs(MetaPathFinder, Loader):
    """Finds any submodule of a stub: a stub."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        below = isinstance(sys.modules.get(name.rpartition(".")[0]), Stub)
        return ModuleSpec(name, self, is_package=True) if below else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass
