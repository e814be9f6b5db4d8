"""vLLM whose states are also saved within a step: after verified drafts, or in the chunk that ends a prompt."""
