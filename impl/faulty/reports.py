"""What the faults leave out: bugs seen in the field that no contract can express yet.

Ids are repository and thread. tests/data/field_bugs.txt has a line for every bug known: "D" if a machine without a GPU
should catch it, "h" if it takes more (completions, tensors, a second tier), "o" if its cause is not established; then
its ids, the first of which names it.
"""

from __future__ import annotations

SOURCES = {
    "mutant": "made up over the reference, not met",
    "rule 12": "a rule of the request-level contract",
    "lmdeploy": "met in that engine by this suite",
    "vllm#57580": "reported for recurrent states, met by this suite for windows",
    "vllm 0.33.0, impl/engines/known/vllm.toml": "met in that engine by this suite",
    "sglang#21632": "a wish: one request in one queue",
    "imp#1115": "a report that was no bug: what it took for one",
    "imp#1120": "a report that was no bug: what it took for one",
    **{f"seed 00{n}": "a document that the contracts come from" for n in range(5)},
}
"""What a fault may name besides a bug. "shape: ..." is made up, too, after a kind of bug."""

WINDOW = "window groups"
TIER = "second tier"
ROUTER = "the index of a router, which takes events in"

INEXPRESSIBLE = {
    "sglang#25805": WINDOW,
    "sglang#27586": WINDOW,
    "sglang#28161": WINDOW,
    "sglang#29351": WINDOW,
    "vllm#33270": "groups with a lookup of their own",
    "vllm#53142": "groups of several block sizes, recurrent state",
    "TensorRT-LLM#12834": TIER,
    "TensorRT-LLM#3735": TIER,
    "Mooncake#3421": "second tier, leases",
    "vllm#5578": "second tier, a scheduler's bound on what is swapped out",
    "llm-d-kv-cache#593": ROUTER,
    "dynamo#14652": ROUTER,
    "llama.cpp#26004": "save and restore",
    "vllm#55227": "the prefix common to a batch is not asked for",
    "vllm#25780": "hit metrics of resumed requests",
    "TensorRT-LLM#16037": "links between freed objects, which only a native destructor follows",
}
"""Bugs that a machine without a GPU should catch, by their first id, and what the contracts lack for them."""
