"""Targets by name: those that come with the package or with others, `module:factory` and `file.py:factory`."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from kvlockstep import impl
from kvlockstep.core.errors import UsageError, did_you_mean, known_names
from kvlockstep.core.system import CAN_FORK
from kvlockstep.core.trace import TARGETS_BY_ID
from kvlockstep.impl import engines, variants
from kvlockstep.impl.engines import loading
from kvlockstep.models.core.model import Factory
from kvlockstep.models.registry import MODELS
from kvlockstep.reference.catalogue import CONTRACTS
from kvlockstep.targets import importing
from kvlockstep.targets.validation import require_usable

ENGINE_PATH = loading.ENGINE_PATH
EngineMissing = loading.EngineMissing
load = importing.load
ENTRY_POINTS = "kvlockstep.targets"
KNOWN = "known.toml"
FAULT_PREFIX, *VARIANT_PREFIXES = TARGETS_BY_ID
VARIANT_PREFIX = VARIANT_PREFIXES[0]
CPU, CUDA = "cpu", "cuda"


def engine_names() -> list[str]:
    """The packages below `impl.engines`, each an engine, in the order in which tables show them."""
    first = engines.SHOWN_FIRST
    names = [module.name for module in pkgutil.iter_modules(engines.__path__) if module.ispkg]
    return sorted(names, key=lambda name: (first.index(name) if name in first else len(first), name))


def declared_by(modules: Iterable[ModuleType]) -> dict[str, dict[str, str]]:
    """Collects the TARGETS of these modules by contract. Raises ValueError for an unknown contract."""
    found: dict[str, dict[str, str]] = {contract: {} for contract in CONTRACTS}
    for module in modules:
        for contract, targets in module.TARGETS.items():
            if contract not in found:
                raise ValueError(f"{module.__name__}.TARGETS: no contract {contract!r}; known: {', '.join(found)}")
            found[contract].update(targets)
    return found


# Name to `module:factory`, by contract. What a folder below impl/engines declares is an engine, all else is ours.
OWN_TARGETS = {c: {"reference": CONTRACTS[c].reference, **targets} for c, targets in declared_by([impl]).items()}
ENGINE_TARGETS = declared_by(importlib.import_module(f"{engines.__name__}.{name}") for name in engine_names())


def built_in(contract: str) -> dict[str, str]:
    """The targets that come with the package: name to `module:factory`. Raises KeyError for an unknown contract."""
    return {**OWN_TARGETS[contract], **ENGINE_TARGETS[contract]}


def engine_of(contract: str, name: str) -> str | None:
    """The engine of a target that comes with the package, None if it is of none."""
    module = ENGINE_TARGETS[contract].get(name, "").partition(":")[0]
    return module.removeprefix(f"{engines.__name__}.").split(".")[0] or None


@dataclass(frozen=True)
class Target:
    """A factory under the name that reports, traces and commands use for it."""

    contract: str
    name: str
    factory: Factory
    device: str = CPU


def known_targets(contract: str) -> dict[str, str]:
    """Name to `module:factory`, including targets that other packages register for the contract.

    Another package registers under the entry point group `kvlockstep.targets` with names `contract.name`. It cannot
    take a name that a target here has.
    """
    known = built_in(contract)
    for entry in entry_points(group=ENTRY_POINTS):
        of, _, name = entry.name.partition(".")
        if of == contract and name:
            known.setdefault(name, entry.value)
    return known


def check_contract(contract: str) -> str:
    """Answers the contract's name. Raises UsageError if there is none of this name."""
    if contract not in MODELS:
        raise UsageError(f"unknown contract {contract!r}{known_names(contract, MODELS)}")
    return contract


def resolve(contract: str, spec: str) -> Target:
    """The target named `spec`: a known name, `fault:ID`, `variant:ID`, `module:factory` or `file.py:factory`; `@cuda`
    after it puts its tensors there. Raises UsageError.
    """
    check_contract(contract)
    name, _, device = spec.rpartition("@")
    if name and device != CPU and ":" not in device:
        return on_device(resolve(contract, name), device)
    if spec.startswith(tuple(VARIANT_PREFIXES)):
        return _variant(contract, spec)
    if spec.startswith(FAULT_PREFIX):
        return _fault(contract, spec)
    # To look for what other packages register takes 10 ms.
    path = built_in(contract).get(spec) or known_targets(contract).get(spec, spec)
    if ":" not in path:
        if spec.endswith(importing.SUFFIX):
            raise UsageError(f"target {spec!r} names no factory: give {spec}:NAME, the class or function in that file")
        known = known_names(spec, known_targets(contract))
        raise UsageError(f"unknown target {spec!r} for {contract}{known}; or {importing.FORMS}")
    factory = load(path, spec)
    # Adapters of kernels say whether an interpreter runs them. Else they are on the card, if there is one.
    plain = getattr(factory, "interpreted", True) is False
    device = getattr(sys.modules.get(f"{impl.__name__}.interpreted"), "DEVICE", CPU) if plain else CPU
    return validate(Target(contract, spec, factory, device), known=spec in OWN_TARGETS[contract])


