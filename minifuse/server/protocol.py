"""HTTP connections that are closed if no request comes."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

IDLE_S = 30  # the longest that a connection may be open without a whole head of a request


class Protocol(H11Protocol):
    """uvicorn's protocol, whose timer for idle connections also runs before the first request."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(IDLE_S, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and self._deadline is not None:  # the head of a request is complete
            self._deadline.cancel()
            self._deadline = None
