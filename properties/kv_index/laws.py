"""Laws of kv_index. The numbered rules are those of the contract, in reference/kv_index/rules.py.

After each operation the judge in models/kv_index/judge.py asks for every sequence that it has asked for before. Each
answer is judged by one law, chosen by what has just happened, so that a finding names its cause:

- by `worker_isolated`, if something happened to another worker;
- by `duplicate_harmless`, if an old event arrived, and by `snapshot_exact` behind a snapshot;
- by `clear_heard`, if the worker cleared its cache or left;
- by `parent_first`, if blocks were stored behind a parent that is not known;
- else by `index_exact`, or by `index_safe` behind a gap.
"""

from __future__ import annotations

from typing import NamedTuple

from kvlockstep.properties.law import ERROR_CONTRACT, TERMINATION, counted, law, laws_of
from kvlockstep.reference.kv_index.contract import Worker


class Answer(NamedTuple):
    """What the index knows of `worker`: the first `blocks` blocks of `tokens` under `extra_key`.

    By the events that arrived there are at least `least` and at most `most`. `before` is the answer to the same
    question before the last operation.
    """

    worker: Worker
    tokens: tuple[int, ...]
    extra_key: int | None
    blocks: int
    least: int
    most: int
    before: int = 0

    def __str__(self) -> str:
        under = f" under extra key {self.extra_key}" if self.extra_key is not None else ""
        return f"worker {self.worker} is said to have {counted(self.blocks, 'block')} of {list(self.tokens)}{under}"


@law("kv_index", answers=("llm-d-kv-cache#411", "sglang#24568", "sglang#14934", "vllm#55092", "dynamo#14652"))
def index_exact(answer: Answer) -> str | None:
    """Without a gap the index knows the stored head of every sequence: no block less, no block more (rule 4)."""
    return _between(answer)


@law("kv_index", answers=("vllm#48933",))
def index_safe(answer: Answer) -> str | None:
    """Behind a gap the index knows no block that no event announced, or whose removal arrived (rule 5)."""
    if answer.blocks <= answer.most:
        return None
    return f"{answer}, of which {_were(answer.most)} announced and not removed"


@law("kv_index", answers=("llm-d-kv-cache#593",))
def clear_heard(answer: Answer) -> str | None:
    """When a worker clears its cache or leaves, none of its blocks are known any more."""
    return f"{answer}, whose cache is empty" if answer.blocks else None


@law("kv_index", answers=("tokenspeed#87",))
def parent_first(answer: Answer) -> str | None:
    """Blocks behind a parent that is not known are not found yet, nor ever under another prefix (rule 4)."""
    return _between(answer)


@law("kv_index", needs=("ignores_old",))
def duplicate_harmless(answer: Answer) -> str | None:
    """An event that arrives behind its successor, or for the second time, changes nothing (rule 6)."""
    return None if answer.blocks == answer.before else f"{answer}, and {answer.before} before an old event arrived"


@law("kv_index")
def worker_isolated(answer: Answer) -> str | None:
    """What happens to one worker changes nothing that is known of another."""
    if answer.blocks == answer.before:
        return None
    return f"{answer}, and {answer.before} before something happened to another worker"


@law("kv_index", needs=("can_snapshot", "can_resync"))
def snapshot_exact(answer: Answer) -> str | None:
    """A new index that is fed with the snapshot of another knows the same (rule 8)."""
    return None if answer.blocks == answer.before else f"{answer}, by the index that the snapshot is of {answer.before}"


@law("kv_index", needs=("tells_gaps",))
def gap_once(worker: Worker, number: int, last: int, told: object) -> str | None:
    """A gap is told when it is met, and only then: the event behind it is not a gap again (rule 3)."""
    missed = number > last + 1
    if bool(told) == missed:
        return None
    is_one = "is a gap and was not told" if missed else "is no gap and was told as one"
    return f"event {number} of worker {worker} behind event {last} {is_one}"


def _between(answer: Answer) -> str | None:
    if answer.least <= answer.blocks <= answer.most:
        return None
    wanted = str(answer.least) if answer.least == answer.most else f"{answer.least} to {answer.most}"
    return f"{answer}, not {wanted}"


def _were(n: int) -> str:
    return f"{n} {'was' if n == 1 else 'were'}"


LAWS = (*laws_of(globals()), ERROR_CONTRACT, TERMINATION)
