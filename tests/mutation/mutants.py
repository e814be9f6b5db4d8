"""The mutants of a file: those of cosmic-ray, without those that cannot be told from the original."""

from __future__ import annotations

import functools
import hashlib
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cosmic_ray.plugins
import parso
from cosmic_ray.ast import ast_nodes
from cosmic_ray.mutating import mutate_code

# On numbers `is` is `==` with less sense, and among the mutants is `==`; on None and on types `==` is `is`.
IDENTITY = re.compile(r"ReplaceComparisonOperator_((Eq|NotEq|Lt|LtE|Gt|GtE)_(Is|IsNot)|Is_Eq|IsNot_NotEq)$")
# The order of words, as in `name < "alloc"`, means nothing to anybody.
ORDER = re.compile(r"ReplaceComparisonOperator_(Eq|NotEq)_(Lt|LtE|Gt|GtE)$")
WORD = re.compile(r"""(==|!=)\s*["'][^"']*["']""")
# Decorators that tell a type checker something, or only save time.
IDLE_DECORATORS = re.compile(r"@(functools\.)?(cache|lru_cache|runtime_checkable|final|override|abstractmethod)\b")
# Arguments that, once False, let pass what nobody does.
GUARDS = re.compile(r"(strict|slots|frozen)\s*=\s*True$")
# Lines that ask for a GPU, and what only runs with one.
CARD = re.compile("cuda|pin_memory|non_blocking")
ONLY_ON_A_CARD = {
    "impl/decode_graphs/captures.py": ("CudaCapture",),
    "impl/kv_streams/streams.py": ("CudaQueues",),
    "impl/kernels.py": ("gate", "_gate"),
}


@dataclass(frozen=True)
class Mutant:
    """One change of one file. `line` and `number` say where it begins, `nth` tells it from others of this line."""

    file: str
    line: str
    number: int
    operator: str
    occurrence: int
    nth: int

    def source(self, original: str) -> str | None:
        """The changed file, or None if that is no Python."""
        operator = cosmic_ray.plugins.get_operator(f"core/{self.operator}")()
        changed: str | None = mutate_code(original, operator, self.occurrence)
        with warnings.catch_warnings(action="ignore"):
            try:
                compile(changed or "", self.file, "exec", dont_inherit=True)
            except (SyntaxError, ValueError):
                return None
        return changed if changed != original else None

    @property
    def id(self) -> str:
        """Stays the same whatever else changes in the file."""
        return self.rank("")[:8]

    def rank(self, seed: object) -> str:
        """Orders the mutants of a file at random."""
        text = f"{seed} {self.file} {self.line} {self.operator} {self.nth}"
        return hashlib.sha256(text.encode()).hexdigest()


def mutants(file: str, source: str, *, card: bool = False) -> list[Mutant]:
    """The mutants of a file, in the order of cosmic-ray's operators. Without a `card` what only runs on one is left."""
    nodes = list(ast_nodes(parso.parse(source)))
    lines = source.splitlines()
    found = []
    seen: Counter[tuple[str, str]] = Counter()
    for operator, occurrence, node, start in _places(nodes):
        line = lines[start[0] - 1].strip()
        nth, seen[line, operator] = seen[line, operator], seen[line, operator] + 1
        if not _pointless(node, operator, line) and (card or not (CARD.search(line) or _on_a_card(file, node))):
            found.append(Mutant(file, line, start[0], operator, occurrence, nth))
    return found


def sample(file: str, source: str, size: int, seed: int, *, card: bool = False) -> Iterator[tuple[Mutant, str]]:
    """Mutants with their source, in a random order of the seed; `size` of them, or all if it is 0."""
    ranked = sorted(mutants(file, source, card=card), key=lambda mutant: mutant.rank(seed))
    drawn = 0
    for mutant in ranked:
        changed = mutant.source(source)
        if changed is not None:
            yield mutant, changed
            drawn += 1
            if drawn == size:
                return


@functools.cache
def _operators() -> tuple[tuple[str, Any], ...]:
    names = cosmic_ray.plugins.operator_names()
    made = [(name.removeprefix("core/"), cosmic_ray.plugins.get_operator(name)) for name in names]
    return tuple((name, kind()) for name, kind in made if not kind.arguments())


def _places(nodes: list[Any]) -> Iterator[tuple[str, int, Any, tuple[int, int]]]:
    for name, operator in _operators():
        occurrence = 0
        for node in nodes:
            for start, _ in operator.mutation_positions(node):
                yield name, occurrence, node, start
                occurrence += 1


def _pointless(node: Any, operator: str, line: str) -> bool:
    """Whether nothing that a user can see depends on the change, whatever the program."""
    if IDENTITY.search(operator) or (operator == "RemoveDecorator" and IDLE_DECORATORS.match(line)):
        return True
    if ORDER.search(operator) and WORD.search(node.get_code()):
        return True
    if operator == "ReplaceTrueWithFalse" and GUARDS.match(node.parent.get_code().strip()):
        return True
    if node.type == "operator" and node.parent.type == "parameters":  # `*` before arguments that are named
        return True
    return any(_unread(child, parent) for child, parent in _ancestry(node)) or "TYPE_CHECKING" in line


def _ancestry(node: Any) -> Iterator[tuple[Any, Any]]:
    while node.parent is not None:
        yield node, node.parent
        node = node.parent


def _unread(child: Any, parent: Any) -> bool:
    """Annotations, what stands in a protocol, and the wording of messages."""
    if parent.type == "annassign":
        return child is parent.children[1]
    if parent.type == "tfpdef":
        return child is parent.children[2]
    if parent.type == "funcdef":
        return child is parent.annotation
    if parent.type == "classdef":
        return "Protocol" in (parent.get_super_arglist().get_code() if parent.get_super_arglist() else "")
    return bool(parent.type == "fstring")


def _on_a_card(file: str, node: Any) -> bool:
    names = ONLY_ON_A_CARD.get(file, ())
    return any(parent.type in ("classdef", "funcdef") and parent.name.value in names for _, parent in _ancestry(node))
