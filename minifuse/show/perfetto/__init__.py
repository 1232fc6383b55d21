"""Writes a run as Chrome trace events, for Perfetto: one module for each kind."""
