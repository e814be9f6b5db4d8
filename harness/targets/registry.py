"""Targets by name: those that come with the package or with others, `module:factory` and `file.py:factory`."""

from __future__ import annotations

import inspect
import tomllib
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from kvlockstep.core.errors import UsageError
from kvlockstep.core.system import CAN_FORK
from kvlockstep.core.trace import TARGETS_BY_ID
from kvlockstep.impl.engines import loading
from kvlockstep.models.core.model import Factory
from kvlockstep.models.registry import MODELS
from kvlockstep.targets import importing
from kvlockstep.targets.validation import require_usable

BUILT_IN: dict[str, dict[str, str]] = {
    "slot_pool": {"reference": "kvlockstep.reference.slot_pool:SlotPool", "pool": "kvlockstep.impl.slot_pool:SlotPool"},
    "slot_prefix_cache": {
        "reference": "kvlockstep.reference.slot_prefix_cache:SlotPrefixCache",
        "tree": "kvlockstep.impl.slot_prefix_cache.cache:SlotPrefixCache",
    },
    "block_stack": {
        "reference": "kvlockstep.reference.block_stack:BlockStack",
        "stack": "kvlockstep.impl.block_stack:BlockStack",
        "sglang-pages": "kvlockstep.impl.engines.sglang.block_stack:PagedBlockStack",
    },
    "radix_cache": {
        "reference": "kvlockstep.reference.radix_cache.cache:RadixCache",
        "radix": "kvlockstep.impl.radix_cache.cache:RadixCache",
    },
    "block_pool": {
        "reference": "kvlockstep.reference.block_pool.pool:BlockPool",
        "pool": "kvlockstep.impl.block_pool.pool:BlockPool",
        "vllm-pool": "kvlockstep.impl.engines.vllm.block_pool:VllmBlockPool",
    },
    "paged_cache": {
        "reference": "kvlockstep.reference.paged_cache.cache:PagedCache",
        "paged": "kvlockstep.impl.paged_cache.cache:PagedCache",
    },
    "kv_store": {
        "reference": "kvlockstep.reference.kv_store:KVStore",
        "tensors": "kvlockstep.impl.kv_store.store:KVStore",
    },
    "decode_graphs": {
        "reference": "kvlockstep.reference.decode_graphs.graphs:DecodeGraphs",
        "graphs": "kvlockstep.impl.decode_graphs.graphs:DecodeGraphs",
    },
    "kv_streams": {
        "reference": "kvlockstep.reference.kv_streams.store:KVStreams",
        "streams": "kvlockstep.impl.kv_streams.store:KVStreams",
    },
    "kv_manager": {
        "reference": "kvlockstep.reference.kv_manager.manager:KVManager",
        "blocks": "kvlockstep.impl.kv_manager.blocks:BlockManager",
        "slots": "kvlockstep.impl.kv_manager.slots:SlotManager",
        "radix": "kvlockstep.impl.kv_manager.radix:RadixManager",
        "pool": "kvlockstep.impl.kv_manager.pool:PoolManager",
        "paged": "kvlockstep.impl.kv_manager.paged:PagedManager",
        "transformers": "kvlockstep.impl.engines.transformers.manager:make",
        "vllm": "kvlockstep.impl.engines.vllm.manager:make",
        "vllm-uncached": "kvlockstep.impl.engines.vllm.manager:make_uncached",
        "vllm-lora": "kvlockstep.impl.engines.vllm.manager:make_lora",
        "sglang": "kvlockstep.impl.engines.sglang.manager:make_unified_rust",
        "sglang-python": "kvlockstep.impl.engines.sglang.manager:make_unified_python",
        "sglang-radix": "kvlockstep.impl.engines.sglang.manager:make_radix",
        "nano-vllm": "kvlockstep.impl.engines.nano_vllm.manager:make",
        "mini-sglang": "kvlockstep.impl.engines.mini_sglang.manager:make",
        "mini-sglang-repaired": "kvlockstep.impl.engines.mini_sglang.manager:make_repaired",
        "lightllm": "kvlockstep.impl.engines.lightllm.manager:make",
        "lmdeploy": "kvlockstep.impl.engines.lmdeploy.manager:make",
    },
    "kv_scheduler": {
        "reference": "kvlockstep.reference.kv_scheduler.scheduler:KVScheduler",
        "vllm": "kvlockstep.impl.engines.vllm.scheduler:make",
        "vllm-priority": "kvlockstep.impl.engines.vllm.scheduler:make_priority",
        "vllm-async": "kvlockstep.impl.engines.vllm.scheduler:make_async",
        "vllm-ngram": "kvlockstep.impl.engines.vllm.scheduler:make_ngram",
        "vllm-async-ngram": "kvlockstep.impl.engines.vllm.scheduler:make_async_ngram",
        "vllm-async-eagle": "kvlockstep.impl.engines.vllm.scheduler:make_async_eagle",
        "sglang": "kvlockstep.impl.engines.sglang.scheduler:make_overlap",
        "sglang-normal": "kvlockstep.impl.engines.sglang.scheduler:make",
        "sglang-priority": "kvlockstep.impl.engines.sglang.scheduler:make_overlap_priority",
        "sglang-mixed-repaired": "kvlockstep.impl.engines.sglang.scheduler:make_overlap_mixed_repaired",
        "nano-vllm": "kvlockstep.impl.engines.nano_vllm.scheduler:make",
        "mini-sglang": "kvlockstep.impl.engines.mini_sglang.scheduler:make",
        "mini-sglang-repaired": "kvlockstep.impl.engines.mini_sglang.scheduler:make_repaired",
        "overlap": "kvlockstep.impl.kv_scheduler.overlap:OverlapScheduler",
    },
}
ENGINES = (
    "transformers",
    "vllm",
    "vllm-uncached",
    "vllm-lora",
    "vllm-pool",
    "vllm-priority",
    "vllm-async",
    "vllm-ngram",
    "vllm-async-ngram",
    "vllm-async-eagle",
    "sglang",
    "sglang-python",
    "sglang-radix",
    "sglang-pages",
    "sglang-normal",
    "sglang-priority",
    "sglang-mixed-repaired",
    "nano-vllm",
    "mini-sglang",
    "mini-sglang-repaired",
    "lightllm",
    "lmdeploy",
)
ENGINE_PATH = loading.ENGINE_PATH
EngineMissing = loading.EngineMissing
load = importing.load
ENTRY_POINTS = "kvlockstep.targets"
KNOWN = Path(loading.__file__).with_name("known")
FAULT_PREFIX, HARMLESS_PREFIX = TARGETS_BY_ID
CPU = "cpu"


