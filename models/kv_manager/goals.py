"""Goals of kv_manager: events that a run must meet before it says anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kvlockstep.models.core.model import Goal
from kvlockstep.models.kv_manager.groups.goals import GROUP_GOALS
from kvlockstep.models.kv_manager.one_table import OneTable
from kvlockstep.models.requests.request import Request
from kvlockstep.models.requests.transfers.goals import FAILED, MOVED, RESET, STORED, reachable

GOALS = (
    Goal("hit", "a request starts with cached tokens", "prefix_cache"),
    Goal("full_prompt_hit", "everything but the last block of a whole-block prompt is cached", "prefix_cache"),
    Goal("eviction", "a step takes more blocks than were free", "prefix_cache"),
    Goal("physical_reuse", "a slot is written by a second request"),
    Goal("twins", "equal prompts are admitted in one step, before either is cached"),
    Goal("admit_into_step", "a request is admitted in a step that already has work"),
    Goal("refused_admission", "an admission is refused"),
    Goal("refused_reserve", "a reservation is refused"),
    Goal("chunk", "a prompt is computed in chunks", "chunk"),
    Goal("abort_in_prefill", "a request is aborted with part of its prompt computed", "chunk"),
    Goal("launched_abort", "a request is aborted after its forward was launched"),
    Goal("preempt", "a request is preempted"),
    Goal("resume", "a preempted request comes back"),
    Goal("reverse_commits", "a step commits in another order than it scheduled"),
    Goal("drafts", "drafts are reserved behind a decode", "drafts"),
    Goal("rejected_drafts", "some drafts are rejected", "drafts"),
    Goal("withdraw", "a scheduled request is withdrawn", "can_withdraw"),
    Goal("fork", "a request is forked", "can_fork"),
    Goal("fork_in_block", "a request is forked in the middle of a block", "can_fork"),
    Goal("copies", "slots are copied", "copies"),
    Goal("reset_live", "a reset ends live requests", "can_reset"),
    Goal("evict_all", "everything cached is evicted", "can_evict_all"),
    Goal("extra_key", "a request has an extra key", "extra_key"),
    Goal("announced_hit", "a request hits blocks that events have announced", "event_listener"),
    Goal("announced_removal", "an event announces that a block is gone", "event_listener"),
    Goal("length_0_mod_block", "a prompt fills its last block"),
    Goal("length_1_mod_block", "a prompt has one token in its last block"),
    Goal("length_-1_mod_block", "a prompt is one token short of filling its last block"),
    Goal("long_request", "a prompt has nine blocks or more"),
    Goal("decode_at_block_start", "a decode writes the first slot of a block"),
    *GROUP_GOALS,
    Goal("announced_tier", "an event says what a tier has", "events_of_tiers"),
    *STORED,
    Goal("preempt_loading", "a request is preempted while it waits for a load", "aborts_loading"),
    Goal("load_beside", "a step runs while a request waits for a load", "aborts_loading"),
    *FAILED,
    Goal("ready_less", "a request is ready with less than its admission has promised", "loads_fail"),
    *MOVED,
    Goal("fetching", "an admission is told to wait for a fetch", "waits_for_moves"),
    Goal("fetch_beside", "a step runs while a request waits for a fetch", "waits_for_moves"),
    Goal("abort_fetching", "a request is aborted while it waits for a fetch", "waits_for_moves"),
    Goal("lost", "a load, or a move, reads a unit that its tier has lost", "loses"),
    *RESET,
)


def notice_prompt(met: Counter[str], request: Request, admitted: Iterable[Request], block_size: int) -> None:
    """Counts the goals of a new prompt; `admitted` are the requests that this step has admitted before it."""
    length, residue = len(request.tokens), len(request.tokens) % block_size
    met["length_0_mod_block"] += residue == 0
    met["length_1_mod_block"] += residue == 1 % block_size
    met["length_-1_mod_block"] += residue == block_size - 1
    met["long_request"] += length >= 9 * block_size
    met["extra_key"] += request.extra_key is not None
    met["twins"] += any(r.tokens == request.tokens and r.extra_key == request.extra_key for r in admitted)


def notice_hit(met: Counter[str], request: Request, block_size: int) -> None:
    """Counts the hit of a request that was admitted."""
    met["hit"] += request.hit > 0
    length = len(request.tokens)
    met["full_prompt_hit"] += length % block_size == 0 and request.hit >= length - block_size > 0


def unreachable(session: OneTable) -> set[str]:
    """Returns the goals that do not apply to the manager: by its traits and its behaviour so far."""
    traits = session.traits
    has = {
        **vars(traits),
        "groups": session.grouped,
        "groups_and_tiers": session.grouped and session.transfers is not None,
        # The judge has no listener where tables come by block, whatever the target declares.
        "event_listener": session.listening is not None,
        **reachable(traits, session.transfers),
        "events_of_tiers": session.listening is not None and session.listening.hears_of_tiers,
        "waits_for_moves": traits.moves and traits.patience != 0,
        # One that loads within the step of its admission never answers so, and one that loads within it is ready.
        "aborts_loading": session.saw_loading and session.transfers is not None and "load" in session.transfers.apart,
        "drafts": traits.tokens_per_decode is None or traits.tokens_per_decode > 1,
        "copies": traits.copies_at_admit or (traits.copies_at_reserve and traits.can_fork and traits.block_size > 1),
    }
    for what in ("loads_fail", "loads_tear"):
        has[what] = has[what] and session.saw_loading
    never = {goal.id for goal in GOALS if goal.when and not has[goal.when]}
    if traits.max_length is not None:
        if traits.max_length < 9 * traits.block_size:
            never.add("long_request")
        if traits.max_length <= traits.block_size:
            never |= {"full_prompt_hit", "refused_reserve", "decode_at_block_start"}
        if not session.saw_growth:  # every request has its row from the start
            never.add("refused_reserve")
    if traits.block_size == 1:
        never.add("fork_in_block")
    if not session.saw_evictable:
        never.add("eviction")
    return never
