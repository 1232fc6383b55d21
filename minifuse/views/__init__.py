"""What a trace tells, for people: a summary as text, and the same run for Chrome's and Perfetto's viewers."""
