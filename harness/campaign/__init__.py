"""Campaigns: random episodes for hours, on the processes of this machine or on a cluster, stopped and gone on with."""

from kvlockstep.campaign.running import fuzz

__all__ = ["fuzz"]
