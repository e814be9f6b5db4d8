"""Writing KV into paged caches on tensors."""
