"""Draws traces: the replay page, pictures in characters, Perfetto, notebooks."""
