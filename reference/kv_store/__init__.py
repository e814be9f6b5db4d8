"""The KV itself, in blocks on a device and on the host."""

from kvlockstep.reference.kv_store.contract import LAYOUTS, PAD_SLOT, KVStoreTarget, Rows
from kvlockstep.reference.kv_store.store import KVStore, Slot

__all__ = ["LAYOUTS", "PAD_SLOT", "KVStore", "KVStoreTarget", "Rows", "Slot"]
