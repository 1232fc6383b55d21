"""An HTTP server with OpenAI's API; acts on the engine only by `submit`, `abort`, `forget`."""
