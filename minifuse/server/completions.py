"""Turns HTTP bodies into requests for the engine, and the engine's pieces into answers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from uuid import uuid4

from minifuse.core.errors import MinifuseError, ModelError, RequestRefused
from minifuse.core.request import FinishReason, Request, Sampling
from minifuse.core.turns import ANSWERED
from minifuse.model.text.load import TextSource
from minifuse.model.text.tokenizer import Tokenizer
from minifuse.serve.history import Turn
from minifuse.server.answers import Choice, Kind, Reply
from minifuse.server.dialogues import Dialogue, Dialogues
from minifuse.server.failures import Refused, no_model
from minifuse.server.forms import Asked, ChatForm, CompletionForm
from minifuse.server.gateway import Gateway
from minifuse.server.loop import Piece
from minifuse.server.settings import ServerSettings
from minifuse.server.template import Said, Template
from minifuse.server.text_stream import TextStream

MOST_PER_TOKEN = 256  # characters per token, on average; a prompt with more is refused before it is encoded
MAX_TOKENS = 16  # the limit of a completion whose body sets none: OpenAI's default


@dataclass(frozen=True)
class Held:
    """The chat that a request continues."""

    tenant: str
    chat: tuple[Said, ...]
    dialogue: Dialogue


@dataclass(frozen=True)
class Asking:
    """The requests made from one HTTP body, and the reply that collects their pieces."""

    requests: tuple[Request, ...]
    reply: Reply
    held: Held | None = None


class Completions:
    """Serves completions of texts and of chats."""

    def __init__(
        self,
        gateway: Gateway,
        source: TextSource,
        tokenizer: Tokenizer,
        template: Template,
        dialogues: Dialogues,
        settings: ServerSettings,
    ) -> None:
        self.gateway, self.source, self.settings = gateway, source, settings
        self.tokenizer, self.template, self.dialogues = tokenizer, template, dialogues
        self.name = settings.name or source.name  # of the model, as clients name it
        self._numbers = count()  # of requests: the engine and its trace name them r0, r1, ...

    # --- what is asked

    def of_texts(self, form: CompletionForm, tenant: str) -> Asking:
        """Turn a body of `/v1/completions` into requests. Encodes texts: call this in a thread."""
        self._check(form, len(form.prompts))
        prompts = [self._encoded(prompt) for prompt in form.prompts]
        max_new = form.max_tokens or self.settings.max_new_tokens or MAX_TOKENS
        return self._asking("completion", form, prompts, tenant, max_new, form.logprobs)

    def of_chat(self, form: ChatForm, tenant: str) -> Asking:
        """Turn a body of `/v1/chat/completions` into requests. Encodes texts: call this in a thread."""
        self._check(form, 1)
        chat = tuple(Said(message.role, message.text) for message in form.messages)
        max_new = form.max_completion_tokens or form.max_tokens or self.settings.max_new_tokens
        logprobs = (form.top_logprobs or 0) if form.logprobs else None
        try:
            if (form.n or 1) > 1:  # nobody knows which of several answers a chat will continue
                return self._asking("chat", form, [self.template.whole(chat)], tenant, max_new, logprobs)
            dialogue, count = self.dialogues.take(tenant, chat)
            try:
                prompt = self.template.rest(chat, count, dialogue.tokens[-1]) if count else None
                if prompt is None and count:
                    self.dialogues.put_back(dialogue)
                    dialogue = self.dialogues.begin(tenant)
                held = Held(tenant, chat, dialogue)
                rest = self.template.whole(chat) if prompt is None else prompt
                return self._asking("chat", form, [rest], tenant, max_new, logprobs, held)
            except BaseException:
                self.dialogues.put_back(dialogue)
                raise
        except (ModelError, RequestRefused) as error:
            raise Refused(400, str(error), param="messages") from None

    def _check(self, form: Asked, num_prompts: int) -> None:
        """Raise `Refused` unless the body names this model and the gateway accepts its answers."""
        if form.model not in (None, self.name):
            raise no_model(form.model or "", self.name)
        self.gateway.check_open(num_prompts * (form.n or 1))

    def _encoded(self, prompt: str | list[int]) -> tuple[int, ...]:
        if len(prompt) > MOST_PER_TOKEN * self.source.config.max_context:  # to encode it would take seconds
            raise self._too_long(f"a prompt of {len(prompt)} characters is", "prompt")
        try:
            return self.tokenizer.encode(prompt) if isinstance(prompt, str) else tuple(prompt)
        except ModelError as error:
            raise Refused(400, str(error), param="prompt") from None

    def _asking(
        self,
        kind: Kind,
        form: Asked,
        prompts: Sequence[tuple[int, ...]],
        tenant: str,
        max_new: int | None,
        logprobs: int | None,
        held: Held | None = None,
    ) -> Asking:
        history = 0 if held is None else len(held.dialogue.tokens)
        longest, context = max(map(len, prompts)) + history, self.source.config.max_context
        if longest + (max_new or 1) > context:
            what = f"{longest} tokens of the prompt and {max_new or 1} of the answer are"
            raise self._too_long(what, "prompt" if kind == "completion" else "messages")
        name = f"r{next(self._numbers)}"
        num_choices = len(prompts) * (form.n or 1)
        first = Request(
            name,
            (),
            max_new or self.source.config.max_context,
            stop_ids=self.source.config.eos_ids,
            ignore_eos=form.ignore_eos,
            priority=form.priority,
            conversation=None if held is None else held.dialogue.name,
            group=name if num_choices > 1 else None,
            user="/".join(filter(None, (tenant, form.user))) or None,
            logprobs=logprobs,
            clip=max_new is None,
        )
        sampling = self._sampling(form)
        requests = tuple(
            replace(
                first,
                id=f"{name}.{i}" if num_choices > 1 else name,
                prompt=prompts[i // (form.n or 1)],
                sampling=replace(sampling, seed=sampling.seed + i % (form.n or 1)),
            )
            for i in range(num_choices)
        )
        choices = [
            Choice(i, i // (form.n or 1), one, TextStream(self.tokenizer.decode, form.stops, trim=kind == "chat"))
            for i, one in enumerate(requests)
        ]
        num_prompt = sum(map(len, prompts)) + history
        answer_id = f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{uuid4().hex}"
        return Asking(requests, Reply(kind, answer_id, self.name, self.tokenizer, choices, num_prompt), held)

    def _too_long(self, what: str, param: str) -> Refused:
        context = self.source.config.max_context
        why = f"The context of {self.name} is {context} tokens, and {what} asked for: shorten it, or lower max_tokens."
        return Refused(400, why, param=param, code="context_length_exceeded")

    def _sampling(self, form: Asked) -> Sampling:
        default = self.settings.sampling
        temperature = default.temperature if form.temperature is None else form.temperature
        seed = secrets.randbits(62) if temperature and form.seed is None else form.seed or 0
        return Sampling(
            temperature,
            default.top_k if form.top_k is None else max(0, form.top_k),
            default.top_p if form.top_p is None else form.top_p,
            seed,
        )

    # --- what is answered

    async def answer(self, asking: Asking) -> AsyncGenerator[tuple[Choice, str]]:
        """Serve a request; yield each choice that has grown, and its new text.

        Raises:
            Refused: the request cannot be served, or its answer ended with an error.
        """
        held, reply = asking.held, asking.reply
        stored = submitted = False
        try:
            async with self.gateway.served(asking.requests) as pieces:
                submitted = True
                async for piece in pieces:
                    self._check_answered(piece)
                    choice, text = reply.take(piece)
                    if choice.stream.stopped and choice.answer is None:
                        self.gateway.give_up([piece.request])
                    if reply.ended and held is not None and (answer := choice.answer) is not None:
                        await asyncio.to_thread(self._keep, held, choice, answer.new_prompt)
                        stored = True
                    if text or choice.ended or choice.logprobs[choice.num_sent :]:
                        yield choice, text
                    if reply.ended:
                        return
        finally:
            if held is not None and not stored:
                (self.dialogues.given_up if submitted else self.dialogues.put_back)(held.dialogue)

    def _keep(self, held: Held, choice: Choice, prompt: tuple[int, ...]) -> None:
        """Remember a completely answered chat; store it if there is a state file."""
        said = (*held.chat, Said("assistant", choice.stream.text))
        turn = Turn(prompt, tuple(choice.tokens), choice.finish_reason or "")
        try:
            self.dialogues.answered(held.dialogue, held.tenant, said, turn)
        except MinifuseError as error:
            self.dialogues.failure = str(error)

    def _check_answered(self, piece: Piece) -> None:
        """Raise `Refused` if a request has ended without an answer."""
        if piece.answer is None or piece.answer.finish_reason in ANSWERED:
            return
        if piece.answer.finish_reason is FinishReason.ABORTED:
            if self.gateway.num_expired is not None:
                raise Refused(503, "The server shut down before the answer was complete: ask another one.")
            return
        if piece.answer.finish_reason is FinishReason.REFUSED:
            raise Refused(400, piece.answer.why_refused or "The request was refused.")
        if piece.answer.finish_reason is FinishReason.NAN:
            raise Refused(
                500, "The answer ended early, for the logits were NaN or infinite: look at the model's weights."
            )
        raise Refused(503, "The engine has failed, and the answer is not complete: restart the server.")