@dataclass(frozen=True)
class Target:
    """A factory under the name that reports, traces and commands use for it."""

    contract: str
    name: str
    factory: Factory
    device: str = CPU


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
    """The target named `spec`: a known name, `fault:ID`, `harmless:ID`, `module:factory` or `file.py:factory`; `@cuda`
    after it puts its tensors there. Raises UsageError.
    """
    check_contract(contract)
    name, _, device = spec.rpartition("@")
    if name and device != CPU and ":" not in device:
        return on_device(resolve(contract, name), device)
    if spec.startswith(HARMLESS_PREFIX):
        return _harmless(contract, spec)
    if spec.startswith(FAULT_PREFIX):
        return _fault(contract, spec)
    path = known_targets(contract).get(spec, spec)
    if ":" not in path:
        known = ", ".join(known_targets(contract))
        raise UsageError(f"unknown target {spec!r} for {contract}; known: {known}; or {importing.FORMS}")
    return validate(Target(contract, spec, load(path, spec)))


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


def validate(target: Target) -> Target:
    """Makes one instance and names everything it lacks in one message. Raises UsageError."""
    require_usable(target.contract, target.name, target.factory, apart=CAN_FORK and target.device == CPU)
    return target


@dataclass(frozen=True)
class KnownDivergence:
    """Where an engine is known to break a law: `kind` is bug, misuse or policy, `reason` the argument."""

    id: str
    kind: str
    version: str
    contract: str
    target: str
    law: str
    trace: Path
    reason: str


def known_divergences() -> list[KnownDivergence]:
    """Those listed beside the adapters, one file per engine."""
    rows = [
        (file.parent / row.pop("trace"), row)
        for file in sorted(KNOWN.glob("*.toml"))
        for row in tomllib.loads(file.read_text())["divergence"]
    ]
    return [KnownDivergence(kind=row.pop("class"), trace=trace, **row) for trace, row in rows]


def faults() -> dict[str, Any]:
    """Every fault by its id, with contract, factory, shape, where it was seen, and the law expected to catch it."""
    from kvlockstep.impl.faulty import FAULTS  # noqa: PLC0415

    return dict(FAULTS)


def known_faults(contract: str) -> dict[str, str]:
    """The faults of a contract: id to shape. Each is a target, `fault:ID`."""
    return {fault.id: fault.shape for fault in faults().values() if fault.contract == contract}


def clean_twins(contract: str) -> list[str]:
    """Targets that are known to be right: the reference, our own implementations, harmless variations."""
    from kvlockstep.impl.variants.kv_manager import HARMLESS  # noqa: PLC0415

    own = [name for name in BUILT_IN[contract] if name not in ENGINES]
    return own + [HARMLESS_PREFIX + name for name in HARMLESS if contract == "kv_manager"]


def _harmless(contract: str, spec: str) -> Target:
    from kvlockstep.impl.variants.kv_manager import HARMLESS  # noqa: PLC0415

    manager = HARMLESS.get(spec.removeprefix(HARMLESS_PREFIX))
    if manager is None or contract != "kv_manager":
        raise UsageError(f"unknown target {spec!r} for {contract}; known for kv_manager: {', '.join(HARMLESS)}")
    return Target(contract, spec, manager)


def _fault(contract: str, spec: str) -> Target:
    fault = faults().get(spec.removeprefix(FAULT_PREFIX))
    if fault is None or fault.contract != contract:
        known = ", ".join(known_faults(contract))
        raise UsageError(f"unknown fault {spec!r} for {contract}; known: {known}")
    return Target(contract, spec, fault.make)
