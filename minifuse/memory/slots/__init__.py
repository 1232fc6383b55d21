"""Equal buffers that stay adjacent (Flover, V)."""
