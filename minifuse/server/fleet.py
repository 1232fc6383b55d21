"""A gateway to replicas on Ray Serve, on any number of machines."""

from __future__ import annotations

import asyncio
import os
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from minifuse.core.errors import MachineError
from minifuse.core.request import Request
from minifuse.serve.resolve import ResolvedRun
from minifuse.server.engine_gateway import EngineGateway
from minifuse.server.failures import Refused
from minifuse.server.gateway import Gateway, Texts
from minifuse.server.loop import Piece
from minifuse.server.metrics import joined
from minifuse.server.settings import ServerSettings

METRICS_S = 5  # the longest that a replica may take to report its metrics
MOST_HOMES = 100_000  # conversations whose replica is remembered
TRIES = 3  # replicas that are tried for one request, if each is lost


class ConversationRouter(RequestRouter):  # type: ignore[misc]
    """Routes a conversation to the replica with its KV, other requests to the least loaded."""

    def initialize_state(self, **_: Any) -> None:
        self._homes: OrderedDict[str, ReplicaID] = OrderedDict()  # by conversation
        self._unfinished: Counter[ReplicaID] = Counter()
        self._routed: Counter[ReplicaID] = Counter()
        self._chosen: OrderedDict[str, ReplicaID] = OrderedDict()  # by request that is not routed yet

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        if pending_request is not None and (number := pending_request.kwargs.get("replica")) is not None:
            in_order = sorted(candidate_replicas, key=lambda one: one.replica_id.unique_id)
            return [[in_order[number % len(in_order)]]] if in_order else []
        home = None if pending_request is None else self._homes.get(_conversation(pending_request))
        by_load = sorted(candidate_replicas, key=self._load)
        own = [one for one in by_load if one.replica_id == home]
        best = own or by_load[:1]
        if pending_request is not None and best:
            self._chosen[_id(pending_request)] = best[0].replica_id
            if len(self._chosen) > MOST_HOMES:
                self._chosen.popitem(last=False)
        return [own] if own else [[one] for one in by_load]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        self._chosen.pop(_id(pending_request), None)
        self._unfinished[replica_id] += 1
        self._routed[replica_id] += 1
        if name := _conversation(pending_request):
            self._homes[name] = replica_id
            self._homes.move_to_end(name)
            if len(self._homes) > MOST_HOMES:
                self._homes.popitem(last=False)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        self._unfinished[replica_id] = max(0, self._unfinished[replica_id] - 1)

    def _load(self, replica: RunningReplica) -> tuple[int, int]:
        """Count a replica's unfinished requests and, to break ties, all its requests."""
        name = replica.replica_id
        return self._unfinished[name] + sum(one == name for one in self._chosen.values()), self._routed[name]


def _id(pending: PendingRequest) -> str:
    return str(pending.metadata.internal_request_id)


def _conversation(pending: PendingRequest) -> str:
    return str(pending.kwargs.get("conversation") or "")


class Replica:
    """An engine with the whole model, in a process that Ray started."""

    def __init__(self, run: ResolvedRun, settings: ServerSettings) -> None:
        self._run, self._settings = run, settings
        self._model = run.load()
        self._texts: dict[str, tuple[int, ...]] = {}  # by unfinished request
        self._gateway: EngineGateway | None = None

    def check_health(self) -> None:
        """Raise the engine's failure, if any, so that Ray Serve starts another replica."""
        if self._gateway is not None and self._gateway.failure is not None:
            raise self._gateway.failure

    async def pieces(
        self, prompts: Sequence[Request], text: tuple[int, ...], conversation: str | None
    ) -> AsyncIterator[Piece | tuple[int, str]]:
        """Serve the prompts of a request; yield its pieces, or a refusal's status and reason.

        Args:
            text: the tokens that precede each prompt.
            conversation: the name of the conversation; only the router reads it, to choose a replica.
        """
        gateway = self._started()
        self._texts |= dict.fromkeys([prompt.id for prompt in prompts], text)
        try:
            async with gateway.served(prompts) as pieces:
                async for piece in pieces:
                    yield piece
        except Refused as refused:
            yield refused.status, refused.message
        finally:
            for prompt in prompts:
                self._texts.pop(prompt.id, None)

    async def metrics(self, replica: int) -> tuple[int, bytes]:
        """Return this replica's rank and metrics; only the router reads `replica`."""
        return _rank(), await self._started().metrics()

    def _started(self) -> EngineGateway:
        """Return the gateway, made at the first call because it needs a running event loop."""
        if self._gateway is None:
            self._gateway = EngineGateway(self._run, self._model, self._settings, self._text, _rank())
        return self._gateway

    def _text(self, request: Request) -> tuple[int, ...]:
        return self._texts.get(request.id, ())


def _rank() -> int:
    """Return this replica's rank; a replica that replaces it gets the same rank."""
    return int(serve.get_replica_context().rank.rank)


