"""Serving: an engine built for a technique and a model, and requests served by it."""

from minifuse.serve.build import build_engine
from minifuse.serve.run import Answer, Served, serve
from minifuse.serve.settings import Settings

__all__ = ["Answer", "Served", "Settings", "build_engine", "serve"]
