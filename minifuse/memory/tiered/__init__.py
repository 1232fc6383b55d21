"""KV in chunks on two tiers, kept for conversations (Pensieve, 3.4.3)."""
