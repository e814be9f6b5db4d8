"""Goals of kv_scheduler: events that a run must meet before it says anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kvlockstep.models.core.model import Goal
from kvlockstep.models.kv_scheduler.groups.goals import GROUP_GOALS
from kvlockstep.models.kv_scheduler.job import Job
from kvlockstep.models.requests.listening import Listening
from kvlockstep.models.requests.transfers.goals import FAILED, MOVED, RESET, STORED, reachable
from kvlockstep.models.requests.transfers.transfers import Transfers
from kvlockstep.reference.kv_scheduler.contract import Item
from kvlockstep.reference.kv_scheduler.traits import SchedulerTraits

GOALS = (
    Goal("hit", "a request starts with cached tokens", "prefix_cache"),
    Goal("shared", "two live requests share a block", "prefix_cache"),
    Goal("eviction", "a batch takes more blocks than were free", "prefix_cache"),
    Goal("physical_reuse", "a slot is written by a second request"),
    Goal("chunk", "a prompt is computed in chunks"),
    Goal("mixed", "a batch has prompts and decodes", "mixes"),
    Goal("preempt", "a request is preempted", "preempts"),
    Goal("resume", "a preempted request comes back", "preempts"),
    Goal("resume_with_output", "a preempted request comes back with sampled tokens", "preempts"),
    Goal("overlap", "a batch is scheduled while another is in flight", "overlap"),
    Goal("preempt_in_flight", "a request is preempted before its token has arrived", "overlap_preempts"),
    Goal("late_token", "a token arrives for a request that has ended", "ends_in_flight"),
    Goal("ended_by_token", "a request ends by END_TOKEN"),
    Goal("ended_by_length", "a request ends by its `max_tokens`-th token"),
    Goal("abort_waiting", "a request is aborted before it starts", "aborts"),
    Goal("abort_in_flight", "a request is aborted with its batch in flight", "aborts_in_flight"),
    Goal("abort_preempted", "a preempted request is aborted", "aborts_preempted"),
    Goal("drafts", "a batch has drafts", "drafts"),
    Goal("accepted_drafts", "some drafts are accepted", "drafts"),
    Goal("rejected_drafts", "some drafts are rejected", "drafts"),
    Goal("behind_accepted", "a request continues behind accepted drafts in flight", "drafts_overlap"),
    Goal("behind_rejected", "a request continues behind rejected drafts in flight", "drafts_overlap"),
    Goal("preempt_drafts", "a request is preempted with drafts in flight", "drafts_overlap_preempts"),
    Goal("late_drafts", "drafts arrive for a request that has ended", "drafts_overlap"),
    Goal("reset_live", "a reset sends live requests back to waiting", "can_reset"),
    Goal("extra_key", "a request has an extra key", "extra_key"),
    Goal("drain", "a drain runs every request to its end"),
    *STORED,
    *FAILED,
    Goal("own_load_fails", "a load fails in front of the batch that waits for it", "own_loads_fail"),
    *RESET,
    *MOVED,
    Goal("beside_move", "a batch runs while a request waits for a move", "waits_for_moves"),
    Goal("kept_by_move", "a batch is empty, since a request needs the units of another one's move", "waits_for_units"),
    Goal("offered", "a load reads what another instance has offered", "peer"),
    Goal("lost", "a load, or a move, reads a unit that its tier has lost", "loses"),
    Goal("sent", "a request that ends by itself has a block to be stored", "durable"),
    Goal(
        "sent_preempted", "a request ends by the last token of a batch behind which it was preempted", "sends_preempted"
    ),
    Goal("announced_hit", "a request hits blocks that events have announced", "event_listener"),
    Goal("announced_removal", "an event announces that a block is gone", "event_listener"),
    Goal("announced_tier", "an event says what a tier has", "events_of_tiers"),
    *GROUP_GOALS,
)

# What a goal depends on that only targets with tiers can reach.
TIER_GOALS = frozenset(
    (
        *("tiers", "apart", "stores_apart", "aborts_loading", "stores_fail", "loads_fail", "own_loads_fail"),
        *("loads_several", "loads_tear"),
        *("moves", "moves_fail", "moves_tear", "waits_for_moves", "waits_for_units"),
        *("several_loads", "frees_under_store", "pins_most", "writes_back"),
        *("resets_in_flight", "peer", "loses", "durable"),
        *("sends_preempted", "events_of_tiers", "groups_and_tiers", "groups_durable"),
    )
)


def notice_start(met: Counter[str], job: Job, item: Item) -> None:
    """Counts the first item of a request, or the first one after a preemption."""
    met["hit"] += item.start > 0
    met["resume"] += job.preempted
    met["resume_with_output"] += job.preempted and job.delivered > 0


def notice_sharing(met: Counter[str], tables: Mapping[str, Sequence[int]], block_size: int) -> None:
    """Counts the tables that share a block with one before them."""
    held: set[int] = set()
    for table in tables.values():
        blocks = {slot // block_size for slot in table}
        met["shared"] += not blocks.isdisjoint(held)
        held |= blocks


def unreachable(
    traits: SchedulerTraits,
    saw_evictable: bool,
    transfers: Transfers | None,
    listening: Listening | None,
    grouped: bool,
) -> set[str]:
    """Returns the goals that do not apply to the scheduler, by its traits and its behaviour so far."""
    overlap, drafts_overlap = traits.overlap > 1, traits.overlap > 1 and traits.drafts > 0
    tiers = bool(traits.tiers)
    has = {
        **vars(traits),
        "groups": grouped,
        "groups_and_tiers": grouped and tiers,
        "groups_durable": grouped and traits.durable,
        "event_listener": listening is not None,
        "events_of_tiers": listening is not None and listening.hears_of_tiers,
        # In front of a batch a load of the one before may be over, if that batch has waited for it.
        "aborts_loading": tiers and (traits.aborts == "any" or bool(traits.aborts and overlap)),
        **reachable(traits, transfers),
        "own_loads_fail": transfers is not None and transfers.has_own and "load" in transfers.fallible,
        "sends_preempted": traits.durable and overlap and traits.preempts and traits.preempts_in_flight,
        "waits_for_moves": traits.moves and traits.patience != 0,
        "waits_for_units": traits.buffered and traits.patience != 0,
        "overlap": overlap,
        "overlap_preempts": overlap and traits.preempts and traits.preempts_in_flight,
        "ends_in_flight": overlap or traits.aborts == "any",
        "aborts_in_flight": traits.aborts == "any" or (traits.aborts and overlap),
        "aborts_preempted": traits.aborts and traits.preempts,
        "drafts_overlap": drafts_overlap,
        "drafts_overlap_preempts": drafts_overlap and traits.preempts and traits.preempts_in_flight,
    }
    never = {goal.id for goal in GOALS if goal.when and not has[goal.when]}
    return never if saw_evictable else never | {"eviction"}
