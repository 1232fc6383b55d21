"""A run in Chrome's trace event format, which Perfetto opens. Each file makes one kind of event."""
