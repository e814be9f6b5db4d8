"""vLLM's caches whose rows are rotated: TurboQuant and UltraQuant."""
