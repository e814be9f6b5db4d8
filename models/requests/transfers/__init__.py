"""Transfers between the pool and the tiers of a target: the parts that both request contracts share."""
