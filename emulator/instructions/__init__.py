"""PTX and TIRx device instructions, one module per PTX chapter; each instruction is one registered function."""

from emulator.instructions.registry import REGISTRY, Instruction, Mods, instruction

__all__ = ["REGISTRY", "Instruction", "Mods", "instruction", "load_all"]


def load_all() -> None:
    """Import every instruction module so that it registers itself."""
    from emulator.instructions import (  # noqa: F401
        arithmetic,
        atomics,
        barrier,
        clc,
        cluster,
        compare,
        convert,
        cp_async,
        cp_async_bulk,
        cuda,
        descriptors,
        device_functions,
        fence,
        floating,
        hints,
        ld_st,
        logic,
        matrix,
        mbarrier,
        mbarrier_polling,
        move,
        tcgen05,
        tensormap,
        warp,
        wgmma,
    )
