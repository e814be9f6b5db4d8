"""Targets by name: the ones that come with the package, those of other packages, and `module:factory`."""

from __future__ import annotations

import importlib
import traceback
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from kvlockstep.errors import UsageError
from kvlockstep.models.model import Factory
from kvlockstep.models.registry import MODELS
from kvlockstep.reference.catalogue import CONTRACTS
from kvlockstep.reference.contracts import KV_OPTIONAL

BUILT_IN: dict[str, dict[str, str]] = {
    "slot_pool": {"reference": "kvlockstep.reference.slot_pool:SlotPool", "pool": "kvlockstep.impl.slot_pool:SlotPool"},
    "slot_prefix_cache": {
        "reference": "kvlockstep.reference.slot_prefix_cache:SlotPrefixCache",
        "tree": "kvlockstep.impl.slot_prefix_cache:SlotPrefixCache",
    },
    "block_stack": {
        "reference": "kvlockstep.reference.block_stack:BlockStack",
        "stack": "kvlockstep.impl.block_stack:BlockStack",
    },
    "radix_cache": {
        "reference": "kvlockstep.reference.radix_cache:RadixCache",
        "radix": "kvlockstep.impl.radix_cache:RadixCache",
    },
    "block_pool": {
        "reference": "kvlockstep.reference.block_pool:BlockPool",
        "pool": "kvlockstep.impl.block_pool:BlockPool",
    },
    "paged_cache": {
        "reference": "kvlockstep.reference.paged_cache:PagedCache",
        "paged": "kvlockstep.impl.paged_cache:PagedCache",
    },
    "kv_store": {
        "reference": "kvlockstep.reference.kv_store:KVStore",
        "tensors": "kvlockstep.impl.kv_store:KVStore",
    },
    "kv_manager": {
        "reference": "kvlockstep.reference.kv_manager:KVManager",
        "blocks": "kvlockstep.impl.block_manager:BlockManager",
        "slots": "kvlockstep.impl.slot_manager:SlotManager",
        "radix": "kvlockstep.impl.radix_manager:RadixManager",
        "pool": "kvlockstep.impl.pool_manager:PoolManager",
        "paged": "kvlockstep.impl.paged_manager:PagedManager",
        "transformers": "kvlockstep.impl.engines.transformers:make",
    },
}
ENGINES = ("transformers",)
ENTRY_POINTS = "kvlockstep.targets"
FAULT_PREFIX = "fault:"


@dataclass(frozen=True)
class Target:
    """A factory under the name that reports, traces and commands use for it."""

    contract: str
    name: str
    factory: Factory


def known_targets(contract: str) -> dict[str, str]:
    """Name to `module:factory`, including targets that other packages register for the contract.

    Another package registers under the entry point group `kvlockstep.targets` with names `contract.name`.
    """
    known = dict(BUILT_IN[contract])
    for entry in entry_points(group=ENTRY_POINTS):
        of, _, name = entry.name.partition(".")
        if of == contract and name:
            known[name] = entry.value
    return known


def check_contract(contract: str) -> str:
    """Answers the contract's name. Raises UsageError if there is none of this name."""
    if contract not in MODELS:
        raise UsageError(f"unknown contract {contract!r}; known: {', '.join(MODELS)}")
    return contract


def resolve(contract: str, spec: str) -> Target:
    """The target named `spec`: a known name, `fault:ID`, or `module:factory`. Raises UsageError."""
    check_contract(contract)
    if spec.startswith(FAULT_PREFIX):
        return _fault(contract, spec)
    path = known_targets(contract).get(spec, spec)
    if ":" not in path:
        known = ", ".join(known_targets(contract))
        raise UsageError(f"unknown target {spec!r} for {contract}; known: {known}; or give module:factory")
    return validate(Target(contract, spec, load(path)))


def load(path: str) -> Any:
    """What `module:attribute` names. Raises UsageError."""
    module_name, _, attribute = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise UsageError(f"cannot import target {path!r}: {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"cannot import target {path!r}: module {module_name} has no {attribute!r}")
        found = getattr(found, part)
    return found


def from_factory(contract: str, factory: Factory) -> Target:
    """A target of a factory given in Python. Raises UsageError if it does not make targets of the contract."""
    check_contract(contract)
    module = getattr(factory, "__module__", type(factory).__module__)
    name = getattr(factory, "__qualname__", type(factory).__qualname__)
    return validate(Target(contract, f"{module}:{name}", factory))


def validate(target: Target) -> Target:
    """Makes one instance and names everything it lacks in one message. Raises UsageError."""
    contract = CONTRACTS[target.contract]
    signature = f"make({', '.join(contract.probe)})"
    if not callable(target.factory):
        raise UsageError(f"target {target.name!r} is not callable; a {target.contract} factory is {signature}")
    sizes = tuple(contract.probe.values())
    try:
        made = target.factory(*sizes)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise UsageError(
            f"target {target.name!r}: its factory, called as {signature} with {sizes}, raised "
            f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        ) from error
    wanted = [name for name in vars(contract.protocol) if not name.startswith("_")]
    if target.contract == "kv_manager":
        wanted += ["block_size", "total"]
        wanted += [method for method, trait in KV_OPTIONAL.items() if getattr(made, trait, False)]
    missing = [name for name in wanted if not hasattr(made, name)]
    if missing:
        raise UsageError(
            f"target {target.name!r} ({type(made).__name__}) lacks for {target.contract}: {', '.join(missing)}"
        )
    return target


def known_faults(contract: str) -> dict[str, str]:
    """The faults of a contract: id to shape. Each is a target, `fault:ID`."""
    from kvlockstep.impl.faulty import FAULTS  # noqa: PLC0415

    return {fault.id: fault.shape for fault in FAULTS.values() if fault.contract == contract}


def _fault(contract: str, spec: str) -> Target:
    from kvlockstep.impl.faulty import FAULTS  # noqa: PLC0415

    fault = FAULTS.get(spec.removeprefix(FAULT_PREFIX))
    if fault is None or fault.contract != contract:
        known = ", ".join(f.id for f in FAULTS.values() if f.contract == contract)
        raise UsageError(f"unknown fault {spec!r} for {contract}; known: {known}")
    return Target(contract, spec, fault.make)
