"""Writes a run as Chrome trace events, for Perfetto: a file per kind."""
