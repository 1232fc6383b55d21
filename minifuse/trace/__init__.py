"""Writes and reads traces; derives metrics, stories, waits and owners of slots from them."""
