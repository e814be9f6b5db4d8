"""Places: the file and line, relative to the package, at which a law, a trait, a method, a goal or a rule is stated."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterable
from types import ModuleType
from typing import Any


def place_of(function: Any) -> str:
    """`properties/slot_pool.py:31` for a function or a property; empty for what is not Python."""
    function = function.fget if isinstance(function, property) else function
    code = getattr(inspect.unwrap(function), "__code__", None)
    module = inspect.getmodule(function)
    return "" if code is None or module is None else f"{_path(module)}:{code.co_firstlineno}"


def place_of_text(pattern: str, modules: Iterable[str]) -> str:
    """The first line of these modules, and of those below them, that the pattern matches; empty if none does."""
    for name in modules:
        module = importlib.import_module(name)
        inside = [importlib.import_module(f"{name}.{m.name}") for m in pkgutil.iter_modules(_folders(module))]
        for one in (module, *inside):
            found = re.search(pattern, inspect.getsource(one), re.MULTILINE)
            if found is not None:
                return f"{_path(one)}:{found.string.count(chr(10), 0, found.start()) + 1}"
    return ""


def _folders(module: ModuleType) -> Iterable[str]:
    return getattr(module, "__path__", ())


def _path(module: ModuleType) -> str:
    folders = module.__name__.split(".")[1:]
    return "/".join([*folders, "__init__.py"] if hasattr(module, "__path__") else [*folders[:-1], f"{folders[-1]}.py"])
