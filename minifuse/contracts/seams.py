"""The seam between the engine and a stage that is not minifuse's own: everything that it returns is checked.

Such a stage is made of a subclass of its class, whose methods check what the stage's own return, and turn what they
raise into one sentence that names the class, the method, its file and line. minifuse's own stages are made of their own
classes: nothing stands between them and the engine. What is checked knows nothing of the engine, so that the laws
(`minifuse.testing`) meet the same stage.
"""

from __future__ import annotations

import difflib
import inspect
import types
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from minifuse.contracts.attention import AttentionContract
from minifuse.contracts.batching import BatchingContract
from minifuse.contracts.contract import Contract, Method, check_signature, forgotten_base
from minifuse.contracts.memory import MemoryContract
from minifuse.errors import LawBroken, MachineError, StageFault, UsageError
from minifuse.fault import Wrong, blame, blamed, class_site, is_own, method_site
from minifuse.stages import Kind

__all__ = ["make_stage"]

CONTRACTS: dict[Kind, type[Contract]] = {
    "batching": BatchingContract,
    "memory": MemoryContract,
    "attention": AttentionContract,
}


def make_stage(kind: Kind, cls: Any, *arguments: Any, policy: type[Any] | None = None) -> Any:
    """Make a stage of its class, called with `arguments`; one that is not minifuse's own is checked from then on.

    Args:
        policy: of a memory, the class of the batching policy whose proposals it places.

    Raises:
        UsageError: the class cannot be made, or lacks something; or what it raised itself, of an option.
    """
    if is_own(cls):
        if kind == "memory" and policy is not None and not is_own(policy):
            cls = _placing_for(policy, cls)
        return cls(*arguments)
    contract = CONTRACTS[kind](cls)
    try:
        with blamed(cls, "__init__", (UsageError, MachineError)):
            _check_class(kind, cls)
            stage = _guarded(contract, cls)(*arguments)
            _check_instance(contract, cls, stage)
            contract.made(stage, *arguments)
    except StageFault as fault:  # nothing was started
        raise UsageError(f"The {kind} stage {cls.name!r} cannot be made: {fault.what}.") from fault
    return stage


def _guarded(contract: Contract, cls: type[Any]) -> type[Any]:
    """A subclass whose methods are checked."""
    guarded: type[Any]

    def checked(name: str) -> Callable[..., Any]:
        before, after = getattr(contract, f"before_{name}", None), getattr(contract, name)
        _, allowed, note = {**contract.methods, **contract.hooks}[name]

        right = inspect.getattr_static(cls, name)

        def called(self: Any, *arguments: Any, **named: Any) -> Any:
            if isinstance(right, types.FunctionType):  # as of most methods; others are found as Python finds them
                return right(self, *arguments, **named)
            return getattr(super(guarded, self), name)(*arguments, **named)

        def hook(self: Any, *arguments: Any, **named: Any) -> Any:
            try:
                return after(self, called(self, *arguments, **named), *arguments)
            except BaseException as error:
                cause = forgotten_base(cls) if isinstance(error, AttributeError) and error.obj is self else ""
                found = blame(cls, name, error, allowed, note, cause)
                if found is error:
                    raise
                raise found from (None if isinstance(error, Wrong) else error)

        def method(self: Any, *arguments: Any, **named: Any) -> Any:
            if contract.inside:
                if name in contract.pure:
                    return hook(self, *arguments, **named)
                return called(self, *arguments, **named)
            if before is not None:
                before(*arguments)
            contract.inside = True
            try:
                return hook(self, *arguments, **named)
            finally:
                contract.inside = False

        return method if name in contract.methods else hook

    namespace: dict[str, Any] = {name: checked(name) for name in _called(type(contract), cls)}
    namespace |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    guarded = types.new_class(cls.__name__, (cls,), exec_body=lambda body: body.update(namespace))
    return guarded


def _placing_for(policy: type[Any], memory: type[Any]) -> type[Any]:
    """minifuse's own memory for a policy that is not: what it finds wrong as it places is the policy's mistake."""

    placing: type[Any]

    def place(self: Any, proposal: Any, now: float) -> Any:
        try:
            return super(placing, self).place(proposal, now)
        except LawBroken as broken:
            raise StageFault(
                f"{method_site(policy, 'propose')} returned a Proposal that memory cannot place "
                f"({str(broken).rstrip('.')}): propose what its room() has taken, in that order",
                broken.law,
            ) from broken

    namespace = {"place": place, "__module__": memory.__module__, "__qualname__": memory.__qualname__}
    placing = types.new_class(memory.__name__, (memory,), exec_body=lambda body: body.update(namespace))
    return placing


def _called(contract: type[Contract], cls: type[Any]) -> dict[str, Method]:
    """What minifuse calls of a class: its protocol, and the hooks of a base class of minifuse's own."""
    hooks = {name: method for name, method in contract.hooks.items() if _is_inherited(cls, name)}
    return {**contract.methods, **hooks}


def _is_inherited(cls: type[Any], name: str) -> bool:
    """Whether a class has this from minifuse, whether or not it has one of its own instead."""
    return any(name in vars(base) for base in cls.__mro__ if is_own(base))


def _check_instance(contract: Contract, cls: type[Any], stage: Any) -> None:
    """Raise `UsageError` if an attribute of a stage takes the place of a method, which would not be checked."""
    for name in _called(type(contract), cls):
        if name in getattr(stage, "__dict__", ()):
            raise UsageError(
                f"{method_site(cls, '__init__')} sets self.{name}, in place of the method that is called: write that "
                f"as a method, def {name}(self, ...)."
            )


@lru_cache(256)
def _check_class(kind: Kind, cls: Any) -> None:
    """Raise `UsageError` if a method is missing, takes other arguments, or is named nearly as one that is called."""
    called, abstract = _called(CONTRACTS[kind], cls), sorted(getattr(cls, "__abstractmethods__", ()))
    theirs = {name for base in cls.__mro__ if not is_own(base) and base is not object for name in vars(base)}
    for name in sorted(theirs):
        member = getattr(cls, name, None)
        if name.startswith("_") or name in called or isinstance(member, type) or _is_inherited(cls, name):
            continue
        for meant in difflib.get_close_matches(name, [*called, *abstract], 1, 0.85) if callable(member) else ():
            if (meant not in theirs or meant in abstract) and not name.startswith(meant):  # `proposed` is another word
                raise UsageError(f"{method_site(cls, name)} is never called: did you mean {meant!r}? Rename it.")
    if abstract:
        raise UsageError(
            f"{cls.__qualname__} ({class_site(cls)}) has no method {abstract[0]!r}, which every class like it must "
            "have: write it, see docs/stages.md."
        )
    for name, method in called.items():
        check_signature(cls, name, method.calls)
