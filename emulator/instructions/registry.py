"""The instruction registry: a new PTX instruction is one function registered with its name.

A function registered for ``tirx.ptx.<entry>`` is called as ``fn(mods, t, *operands)``:

* ``mods`` (:class:`Mods`): the modifier tokens in PTX order, with ``mods["slot"]`` and ``"token" in mods``;
* ``t`` (:class:`emulator.threads.Threads`): who executes it;
* operands in PTX order without the destinations; a register group (``r0, r1, ...``) arrives as one ``uint32[n, L]``
  block or as a tuple of values; see :mod:`emulator.lanes` for the representation of values.

It returns the destination values in order (None without destinations; one value for one destination).  A register
group is returned as a block or a sequence.  A function marked ``blocking`` is a generator that yields what it waits for.
A function marked ``collective`` is executed by whole warps (``.sync.aligned``) and never runs in single-lane code.

Two cheaper conventions exist.  A function marked ``factory`` is called once per place of the program, ``fn(mods)``, and
returns the operation ``op(t, *operands)``; it raises :class:`UnsupportedInstruction` there for modifiers that it does not
know.  A ``pure`` function (arithmetic on registers) is a factory whose operation takes the operands alone, and is uniform
where its operands are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any


class Mods:
    """Modifier tokens of one PTX instruction."""

    __slots__ = ("dtypes", "slots", "tokens")

    def __init__(
        self, tokens: tuple[str, ...] = (), slots: dict[str, str] | None = None, dtypes: tuple[str, ...] = ()
    ) -> None:
        self.tokens = tokens
        self.slots = slots or {}
        self.dtypes = dtypes

    def __contains__(self, token: str) -> bool:
        return token in self.tokens

    def __getitem__(self, slot: str) -> str:
        return self.slots.get(slot, "")

    def has_any(self, *tokens: str) -> bool:
        return any(tok in self.tokens for tok in tokens)

    def __repr__(self) -> str:
        return ".".join(tok for tok in self.tokens if tok)


@dataclass(frozen=True)
class Instruction:
    """A registered instruction.

    Attributes:
        name: ``tirx.ptx.mbarrier_init``, ``tirx.cuda.cta_sync`` ...
        fn: the implementation.
        blocking: it is a generator.
        collective: whole warps execute it.
        counter: PTX name under which executions are counted, None for address arithmetic and the like.
        destination: index of an argument that is the *address of* a local variable that receives the result
            (TVM passes ``&desc`` to its descriptor encoders), or None.
        factory: ``fn(mods)`` makes the operation once per place of the program.
        pure: the operation takes no threads.
        varies: the result may differ between lanes where no operand does.
        in_place: a read-write register group arrives as a writable block, which the operation changes later.
    """

    name: str
    fn: Callable[..., Any]
    blocking: bool = False
    collective: bool = False
    counter: str | None = None
    destination: int | None = None
    factory: bool = False
    pure: bool = False
    in_place: bool = False
    varies: bool = False

    def bind(self, mods: Mods) -> Callable[..., Any]:
        """The operation for one place of the program."""
        return self.fn(mods) if self.factory else partial(self.fn, mods)


REGISTRY: dict[str, Instruction] = {}


def instruction(
    *names: str,
    blocking: bool = False,
    collective: bool = False,
    counter: str | None = None,
    destination: int | None = None,
    factory: bool = False,
    pure: bool = False,
    in_place: bool = False,
    varies: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function under ``names`` (``ptx.x`` and ``cuda.x`` are prefixed with ``tirx.``)."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            full = name if name.startswith(("tirx.", "device:")) else f"tirx.{name}"
            if full in REGISTRY:
                raise ValueError(f"instruction {full} registered twice")
            REGISTRY[full] = Instruction(
                full, fn, blocking, collective, counter, destination, factory or pure, pure, in_place, varies
            )
        return fn

    return register
