"""The list of counter names is complete, so that a course file can be checked against it."""

from __future__ import annotations

import emulator
from emulator.counters import AMOUNTS, INSTRUCTIONS, RESOURCES


def test_every_counted_instruction_is_listed():
    emulator.compile  # noqa: B018 - loads the instructions
    from emulator.instructions import REGISTRY

    counted = {entry.counter for entry in REGISTRY.values() if entry.counter}
    assert counted <= set(INSTRUCTIONS), sorted(counted - set(INSTRUCTIONS))
    assert len(set(INSTRUCTIONS + AMOUNTS + RESOURCES)) == len(INSTRUCTIONS + AMOUNTS + RESOURCES)
