"""An HTTP server with OpenAI's API; its only way to the engine is `submit`, `abort` and `forget`."""
