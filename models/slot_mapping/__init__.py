"""The model of slot_mapping."""

from kvlockstep.models.slot_mapping.model import SlotMappingModel

__all__ = ["SlotMappingModel"]
