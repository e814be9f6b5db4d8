"""Adapters of engines, a folder for each.

A folder's `__init__` names its targets in TARGETS and imports nothing. Its `known.toml`, if it has one, lists where the
engine is known to break a law; the traces lie beside it.
"""

# Tables show these first, in this order, and all others by name.
SHOWN_FIRST = ("transformers", "vllm", "sglang", "nano_vllm", "mini_sglang")
