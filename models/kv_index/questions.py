"""Questions to an index: each answer is judged by one law, and asked for again after each operation."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from kvlockstep.models.core.bounded import bounded
from kvlockstep.models.core.taking import taken
from kvlockstep.models.requests.adapter import answered
from kvlockstep.models.requests.checks import Checks
from kvlockstep.models.requests.traits import as_number
from kvlockstep.properties.kv_index import laws
from kvlockstep.properties.kv_index.heard import Heard
from kvlockstep.properties.law import Law

# More questions would only make steps slower: each is asked after each operation.
MOST_ASKED = 16
Question = tuple[tuple[int, ...], Any]
# The blocks of each worker that has any.
Answers = dict[Any, int]


class Questions:
    """Every question so far with its last answer. Those of `always` are kept, of the others the MOST_ASKED latest.

    `heard` is what arrived of each worker, by its number, and may change between the calls.
    """

    def __init__(self, heard: Sequence[Heard], checks: Checks, index: Any, always: Iterable[Question]) -> None:
        self._heard, self._checks = heard, checks
        self.answers: dict[Question, Answers] = {}
        self._always = 10**9
        for question in always:
            self.ask(index, *question)
        self._always = len(self.answers)

    def bounding(self, worker: int) -> Law[Any]:
        """The law on what the index knows of a worker, whatever happened."""
        return laws.index_safe if self._heard[worker].gap else laws.index_exact

    def ask(
        self, index: Any, tokens: tuple[int, ...], extra_key: Any, of: int | None = None, law: Law[Any] | None = None
    ) -> Answers:
        """Asks for a sequence that may be new, and remembers it. What is known of worker `of` is judged by `law`."""
        question = tokens, extra_key
        answers = _known(index, question, len(self._heard), self._checks)
        for worker in range(len(self._heard)):
            judging = law if law is not None and worker == of else self.bounding(worker)
            self._check(judging, worker, question, answers, answers)
        # Those of `always` stay in front; any other moves to the end, so that the oldest stands behind those.
        if question not in itertools.islice(self.answers, self._always):
            self.answers.pop(question, None)
        self.answers[question] = answers
        if len(self.answers) > self._always + MOST_ASKED:
            del self.answers[next(itertools.islice(self.answers, self._always, None))]
        return answers

    def ask_again(self, index: Any, of: int | None, law: Law[Any]) -> int:
        """Asks everything after something happened to worker `of`, or to the index. Returns the most blocks by which
        an answer on that worker grew.
        """
        grown = 0
        for question, before in self.answers.items():
            answers = _known(index, question, len(self._heard), self._checks)
            for worker in range(len(self._heard)):
                own = of is None or worker == of
                self._check(law if own else laws.worker_isolated, worker, question, answers, before)
            if of is not None:
                grown = max(grown, answers.get(of, 0) - before.get(of, 0))
            self.answers[question] = answers
        return grown

    def _check(self, law: Law[Any], worker: int, question: Question, answers: Answers, before: Answers) -> None:
        tokens, extra_key = question
        least, most = self._heard[worker].bounds(tokens, extra_key)
        blocks, blocks_before = answers.get(worker, 0), before.get(worker, 0)
        self._checks.check(law, laws.Answer(worker, tokens, extra_key, blocks, least, most, blocks_before))


def _known(index: Any, question: Question, workers: int, checks: Checks) -> Answers:
    """What the index answers, without workers that have nothing. Raises Divergence for one that never was."""
    tokens, extra_key = question
    given = list(tokens)
    answer = answered(index.known, given, extra_key)

    def counts() -> Answers | None:
        found = {worker: as_number(blocks) for worker, blocks in bounded(answer.items())}
        return None if None in found.values() else {worker: blocks for worker, blocks in found.items() if blocks}

    found = taken(counts, answer, index.known, "{worker: blocks}")
    for stranger in [worker for worker in found if worker not in range(workers)]:
        checks.check(laws.worker_isolated, laws.Answer(stranger, tokens, extra_key, found[stranger], 0, 0))
    # Both belong to the caller; an index that keeps one of them shows.
    given.clear()
    if isinstance(answer, dict):
        answer.clear()
    return found
