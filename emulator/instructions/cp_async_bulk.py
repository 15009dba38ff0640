"""TMA: bulk tensor copies, bulk copies and their groups (PTX ISA, "cp.async.bulk")."""

from __future__ import annotations

from typing import Any

from emulator.instructions.registry import Mods, instruction
from emulator.threads import Threads


@instruction("ptx.cp_async_bulk_commit_group", counter="cp.async.bulk.commit_group")
def cp_async_bulk_commit_group(mods: Mods, t: Threads) -> None:
    """Close the bulk stores that each active thread has issued into a group."""
