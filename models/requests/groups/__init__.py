"""Groups of a request contract: what a target says of them, the KV memory, reads, and what is held."""
