"""Laws that are never the only one to see a fault, and why they stay.

Each law should be the only law of its contract that sees some fault. A shadowed law is not: whatever it sees, some
other law sees as well. It stays because it names the defect better, and this file says how.
"""

from __future__ import annotations

from typing import NamedTuple

ANY_CONTRACT = "*"


class Shadow(NamedTuple):
    """`others`: laws of the contract; whatever the shadowed law sees, one of them sees. `why`: why the law stays."""

    others: tuple[str, ...]
    why: str


# By contract and law. ANY_CONTRACT stands for the laws that every contract has.
SHADOWED: dict[tuple[str, str], Shadow] = {
    ("slot_pool", "atomicity"): Shadow(
        ("conservation", "version_monotone", "accounting"),
        "everything that can change has a law of its own; this one says that a refused call changed it",
    ),
    ("block_stack", "atomicity"): Shadow(
        ("structure", "accounting"),
        "other laws state the whole stack; this one says that a refused call changed it",
    ),
    ("block_stack", "no_double_free"): Shadow(
        ("conservation", "accounting"),
        "a block pushed twice is on the stack twice, or not counted; this one names the block",
    ),
    ("block_stack", "no_aliasing"): Shadow(
        ("structure",), "a held block is never at the top of the stack; this one says who holds it"
    ),
    ("block_stack", "conservation"): Shadow(
        ("structure", "no_double_free"), "other laws state the whole stack; this one says what is lost"
    ),
    ("block_pool", "conservation"): Shadow(
        ("eviction_order", "no_double_free"), "other laws state the whole queue; this one says what is lost"
    ),
    ("block_pool", "no_aliasing"): Shadow(
        ("eviction_order",), "a held block is never at the head of the queue; this one says that it is held"
    ),
    ("radix_cache", "reset_complete"): Shadow(
        ("conservation", "content_equality"),
        "what a reset leaves behind is lost or has no KV; this one says that a reset left it",
    ),
    ("radix_cache", "no_aliasing"): Shadow(
        ("conservation",), "a page with two owners is in two places; this one says that both will write it"
    ),
    ("paged_cache", "reset_complete"): Shadow(
        ("accounting",), "what a reset leaves behind differs from a recount; this one says that a reset left it"
    ),
    ("paged_cache", "no_aliasing"): Shadow(
        ("write_isolation", "structure"), "a block is written as soon as it is taken; this one says who took it"
    ),
    ("kv_write", "padding"): Shadow(
        ("write_isolation",), "the byte is nobody's in any case; this one says that it comes from a row for padding"
    ),
    ("kv_write", "codes"): Shadow(
        ("decoded_within_bound",), "what is decoded is off in any case; this one says that the scale is not to blame"
    ),
    ("paged_alloc", "atomicity"): Shadow(
        ("conservation",), "what is taken is lost in any case; this one says that a refused batch took it"
    ),
    ("slot_mapping", "atomicity"): Shadow(
        ("structure",), "other laws state all rows; this one says that no commit was asked for"
    ),
    ("decode_graphs", "padding_isolation"): Shadow(
        ("graph_contract",), "an eager step states the whole memory; this one says that no row asked for the write"
    ),
    ("kv_tier", "quiescence"): Shadow(
        ("tier_accounting",), "it is the same sum with nothing held; this one says that nobody can free the rest"
    ),
    ("kv_tier", "idempotent"): Shadow(
        ("tier_accounting",), "the sum is wrong in any case; this one says that there was nothing to do"
    ),
    ("kv_tier", "crash_consistency"): Shadow(
        ("tier_accounting",), "the units are wrong in any case; this one says that a crash made them so"
    ),
    ("kv_manager", "prefix_soundness"): Shadow(
        ("content_equality",), "the content is wrong in any case; this one says that it came with a hit"
    ),
    ("kv_manager", "write_isolation"): Shadow(
        ("content_equality",), "the content is wrong in any case; this one says who wrote it"
    ),
    ("kv_manager", "leak_freedom"): Shadow(
        ("accounting",), "it is the same sum with no request live; this one says that nobody can free the rest"
    ),
    ("kv_manager", "load_before_read"): Shadow(
        ("content_equality",), "the content is wrong in any case; this one says that a transfer had not landed"
    ),
    ("kv_scheduler", "prefix_soundness"): Shadow(
        ("content_equality",), "the content is wrong in any case; this one says that it came with a hit"
    ),
    ("kv_scheduler", "write_isolation"): Shadow(
        ("content_equality",), "the content is wrong in any case; this one says who wrote it"
    ),
    ("kv_scheduler", "leak_freedom"): Shadow(
        ("accounting",), "it is the same sum with no request live; this one says that nobody can free the rest"
    ),
    ("kv_scheduler", "load_before_read"): Shadow(
        ("content_equality", "source_stable"),
        "the content is wrong, or changes while it is read, in any case; this one says that a transfer had not landed",
    ),
    ("kv_scheduler", "transfer_progress"): Shadow(
        ("every_request_ends",), "a request that is only loaded never ends; this one says so without a drain"
    ),
    ("kv_scheduler", "held_tables"): Shadow(
        ("content_equality", "coverage"),
        "KV written through one table is missing in the other, or has no slot there; this one says that there are two",
    ),
    ("kv_scheduler", "liveness"): Shadow(
        ("every_request_ends",), "a request without tokens never ends; this one says so earlier and without a drain"
    ),
    (ANY_CONTRACT, "agreement"): Shadow((), "some contracts state everything visible; the law is alone in the others"),
    (ANY_CONTRACT, "error_contract"): Shadow((), "all contracts share its code; the law is alone in some of them"),
    (ANY_CONTRACT, "termination"): Shadow((), "all contracts share its clock; the law is alone in some of them"),
}


def shadow_of(contract: str, law: str) -> Shadow | None:
    """The entry of a law that is known to be shadowed in the contract, or None."""
    return SHADOWED.get((contract, law)) or SHADOWED.get((ANY_CONTRACT, law))
