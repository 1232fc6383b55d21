"""Writes a run as Chrome trace events for Perfetto; each module writes one kind."""
