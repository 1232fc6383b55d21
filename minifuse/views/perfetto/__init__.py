"""A run in Chrome's trace event format, which Perfetto and chrome://tracing open. Each file makes one kind of event."""
