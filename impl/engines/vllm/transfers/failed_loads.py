"""Where a request of vLLM (0.33.0) waits behind a load that has failed in full.

The engine leaves it with those that hold blocks, which start before all others, and counts what it lacks against
itself: see vllm-failed-load-keeps-its-place and vllm-failed-load-waits-for-itself in known.toml.
"""

from __future__ import annotations

from typing import Any


class FailedLoads:
    """The repair of both, for the requests of one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        # Requests that were moved to the other queue, and have not started since.
        self._moved: set[Any] = set()

    def reserve_nothing(self) -> None:
        """Takes those who have nothing left from those for whom the engine reserves blocks. Call it before a batch."""
        for rid in self._scheduler.failed_recving_kv_req_ids:
            request = self._scheduler.requests.get(rid)
            if request is not None and not request.num_computed_tokens:
                self._scheduler._inflight_prefills.discard(request)

    def move(self) -> None:
        """Lets who holds nothing wait with those that hold nothing, by arrival. Call it before a batch."""
        scheduler, holding = self._scheduler, self._scheduler.kv_holding_waiting
        heard = scheduler.failed_recving_kv_req_ids & scheduler.finished_recving_kv_req_ids
        for request in list(holding):
            if request.request_id in heard and not request.num_computed_tokens:
                scheduler._handle_blocked_waiting_request(request)
            if not scheduler._holds_kv_blocks(request):
                holding.remove_request(request)
                _queue_by_arrival(scheduler.waiting, request)
                self._moved.add(request)

    def keep_places(self) -> None:
        """Puts who loads again where it stood: the engine would not have moved it. Call it behind a batch."""
        holding = self._scheduler.kv_holding_waiting
        self._moved.intersection_update([*holding, *self._scheduler.waiting])
        for request in self._moved.intersection(holding):
            holding.remove_request(request)
            _queue_by_arrival(holding, request)


def _queue_by_arrival(queue: Any, request: Any) -> None:
    """Puts a request into a queue of the engine in front of all that have come later."""
    later = [other for other in queue if other.arrival_time > request.arrival_time]
    queue.remove_requests(later)
    for one in (request, *later):
        queue.add_request(one)
