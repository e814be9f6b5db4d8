"""Campaigns: random episodes for hours, on the processes of this machine or on a cluster, stopped and gone on with."""

from kvlockstep.campaign.running import fuzz
from kvlockstep.campaign.store import require_writable
from kvlockstep.campaign.summary import Campaign

__all__ = ["Campaign", "fuzz", "require_writable"]