class Fleet(Gateway):
    """Replicas of one model on Ray Serve.

    This process keeps the texts of chats. When a chat's replica is lost, another replica recomputes the chat's KV. A
    request whose replica is lost goes to another replica, which samples the same tokens; those already sent are
    skipped.
    """

    def __init__(self, run: ResolvedRun, settings: ServerSettings, num_replicas: int, texts: Texts) -> None:
        super().__init__(settings)
        self._texts = texts
        self._application = f"minifuse-{os.getpid()}"
        self._num_replicas = num_replicas
        self._num_unfinished = 0
        router = RequestRouterConfig(request_router_class=ConversationRouter)
        deployment = serve.deployment(
            num_replicas=num_replicas,
            max_ongoing_requests=settings.most_unfinished,
            request_router_config=router,
            ray_actor_options={"num_cpus": 1, "num_gpus": 1 if run.settings.device == "cuda" else 0},
            graceful_shutdown_timeout_s=settings.drain_s,
        )(Replica)
        application: Any = deployment.bind(run, settings)
        self._replicas = serve.run(application, name=self._application, route_prefix=None)
        self._streams = self._replicas.options(stream=True)

    @property
    def num_unfinished(self) -> int:
        return self._num_unfinished

    @asynccontextmanager
    async def served(self, prompts: Sequence[Request]) -> AsyncIterator[AsyncIterator[Piece]]:
        self.check_open(len(prompts))
        self._num_unfinished += len(prompts)
        answer = self._pieces(prompts)
        try:
            yield answer
        finally:
            self._num_unfinished -= len(prompts)
            await answer.aclose()  # type: ignore[attr-defined]

    async def _pieces(self, prompts: Sequence[Request]) -> AsyncIterator[Piece]:
        """Yield the pieces of a request; if its replica is lost, continue on another."""
        text = self._texts(prompts[0])
        sent: dict[str, list[int]] = {prompt.id: [] for prompt in prompts}
        unfinished = {prompt.id for prompt in prompts}
        for _ in range(TRIES):
            again = {name: list(tokens) for name, tokens in sent.items()}  # sent before; this replica must repeat them
            stream = self._streams.pieces.remote(prompts, text, conversation=prompts[0].conversation)
            try:
                async for piece in stream:
                    if isinstance(piece, tuple):
                        status, why = piece
                        if status == 503:  # its engine has failed
                            break
                        raise Refused(status, why)
                    if piece.request not in unfinished:
                        continue
                    piece = _rest(piece, again[piece.request])
                    sent[piece.request] += piece.tokens
                    if piece.answer is not None:
                        self.note_end()
                        unfinished.discard(piece.request)
                    if piece.tokens or piece.answer is not None or piece.reused is not None:
                        yield piece
                else:
                    return
            except RayTaskError as error:
                raise Refused(500, f"A replica has failed: {' '.join(str(error.cause).split())}") from None
            except RayError:
                continue
            finally:
                with suppress(RayError):
                    stream.cancel()
        raise Refused(503, f"{TRIES} replicas were lost, each with this request: try again later.")

    def give_up(self, names: Sequence[str]) -> None:
        """Do nothing: the replica aborts these prompts when their whole request ends."""

    async def metrics(self) -> bytes:
        """Return the metrics of every replica that answers, with its rank as the label `engine`."""
        asked = [self._replicas.metrics.remote(replica=i) for i in range(self._num_replicas)]
        tasks = [asyncio.ensure_future(one) for one in asked]
        done, late = await asyncio.wait(tasks, timeout=METRICS_S)
        for task in late:
            task.cancel()
        return joined(dict(task.result() for task in done if task.exception() is None).values())

    async def close(self) -> int:
        self.draining = True
        await asyncio.to_thread(serve.delete, self._application)
        return self._num_unfinished


def _rest(piece: Piece, again: list[int]) -> Piece:
    """Remove tokens that were already sent from a piece, and from `again`.

    Args:
        again: tokens already sent that this replica has not repeated yet.

    Raises:
        Refused: the replica has sampled other tokens, so the answer cannot go on.
    """
    count = min(len(again), len(piece.tokens))
    if tuple(again[:count]) != piece.tokens[:count]:
        raise Refused(503, "A replica was lost, and another one answers differently: ask again.")
    del again[:count]
    return replace(piece, tokens=piece.tokens[count:], logprobs=piece.logprobs[count:])


def connect() -> None:
    """Connect to this machine's Ray cluster; start one here if there is none.

    Raises:
        MachineError: Ray cannot be started here.
    """
    try:
        try:
            ray.init(address="auto", log_to_driver=False)
        except ConnectionError:
            ray.init(include_dashboard=False, log_to_driver=False)
    except (RayError, RuntimeError, OSError) as error:
        raise MachineError(f"Ray cannot be started ({' '.join(str(error).split())}): see its logs.") from None
