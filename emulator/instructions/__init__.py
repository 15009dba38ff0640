"""PTX and TIRx device instructions, one module per PTX chapter; each instruction is one registered function."""

from emulator.instructions.registry import REGISTRY, Instruction, Mods, instruction

__all__ = ["REGISTRY", "Instruction", "Mods", "instruction", "load_all"]


def load_all() -> None:
    """Import every instruction module so that it registers itself."""
    from emulator.instructions import arithmetic, barrier, cluster, cp_async_bulk, device_functions, fence, ld_st, mbarrier, tcgen05, warp  # noqa: F401
