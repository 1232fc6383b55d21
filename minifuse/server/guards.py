"""Checks HTTP requests' body size and API key; adds an id and a log line."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minifuse.server.failures import Refused

REQUEST_ID = b"x-request-id"
ALLOWED_ID = re.compile(rb"[\x21-\x7e]{1,128}")
BODY_S = 30  # the longest that the next part of a body may take to arrive
OPEN = ("/health", "/ready", "/metrics", "/docs", "/openapi.json")  # paths that need no key


def tenant_of(key: str) -> str:
    """Return the tenant's name for an API key: a digest, not the key itself."""
    return hashlib.blake2b(key.encode(), digest_size=8).hexdigest()


class Guards:
    """ASGI middleware that puts a request's `request_id` and `tenant` into `scope["state"]`.

    Args:
        keys: the API keys that are accepted; if empty, everybody is let in, as one tenant.
        most_bytes: the largest body that is read.
        log: called with one JSON line at the end of each HTTP request.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str], most_bytes: int, log: Callable[[str], None]) -> None:
        self.app, self.keys, self.most_bytes, self.log = app, [key.encode() for key in keys], most_bytes, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(REQUEST_ID, b"")
        request_id = given if ALLOWED_ID.fullmatch(given) else f"req-{uuid4().hex}".encode()
        state = scope.setdefault("state", {})
        state["request_id"] = request_id.decode()
        begun, status, num_bytes = time.perf_counter(), 0, 0
        is_complete = False
        refusal: Refused | None = None  # of the body

        async def counted() -> Message:
            """Receive part of the body; refuse a body that is too large or slow."""
            nonlocal num_bytes, refusal, is_complete
            try:
                message = await asyncio.wait_for(receive(), None if is_complete else BODY_S)
            except TimeoutError:
                why = f"The next part of the body did not come within {BODY_S} s: send it faster."
                refusal = Refused(408, why, headers={"Connection": "close"})
                raise refusal from None
            if message["type"] == "http.request":
                is_complete = not message.get("more_body", False)
                num_bytes += len(message.get("body", b""))
                if num_bytes > self.most_bytes:
                    refusal = self._too_large()
                    raise refusal
            return message

        async def labelled(message: Message) -> None:
            nonlocal status
            if refusal is not None and not status:  # the application answers that it could not read the body
                return
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (REQUEST_ID, request_id)]
            await send(message)

        try:
            length = headers.get(b"content-length", b"0")
            if length.isdigit() and int(length) > self.most_bytes:
                raise self._too_large()
            state["tenant"] = self._tenant(scope["path"], headers.get(b"authorization", b""))
            await self.app(scope, counted, labelled)
            if refusal is not None:
                raise refusal
        except Refused as refused:
            refusal = None
            if status:  # the answer has begun
                raise
            state["told"] = {"error": refused.message}
            await refused.response(scope, receive, labelled)
        finally:
            line = {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "request_id": state["request_id"],
                "method": scope["method"],
                "path": scope["path"],
                "status": status or None,
                "seconds": round(time.perf_counter() - begun, 6),
                **state.get("told", {}),
            }
            self.log(json.dumps(line))

    def _too_large(self) -> Refused:
        why = f"The body is larger than the {self.most_bytes} bytes that are read: send less."
        return Refused(413, why, code="request_too_large", headers={"Connection": "close"})

    def _tenant(self, path: str, authorization: bytes) -> str:
        if not self.keys or path in OPEN:
            return ""
        scheme, _, key = authorization.partition(b" ")
        allowed = [hmac.compare_digest(key.strip(), one) for one in self.keys]
        if scheme.lower() != b"bearer" or not any(allowed):
            why = "The API key is missing or wrong: send the header 'Authorization: Bearer KEY'."
            raise Refused(401, why, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        return tenant_of(self.keys[allowed.index(True)].decode())
