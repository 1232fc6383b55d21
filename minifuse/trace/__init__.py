"""Traces: written, read, and what they tell: metrics, stories, waits, owners of slots."""
