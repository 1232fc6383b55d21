"""The web application: OpenAI's routes, health and metrics."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from sse_starlette import EventSourceResponse
from sse_starlette.sse import AppStatus
from starlette.exceptions import HTTPException

from minifuse import __version__
from minifuse.server.answers import Choice, Reply
from minifuse.server.completions import Asking, Completions
from minifuse.server.failures import MOST_SHOWN, Refused, no_model
from minifuse.server.forms import ChatForm, CompletionForm
from minifuse.server.gateway import Gateway
from minifuse.server.live import add_routes

DONE = "[DONE]"
PING_S = 15  # pause between comments that keep a stream open while nothing is generated
READ_S = 60  # the longest that a client may take to read an event
AppStatus.enable_automatic_graceful_drain = False  # it would cut streams at SIGTERM, whose deadline is the server's


def make_app(gateway: Gateway, completions: Completions) -> FastAPI:
    """Make the web application that serves one model."""
    app = FastAPI(title="minifuse", version=__version__, description="OpenAI's API on minifuse's engine.")
    created = int(time.time())
    model = {"id": completions.name, "object": "model", "created": created, "owned_by": "minifuse"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        if name != completions.name:
            raise no_model(name, completions.name)
        return model

    @app.post("/v1/completions")
    async def of_texts(form: CompletionForm, request: Request) -> Response:
        return await _answered(completions, form, completions.of_texts, request)

    @app.post("/v1/chat/completions")
    async def of_chat(form: ChatForm, request: Request) -> Response:
        return await _answered(completions, form, completions.of_chat, request)

    @app.get("/health")
    async def health() -> Response:
        failure = gateway.failure or completions.dialogues.failure
        told = {"status": "ok"} if failure is None else {"status": "failed", "why": str(failure)}
        return JSONResponse(told, 200 if failure is None else 503)

    @app.get("/ready")
    async def ready() -> Response:
        is_ready = gateway.failure is None and not gateway.draining
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(await gateway.metrics(), media_type=CONTENT_TYPE_LATEST)

    if gateway.recording is not None:
        add_routes(app, gateway.recording, lambda: gateway.draining)
    app.exception_handler(Refused)(_refused)
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(HTTPException)(_no_route)
    return app


async def _answered(
    completions: Completions, form: Any, understand: Callable[[Any, str], Asking], request: Request
) -> Response:
    """Answer a request with one JSON object or with a stream of chunks."""
    asking = await asyncio.to_thread(understand, form, request.state.tenant)
    reply = asking.reply
    answer = completions.answer(asking)
    beginning = asyncio.create_task(_first(answer) if form.stream else _collect(answer))
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait([beginning, gone], return_when=asyncio.FIRST_COMPLETED)
        if not beginning.done():
            return Response(status_code=499)  # the client went away: nobody reads this
        first = beginning.result()  # what is refused has a status of its own
    finally:
        for task in (beginning, gone):
            task.cancel()
    if form.stream:
        chunks = _chunks(completions, reply, answer, first, form, request)
        return EventSourceResponse(
            chunks, ping=PING_S, sep="\n", send_timeout=READ_S, headers={"Cache-Control": "no-cache"}
        )
    _log_usage(completions, reply, request)
    return JSONResponse(reply.whole())


def _log_usage(completions: Completions, reply: Reply, request: Request) -> None:
    usage = reply.usage()
    told = {
        "request": next(iter(reply.choices)).partition(".")[0],  # as the live page names it
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "completion_tokens": usage["completion_tokens"],
    }
    if (failure := completions.dialogues.failure) is not None:
        told["error"] = failure
    request.state.told = told


async def _first(answer: AsyncIterator[Any]) -> Any:
    return await anext(answer, None)


async def _collect(answer: AsyncIterator[Any]) -> None:
    async for _ in answer:
        pass


async def _gone(request: Request) -> None:
    """Wait until the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _chunks(
    completions: Completions,
    reply: Reply,
    answer: AsyncGenerator[tuple[Choice, str]],
    first: Any,
    form: Any,
    request: Request,
) -> AsyncIterator[dict[str, str]]:
    """Yield an answer's server-sent events."""
    opened: set[int] = set()
    usage: dict[str, Any] = {"usage": None} if form.includes_usage else {}
    try:
        while first is not None:
            choice, text = first
            if reply.kind == "chat" and choice.index not in opened:
                opened.add(choice.index)
                yield _event(reply.opening(choice) | usage)
            if form.includes_usage_so_far:
                usage = {"usage": reply.usage()}
            yield _event(reply.delta(choice, text) | usage)
            first = await anext(answer, None)
        if form.includes_usage:
            yield _event(reply.closing())
    except Refused as refused:
        yield _event(refused.body)
    finally:
        _log_usage(completions, reply, request)
        await answer.aclose()
    yield {"data": DONE}


def _event(told: Mapping[str, Any]) -> dict[str, str]:
    return {"data": json.dumps(told, ensure_ascii=False, separators=(",", ":"))}


async def _refused(request: Request, refused: Exception) -> Response:
    assert isinstance(refused, Refused)
    request.state.told = {"error": refused.message}
    return refused.response


async def _invalid(request: Request, error: Exception) -> Response:
    """Answer an invalid body with the most specific of its errors."""
    assert isinstance(error, RequestValidationError)
    found = max(error.errors(), key=lambda one: len(one["loc"]))  # of several types, the one that fits best
    where = () if found["type"] == "json_invalid" else found["loc"][1:]  # behind "body"
    param = ".".join(str(part) for part in where if not _is_branch(part))[:MOST_SHOWN] or None
    why = _told(found)
    return await _refused(request, Refused(400, f"{param}: {why}" if param else why, param=param, code=found["type"]))


def _told(found: Mapping[str, Any]) -> str:
    """Describe an error of pydantic to a client."""
    kind, context = found["type"], found.get("ctx", {})
    if kind == "json_invalid":
        return f"The body is not JSON: {context['error']}."
    if kind == "model_attributes_type" and found["loc"] == ("body",):
        return "The body is no JSON object: send one, with the header 'Content-Type: application/json'."
    if context.get("max_length") == 0 or (kind == "literal_error" and " or " not in context["expected"]):
        return "not supported: leave it out"
    return str(found["msg"]).removeprefix("Value error, ")


def _is_branch(part: str | int) -> bool:
    """Tell whether part of an error's location names a type, not a field."""
    return isinstance(part, str) and (part == "str" or "[" in part)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    why = f"There is no {what} here: see /docs for what there is." if error.status_code == 404 else str(error.detail)
    return await _refused(request, Refused(error.status_code, why, headers=error.headers or {}))
