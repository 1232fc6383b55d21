"""KV in blocks (vLLM)."""
