"""A store of chunks by key: flat lists by unit under an eviction policy, and one on a directory."""
