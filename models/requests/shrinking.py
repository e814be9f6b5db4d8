"""Smaller traces of both request contracts: smaller pools, fewer requests, shorter prompts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from kvlockstep.models.core.op import Op

S = TypeVar("S", bound=Any)

NAMES, LISTS = ("request", "child"), ("tokens", "drafts")
PLAIN_KEYS = None, 0, 1
# Up to so many operations and blocks, every part is tried with every smaller pool.
FEW = 24


def smaller_pools(scope: S) -> Iterable[S]:
    """The scope with fewer blocks, or with smaller ones."""
    for blocks in sorted({1, 2, 3, 4, scope.blocks // 2, scope.blocks - 1}):
        if 0 < blocks < scope.blocks:
            yield replace(scope, blocks=blocks)
    for size in (1, 2, 4):
        if size < scope.block_size:
            yield replace(scope, block_size=size)


def less_room(scope: S, ops: Sequence[Op]) -> Iterable[tuple[S, Sequence[Op]]]:
    """Drops a request that fills the pool, or some of its tokens, and shrinks the pool by the same amount.

    Neither step alone keeps a violation that depends on the room left, as when the pool must be full.
    """
    if len(ops) > FEW:
        return
    for blocks in range(1, scope.blocks) if scope.blocks <= FEW else range(scope.blocks - FEW, scope.blocks):
        smaller, less = replace(scope, blocks=blocks), (scope.blocks - blocks) * scope.block_size
        for part in by_request(ops):
            yield smaller, [op for i, op in enumerate(ops) if i not in part]
        for i in range(len(ops)):
            if (shorter := _with_fewer_tokens(ops, i, less)) is not None:
                yield smaller, shorter


def _with_fewer_tokens(ops: Sequence[Op], at: int, less: int) -> Sequence[Op] | None:
    """Takes `less` tokens or drafts from one operation, and from the chunk that computes them."""
    op, changed = ops[at], list(ops)
    name = next((name for name in LISTS if len(op.args.get(name, ())) > less), None)
    if name is None:
        return None
    changed[at] = op.but(**{name: op.args[name][:-less]})
    if name == "tokens" and "n" in op.args:
        computes = [at, *(i for i in range(at, len(ops)) if ops[i].name == "chunk" and whose(ops[i]) == whose(op))]
        last = next((i for i in reversed(computes) if ops[i].args["n"] > less), None)
        if last is None:
            return None
        changed[last] = changed[last].but(n=ops[last].args["n"] - less)
    return changed


def plain_keys(ops: Sequence[Op]) -> Iterable[Sequence[Op]]:
    """The operations with one extra key replaced throughout: by none, else by 0 or 1."""
    for key in dict.fromkeys(op.args["extra_key"] for op in ops if op.args.get("extra_key") is not None):
        for plain in itertools.takewhile(lambda plain: plain != key, PLAIN_KEYS):  # noqa: B023
            yield [op.but(extra_key=plain) if op.args.get("extra_key") == key else op for op in ops]


def thinned_blocks(scope: S, ops: Sequence[Op]) -> Iterable[tuple[S, Sequence[Op]]]:
    """The operations in smaller blocks, with as many tokens fewer."""
    for size in (1, 2, 4):
        if size < scope.block_size:
            yield replace(scope, block_size=size), thinned(ops, scope.block_size // size)


def thinned(ops: Sequence[Op], ratio: int) -> Sequence[Op]:
    """Keeps one token of every `ratio`; a prompt that was a prefix of another one still is."""
    return [_thinned(op, ratio) for op in ops]


def _thinned(op: Op, ratio: int) -> Op:
    changes: dict[str, Any] = {"tokens": op.args["tokens"][::ratio]} if "tokens" in op.args else {}
    for name in ("n", "max_tokens"):
        if name in op.args:
            changes[name] = -(-op.args[name] // ratio)
    return op.but(**changes)


def tidied(ops: Sequence[Op], kept: Iterable[int] = ()) -> Iterable[Sequence[Op]]:
    """The operations with requests, then also tokens, numbered from 0; tokens that are `kept` stay as they are."""
    names: dict[str, str] = {}
    tokens: dict[int, int] = {token: token for token in kept}
    for op in ops:
        for name in (op.args[key] for key in NAMES if op.args.get(key) is not None):
            names.setdefault(name, f"r{len(names)}")
        for token in (*(t for key in LISTS for t in op.args.get(key, ())), op.args.get("token")):
            if token is not None:
                tokens.setdefault(token, len(tokens))
    renamed = [_renamed(op, names) for op in ops]
    yield renamed
    yield [_renumbered(op, tokens) for op in renamed]


def _renamed(op: Op, names: dict[str, str]) -> Op:
    changes: dict[str, Any] = {key: names.get(op.args[key], op.args[key]) for key in NAMES if op.args.get(key)}
    if "abort" in op.args:
        changes["abort"] = [names.get(name, name) for name in op.args["abort"]]
    return op.but(**changes)


def _renumbered(op: Op, tokens: dict[int, int]) -> Op:
    changes: dict[str, Any] = {key: [tokens[t] for t in op.args[key]] for key in LISTS if key in op.args}
    if op.args.get("token") is not None:
        changes["token"] = tokens[op.args["token"]]
    return op.but(**changes)


def by_request(ops: Sequence[Op]) -> list[set[int]]:
    """The positions of each request's operations and of all that was forked from it, in order of appearance."""
    parts: dict[str, set[int]] = {}
    for i, op in enumerate(ops):
        if (name := whose(op)) is not None:
            parts.setdefault(name, set()).add(i)
    for op in reversed(ops):
        if op.args.get("child") in parts and op.args["request"] in parts:
            parts[op.args["request"]] |= parts[op.args["child"]]
    return list(parts.values())


def of_requests(ops: Sequence[Op], names: Iterable[str]) -> list[Op]:
    """The operations without those of other requests than these and than those from which these were forked."""
    kept = set(names)
    for op in reversed(ops):
        if op.args.get("child") in kept:
            kept.add(op.args["request"])
    return [op for op in ops if (name := whose(op)) is None or name in kept]


def without_forks(ops: Sequence[Op]) -> Iterable[Sequence[Op]]:
    """Drops one fork: from there the parent does only the operations of its child."""
    for i in range(len(ops) - 1, -1, -1):
        child, parent = ops[i].args.get("child"), ops[i].args.get("request")
        if child is not None and parent is not None:
            rest = [op for op in ops[i + 1 :] if op.args.get("request") != parent]
            yield [*ops[:i], *(_renamed(op, {child: parent}) for op in rest)]


def whose(op: Op) -> str | None:
    """The request whose operation this is; a fork is its child's."""
    name = op.args.get("child") or op.args.get("request")
    return name if isinstance(name, str) else None
