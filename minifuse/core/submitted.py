"""Checks submitted requests: the types of their fields, and that prompts form one request."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

from minifuse.core.errors import RequestRefused, UsageError, brief
from minifuse.core.request import GREEDY, Request, Sampling

INT64 = (-(2**63), 2**63 - 1)
LARGEST = sys.float_info.max
ReadT = TypeVar("ReadT", Request, Sampling)
SHARED = attrgetter("group", "arrival_s", "priority", "user")  # what the prompts of one request have in common
OWN_NUMBERS = (int, float, bool)  # Python's own
NUMBERS = ("max_new_tokens", "ignore_eos", "arrival_s", "delay_s", "priority")


def by_request(prompts: Iterable[Request]) -> Iterator[list[Request]]:
    """Group prompts by request: neighbours of the same group are one request."""
    keyed = groupby(enumerate(prompts), key=lambda pair: pair[1].group or pair[0])
    return ([prompt for _, prompt in of_one] for _, of_one in keyed)


def check_are_requests(given: Iterable[object]) -> None:
    """Raise `UsageError` unless all of these are requests."""
    for one in given:
        if not isinstance(one, Request):
            raise UsageError(f"A request was given as {brief(one)}: give Request(id, prompt), the prompt as token ids.")


def check_name(text: str, what: str) -> str:
    """Return the name of a conversation or user. Raise `UsageError` unless UTF-8 can encode it."""
    if not text or not fits_utf8(text):
        raise UsageError(f"{what} is {text!r}: give a name that UTF-8 can spell.")
    return text


def plain(value: Any) -> Any:
    """Convert numbers and arrays of numpy or torch to Python's; return other values unchanged."""
    as_list = getattr(value, "tolist", None)
    return as_list() if callable(as_list) else value


def fits_utf8(text: str) -> bool:
    """Return whether UTF-8 can encode a text: it holds no lone surrogate."""
    return re.search("[\ud800-\udfff]", text) is None


def read(request: Request) -> Request:
    """Check a request's types; return it with Python's own numbers and token ids.

    Raises:
        RequestRefused: the type of a field is not the declared one, or a number does not fit into a tensor.
    """
    given = {name: getattr(request, name) for name in NUMBERS}
    values = {name: plain(value) for name, value in given.items() if type(value) not in OWN_NUMBERS}
    try:
        values |= {"prompt": _token_ids(request.prompt), "sampling": checked_sampling(request.sampling)}
    except TypeError:
        what = f"Request {brief(request.id)} has the prompt {brief(request.prompt)}"
        raise RequestRefused(f"{what}: give token ids.") from None
    except UsageError as error:
        raise RequestRefused(f"Request {brief(request.id)}: {error}") from None
    if request.stop_ids != () and isinstance(plain(request.stop_ids), Collection):
        values["stop_ids"] = _token_ids(request.stop_ids)
    request = _with(request, values)
    _check_types(request)
    return request


def checked_sampling(sampling: Sampling) -> Sampling:
    """Return the sampling with Python's own numbers. Raise `UsageError` if one is not allowed."""
    if sampling is GREEDY:  # the most common one
        return sampling
    if not isinstance(sampling, Sampling):
        raise UsageError(f"sampling is {brief(sampling)}: give Sampling(temperature=...).")
    values = {name: plain(getattr(sampling, name)) for name in ("temperature", "top_k", "top_p", "seed")}
    temperature, top_k, top_p, seed = values.values()
    for name, is_allowed, allowed in (
        ("temperature", _is_number(temperature) and 0 <= temperature <= LARGEST, f"a number from 0 to {LARGEST:g}"),
        ("top_k", _is_whole(top_k) and 0 <= top_k <= INT64[1], f"a whole number from 0 to {INT64[1]}"),
        ("top_p", _is_number(top_p) and 0 <= top_p <= 1, "a number from 0 to 1"),
        ("seed", _is_whole(seed), "a whole number"),
    ):
        if not is_allowed:
            raise UsageError(f"The sampling has {name} = {brief(values[name])}: give {allowed}.")
    return _with(sampling, values)


