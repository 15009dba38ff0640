"""The roofline of a kernel: the least time that a GPU needs for its bytes and its arithmetic, whatever the kernel does."""

from __future__ import annotations

from dataclasses import dataclass

from autograder.course import ITEM_BYTES, Exercise


@dataclass(frozen=True)
class Peaks:
    """What one GPU can do at most.

    Attributes:
        bytes_per_us: of DRAM. sms: streaming multiprocessors. clock_ghz: of an SM, where nothing else is known.
        tensor_flop, cuda_flop: per clock and SM, 16-bit on tensor cores (dense) and fp32 on CUDA cores.
        source: of these numbers.
    """

    device: str
    bytes_per_us: float
    sms: int
    clock_ghz: float
    tensor_flop: int
    cuda_flop: int
    source: str


PEAKS = {
    "sm_100a": Peaks(
        "B200", 7.672e6, 148, 1.85, 8192, 256,
        "bandwidth: 7680 bit x 3996 MHz x 2 (driver); 2250 TFLOPS of the data sheet = 148 SMs x 8192 FLOP x 1.856 GHz",
    ),
    "sm_90a": Peaks(
        "H200", 4.8e6, 132, 1.83, 4096, 256,
        "bandwidth: data sheet, 4.8 TB/s; 989 TFLOPS of the data sheet = 132 SMs x 4096 FLOP x 1.83 GHz",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Roof:
    """The physical roof of one kernel at one problem size.

    Attributes:
        microseconds: the least time. flop, nbytes: what the kernel has to compute and to move; each tensor once.
        tflops, tb_per_s: the two peak rates. memory: whether the bytes decide.
    """

    microseconds: float
    flop: int
    nbytes: int
    tflops: float
    tb_per_s: float
    memory: bool


def roof(
    kernel: Exercise, arch: str, clock_ghz: float | None = None, bytes_per_s: float | None = None
) -> Roof:
    """The roof of a kernel on a GPU of an architecture.

    Args:
        kernel: narrowed to one builder, with the problem size in its parameters.
        clock_ghz: the SM clock; None: that of the data sheet.
        bytes_per_s: peak bandwidth of DRAM, as the driver tells it; None: the table's.
    """
    peaks = PEAKS[arch]
    tensors = kernel.tensor_specs()
    nbytes = kernel.tensor_bytes
    flop = kernel.operations
    halves = any(ITEM_BYTES[t["dtype"]] == 2 for t in tensors if t["role"] == "input")
    per_clock = peaks.tensor_flop if halves else peaks.cuda_flop
    flop_per_us = per_clock * peaks.sms * (clock_ghz or peaks.clock_ghz) * 1e3
    bytes_per_us = bytes_per_s / 1e6 if bytes_per_s else peaks.bytes_per_us
    arithmetic, memory = flop / flop_per_us, nbytes / bytes_per_us
    return Roof(
        max(arithmetic, memory), flop, nbytes, flop_per_us / 1e6, bytes_per_us / 1e6, memory >= arithmetic
    )
