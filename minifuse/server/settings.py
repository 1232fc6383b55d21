"""Settings of a server, apart from those of its engine."""

from __future__ import annotations

from dataclasses import dataclass

from minifuse.core.request import GREEDY, Sampling


@dataclass(frozen=True)
class ServerSettings:
    """The address, the model's name, the API keys, and the limits."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free port
    name: str | None = None  # the model's name for clients; None: the source's name
    api_keys: tuple[str, ...] = ()  # each is a tenant; if empty, everybody is let in
    most_unfinished: int = 1024
    most_body_bytes: int = 4 * 2**20
    drain_s: float = 30.0
    sampling: Sampling = GREEDY  # for fields that a body leaves out
    max_new_tokens: int | None = None  # for a body that sets no limit