def _with(one: ReadT, values: dict[str, Any]) -> ReadT:
    """Return a request or sampling with these values; the same object if none is new."""
    new = {name: value for name, value in values.items() if value is not getattr(one, name)}
    return replace(one, **new) if new else one


def _token_ids(given: Iterable[Any]) -> tuple[Any, ...]:
    """Return the tokens of a list, an array or a tensor as Python's own numbers."""
    tokens = tuple(plain(given))
    return tokens if {*map(type, tokens)} <= {int} else tuple(map(plain, tokens))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, float) or _is_whole(value)


def _check_types(request: Request) -> None:
    """Raise `RequestRefused` unless all fields have their declared types, and fit into tensors."""
    name = f"Request {brief(request.id)}"
    strange = [token for token in request.prompt if type(token) is not int and not _is_whole(token)]
    if strange:
        raise RequestRefused(
            f"{name} has the token id {brief(strange[0])}, which is no whole number: give ids made by this model's "
            "tokenizer."
        )
    if not _is_whole(request.max_new_tokens):
        raise RequestRefused(f"{name} asks for {brief(request.max_new_tokens)} new tokens: ask for a whole number.")
    if not isinstance(request.id, str) or not request.id:
        raise RequestRefused(f"{name} has an id that is no text: give one such as 'r0'.")
    for field_name in ("group", "conversation", "after", "user"):
        value = getattr(request, field_name)
        if not (value is None or isinstance(value, str)):
            raise RequestRefused(f"{name} has {field_name} = {brief(value)}: give a text, or leave it out.")
    for what, text in (("conversation", request.conversation), ("user", request.user)):
        if text is not None:
            try:
                check_name(text, f"The {what} of request {request.id!r}")
            except UsageError as error:
                raise RequestRefused(str(error)) from None
    if not isinstance(request.ignore_eos, bool):
        raise RequestRefused(f"{name} has ignore_eos = {brief(request.ignore_eos)}: give True or False.")
    logprobs: object = request.logprobs
    if logprobs is not None and not (isinstance(logprobs, int) and _is_whole(logprobs) and logprobs >= 0):
        raise RequestRefused(f"{name} has logprobs = {brief(logprobs)}: give a whole number of tokens, or None.")
    stop_ids: object = request.stop_ids
    if not isinstance(stop_ids, tuple) or not all(map(_is_whole, stop_ids)):
        raise RequestRefused(f"{name} has stop_ids = {brief(request.stop_ids)}: give token ids, such as (3,).")


def check_prompts(prompts: tuple[Request, ...], ids: Collection[str], groups: Collection[str]) -> None:
    """Raise `RequestRefused` unless these prompts are one request, with new ids and a new group."""
    group = prompts[0].group
    if len(prompts) > 1 and group is None:
        raise RequestRefused(
            f"Requests {prompts[0].id!r} to {prompts[-1].id!r} were submitted as one, and have no group: give the "
            "prompts of one request the same."
        )
    if group in groups:
        raise RequestRefused(
            f"A request of the group {group!r} was submitted before: give every request a group of its own, and "
            "submit its prompts together."
        )
    if group in ids:
        raise RequestRefused(f"The group {group!r} has the id of a request: give every request and group its own.")
    for i, prompt in enumerate(prompts):
        if prompt.id in groups:
            raise RequestRefused(f"Request {prompt.id!r} has the id of a group: give every request and group its own.")
        if prompt.id in ids or any(prompt.id == other.id for other in prompts[:i]):
            raise RequestRefused(f"Request {prompt.id!r} was submitted twice: give every request an id of its own.")
        if SHARED(prompt) != SHARED(prompts[0]):
            raise RequestRefused(
                f"Requests {prompts[0].id!r} and {prompt.id!r} were submitted as one, and differ in group, arrival, "
                "priority or user: give the prompts of one request the same of each."
            )
