"""Reads what users type, and reads and writes files."""
