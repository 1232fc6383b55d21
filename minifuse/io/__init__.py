"""What users type, and files: read and written."""
