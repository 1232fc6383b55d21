"""Draws what traces tell: the replay page, pictures in characters, Perfetto, notebooks."""
