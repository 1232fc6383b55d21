"""Settings of a server, apart from those of its engine."""

from __future__ import annotations

from dataclasses import dataclass

from minifuse.core.errors import UsageError
from minifuse.core.request import GREEDY, Sampling
from minifuse.serve.resolve import ResolvedRun


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
    sampling: Sampling = GREEDY  # for settings that a body leaves out
    max_new_tokens: int | None = None  # the limit of an answer whose body sets none

    def check_apart(self, run: ResolvedRun) -> None:
        """Raise `UsageError` if tenants would share KV.

        Otherwise the speed of an answer could tell a tenant what others have asked.
        """
        if len(self.api_keys) > 1 and run.settings.stage_options.get("memory.share"):
            raise UsageError(
                "memory.share lets requests share the KV of what their prompts begin with, so that one tenant could "
                "find out what another has asked: give one --api-key, or leave out memory.share."
            )
