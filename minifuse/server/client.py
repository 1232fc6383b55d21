"""A client that sends a workload to an OpenAI-compatible server and times each answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from minifuse.core.errors import UsageError
from minifuse.core.request import Request

CONNECT_S = 10.0


@dataclass
class Timed:
    """An answer as a client saw it. Times are seconds since the benchmark began."""

    request: Request
    num_prompt: int = 0
    num_output: int = 0
    sent_s: float = 0.0
    token_times: list[float] = field(default_factory=list)  # when each chunk with text, or with the end, arrived
    ended_s: float = 0.0
    text: str = ""
    error: str | None = None

    @property
    def ttft_s(self) -> float:
        return self.token_times[0] - self.sent_s

    @property
    def e2e_s(self) -> float:
        return self.token_times[-1] - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Return the mean time per token after the first token; None for a single token."""
        return (self.e2e_s - self.ttft_s) / (self.num_output - 1) if self.num_output > 1 else None


class Client:
    """Sends requests to one server.

    Args:
        url: the server's address, with or without /v1.
        text: decodes the prompts of conversations, which are sent as text; None: conversations cannot be sent.
        most_at_once: the most requests that may be unfinished at one time; None: no limit.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        api_key: str | None = None,
        text: Callable[[Sequence[int]], str | None] | None = None,
        most_at_once: int | None = None,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1") + "/v1"
        self.model, self._text = model, text
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._most_at_once = most_at_once

    async def run(
        self, requests: Sequence[Request], on_end: Callable[[Timed], None] = lambda timed: None
    ) -> list[Timed]:
        """Send each request at its arrival or after its previous turn; return all answers.

        Raises:
            UsageError: no server answers at the address.
        """
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        timeout = httpx.Timeout(None, connect=CONNECT_S)
        async with httpx.AsyncClient(headers=self._headers, limits=limits, timeout=timeout) as http:
            if self.model is None:
                self.model = await self._served_model(http)
            self._began = time.perf_counter()
            self._gate = asyncio.Semaphore(self._most_at_once or len(requests) or 1)
            chats: dict[str, list[dict[str, str]]] = {}
            ended = {request.id: asyncio.Event() for request in requests}

            async def serve(request: Request) -> Timed:
                timed = Timed(request)
                if request.after is None:
                    await self._sleep_until(request.arrival_s)
                else:
                    await ended[request.after].wait()
                    await asyncio.sleep(request.delay_s)
                async with self._gate:
                    try:
                        await self._ask(http, timed, chats)
                    except (httpx.HTTPError, ValueError, KeyError) as error:
                        timed.error = f"{type(error).__name__}: {error}"
                ended[request.id].set()
                return timed

            return list(await asyncio.gather(*map(serve, requests)))

    async def _served_model(self, http: httpx.AsyncClient) -> str:
        try:
            answer = await http.get(f"{self.url}/models")
            answer.raise_for_status()
            return str(answer.json()["data"][0]["id"])
        except (httpx.HTTPError, ValueError, KeyError, IndexError) as error:
            raise UsageError(
                f"No server of OpenAI's API answers at {self.url} ({error or type(error).__name__}): start one with "
                "minifuse serve, or give another --url or --api-key."
            ) from None

    async def _sleep_until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, self._began + at_s - time.perf_counter()))

    def _now(self) -> float:
        return time.perf_counter() - self._began

    async def _ask(self, http: httpx.AsyncClient, timed: Timed, chats: dict[str, list[dict[str, str]]]) -> None:
        """Stream one answer; record when each chunk of text arrives."""
        path, body, chat = self._body(timed.request, chats)
        timed.sent_s = self._now()
        async with http.stream("POST", f"{self.url}/{path}", json=body) as answer:
            if answer.status_code != 200:
                told = json.loads(await answer.aread())
                timed.error = f"{answer.status_code}: {told['error']['message']}"
                return
            async for line in answer.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    timed.error = chunk["error"]["message"]
                    return
                self._take(timed, chunk)
        timed.ended_s = self._now()
        if not timed.token_times:
            timed.token_times.append(timed.ended_s)
        if chat is not None:
            chat.append({"role": "assistant", "content": timed.text})

    def _take(self, timed: Timed, chunk: dict[str, Any]) -> None:
        """Record the time, text and usage of a chunk."""
        for choice in chunk["choices"]:
            text = choice["delta"].get("content") if "delta" in choice else choice["text"]
            if text or choice["finish_reason"]:
                timed.token_times.append(self._now())
            timed.text += text or ""
        if usage := chunk.get("usage"):
            timed.num_prompt, timed.num_output = usage["prompt_tokens"], usage["completion_tokens"]

    def _body(
        self, request: Request, chats: dict[str, list[dict[str, str]]]
    ) -> tuple[str, dict[str, Any], list[dict[str, str]] | None]:
        """Return a request's path and body, and the chat to append its answer to."""
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": request.max_new_tokens,
        }
        if sampling.temperature:
            body["seed"] = sampling.seed
        if sampling.top_k:  # not OpenAI's
            body["top_k"] = sampling.top_k
        if request.ignore_eos:
            body["ignore_eos"] = True
        if request.priority:
            body["priority"] = request.priority
        if request.conversation is None and request.after is None:
            return "completions", {**body, "prompt": list(request.prompt)}, None
        text = None if self._text is None else self._text(request.prompt)
        if text is None:
            raise ValueError("a turn of a conversation is sent as text, and the model has no tokenizer")
        chat = chats.setdefault(request.conversation or request.after or "", [])
        chat.append({"role": "user", "content": text})
        return "chat/completions", {**body, "messages": list(chat)}, chat
