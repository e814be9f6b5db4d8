"""Laws that catch no fault alone, and why they stay.

Each law is to be the only one of its contract that sees some fault. Where another always sees the same, by what the
laws say, the law stays if it names the defect better; and then that stands here.
"""

from __future__ import annotations

from typing import NamedTuple

ANY_CONTRACT = "*"


class Reason(NamedTuple):
    """`others`: laws of the contract, one of which sees whatever this law sees."""

    others: tuple[str, ...]
    why: str


NEVER_ALONE: dict[tuple[str, str], Reason] = {
    ("slot_pool", "atomicity"): Reason(
        ("conservation", "version_monotone", "accounting"),
        "all that can change has a law of its own; this one says that a refusal did it",
    ),
    ("block_stack", "atomicity"): Reason(
        ("structure", "accounting"), "the whole stack is stated already; this one says that a refusal changed it"
    ),
    ("block_stack", "no_double_free"): Reason(
        ("conservation", "accounting"), "what is pushed again is there twice, what is not is not counted; by name"
    ),
    ("block_stack", "no_aliasing"): Reason(
        ("structure",), "no held block is at the top of the stack; this one says whose it was"
    ),
    ("block_stack", "conservation"): Reason(
        ("structure", "no_double_free"), "the whole stack is stated already; this one says what is lost"
    ),
    ("block_pool", "conservation"): Reason(
        ("eviction_order", "no_double_free"), "the whole queue is stated already; this one says what is lost"
    ),
    ("block_pool", "no_aliasing"): Reason(
        ("eviction_order",), "no held block is at the head of the queue; this one says that it was held"
    ),
    ("radix_cache", "reset_complete"): Reason(
        ("conservation", "content_equality"), "what a reset leaves is lost, or has no KV; this one says what left it"
    ),
    ("radix_cache", "no_aliasing"): Reason(
        ("conservation",), "two owners are two places; this one says that both are going to write"
    ),
    ("paged_cache", "reset_complete"): Reason(
        ("accounting",), "what a reset leaves is not what a recount gives; this one says what left it"
    ),
    ("paged_cache", "no_aliasing"): Reason(
        ("write_isolation", "structure"), "what is taken is written at once; this one says who took it"
    ),
    ("decode_graphs", "padding_isolation"): Reason(
        ("graph_contract",), "an eager step states the whole memory; this one says that no row asked for the write"
    ),
    ("kv_manager", "prefix_soundness"): Reason(
        ("content_equality",), "a wrong cell is a wrong cell; this one says that it came with a hit"
    ),
    ("kv_manager", "write_isolation"): Reason(
        ("content_equality",), "a wrong cell is a wrong cell; this one says who wrote it"
    ),
    ("kv_manager", "leak_freedom"): Reason(
        ("accounting",), "the same sum with nothing held; this one says that nobody is left to give it back"
    ),
    ("kv_scheduler", "prefix_soundness"): Reason(
        ("content_equality",), "a wrong cell is a wrong cell; this one says that it came with a hit"
    ),
    ("kv_scheduler", "write_isolation"): Reason(
        ("content_equality",), "a wrong cell is a wrong cell; this one says who wrote it"
    ),
    ("kv_scheduler", "leak_freedom"): Reason(
        ("accounting",), "the same sum with nothing held; this one says that nobody is left to give it back"
    ),
    ("kv_scheduler", "held_tables"): Reason(
        ("content_equality",), "what is written by one table is missed in the other; this one says that there are two"
    ),
    ("kv_scheduler", "liveness"): Reason(
        ("every_request_ends",), "who gets no token does not end; this one says it sooner, and without a drain"
    ),
    (ANY_CONTRACT, "agreement"): Reason((), "some contracts state all that is seen; it is alone in the others"),
    (ANY_CONTRACT, "error_contract"): Reason((), "one piece of code for all contracts; it is alone in some"),
    (ANY_CONTRACT, "termination"): Reason((), "one clock for all contracts; it is alone in some"),
}


def reason_for(contract: str, law: str) -> Reason | None:
    """Why the law never stands alone in the contract, if it is known not to."""
    return NEVER_ALONE.get((contract, law)) or NEVER_ALONE.get((ANY_CONTRACT, law))
