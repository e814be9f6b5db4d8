"""SGLang's tiers: its host tier, the storage behind it, and what loads from them."""