def on_device(target: Target, device: str) -> Target:
    """The target with its tensors on a device. Raises UsageError if it has none, or none can be made there."""
    parameters = inspect.signature(target.factory).parameters
    if "device" not in parameters:
        raise UsageError(f"target {target.name!r} for {target.contract} keeps nothing on a device")
    tensors = {"tensors": True} if "tensors" in parameters else {}
    factory = partial(target.factory, device=device, **tensors)
    return validate(Target(target.contract, f"{target.name}@{device}", factory, device))


def from_factory(contract: str, factory: Factory) -> Target:
    """A target of a factory given in Python. Raises UsageError if it does not make targets of the contract."""
    check_contract(contract)
    module = getattr(factory, "__module__", type(factory).__module__)
    name = getattr(factory, "__qualname__", type(factory).__qualname__)
    return validate(Target(contract, f"{module}:{name}", factory))


def validate(target: Target, known: bool = False) -> Target:
    """Makes one instance and names everything it lacks in one message. Raises UsageError.

    A child makes it first, unless the target is `known` not to end the process.
    """
    apart = CAN_FORK and target.device == CPU and not known
    require_usable(target.contract, target.name, target.factory, apart)
    return target


@dataclass(frozen=True)
class KnownDivergence:
    """A known violation of a law by an engine: `kind` is bug, misuse or policy, `reason` the argument."""

    id: str
    kind: str
    version: str
    contract: str
    target: str
    law: str
    trace: Path
    reason: str


def known_divergences() -> list[KnownDivergence]:
    """Those that the folder of each engine lists."""
    files = [Path(folder, name, KNOWN) for folder in engines.__path__ for name in sorted(engine_names())]
    rows = [
        (file.parent / row.pop("trace"), row)
        for file in files
        if file.is_file()
        for row in tomllib.loads(file.read_text())["divergence"]
    ]
    return [KnownDivergence(kind=row.pop("class"), trace=trace, **row) for trace, row in rows]


def faults() -> dict[str, Any]:
    """Every fault by its id."""
    from kvlockstep.impl.faulty import FAULTS  # noqa: PLC0415

    return dict(FAULTS)


def known_faults(contract: str) -> dict[str, str]:
    """The faults of a contract: id to the sentence that describes it. Each is a target, `fault:ID`."""
    return {fault.id: fault.what for fault in faults().values() if fault.contract == contract}


def known_good_targets(contract: str) -> list[str]:
    """Targets that are known to be right: the reference, our own implementations and the variants."""
    return [*OWN_TARGETS[contract]] + [VARIANT_PREFIX + name for name in variants_of(contract)]


def variants_of(contract: str) -> dict[str, Factory]:
    """The variants of a contract's reference by name; none where no module of `impl.variants` has its name."""

    if contract not in (module.name for module in pkgutil.iter_modules(variants.__path__)):
        return {}
    found: dict[str, Factory] = importlib.import_module(f"{variants.__name__}.{contract}").VARIANTS
    return found


def _variant(contract: str, spec: str) -> Target:
    known = variants_of(contract)
    name = spec.partition(":")[2]
    variant = known.get(name)
    if variant is None:
        # All of them, however many: nothing else lists variants.
        listed = f"{did_you_mean(name, known) or ';'} known for {contract}: {', '.join(known) or 'none'}"
        raise UsageError(f"unknown target {spec!r} for {contract}{listed}")
    return Target(contract, spec, variant)


def _fault(contract: str, spec: str) -> Target:
    fault = faults().get(spec.removeprefix(FAULT_PREFIX))
    if fault is None or fault.contract != contract:
        names = known_names(spec.removeprefix(FAULT_PREFIX), known_faults(contract))
        wrong = f": it is one of {fault.contract}" if fault is not None else names
        raise UsageError(f"unknown fault {spec!r} for {contract}{wrong}")
    return Target(contract, spec, fault.make)
