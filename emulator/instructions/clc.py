"""Cluster launch control of sm_100 (PTX ISA, "clusterlaunchcontrol").

A running cluster asks for the work of a cluster that has not been launched; the response is 16 opaque bytes in shared
memory that only ``query_cancel`` reads.  Any split between launched and handed-over clusters is legal; here a request
takes the next cluster that has not started, and fails when none is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from emulator.checks import happens_before as hbm
from emulator.errors import DeviceFault
from emulator.instructions.mbarrier import complete_tx
from emulator.instructions.registers import as_int128
from emulator.instructions.registry import Mods, instruction
from emulator.lanes import Value
from emulator.machine.address import OFFSET_MASK
from emulator.threads import Threads

_BYTES = 16
_GRANTED = 0x434C43  # marks a response that hands over a cluster
_DENIED = 0x4E4F4E45


def encode(ctaid: tuple[int, int, int] | None) -> int:
    """The 128-bit response: the first CTA of the cancelled cluster, or a refusal."""
    if ctaid is None:
        return _DENIED << 96
    x, y, z = ctaid
    return x | y << 32 | z << 64 | _GRANTED << 96


def decode(response: int) -> tuple[int, int, int] | None:
    """The inverse of :func:`encode`.

    Raises:
        ValueError: the 16 bytes are not a response.
    """
    mark = response >> 96
    if mark == _DENIED:
        return None
    if mark != _GRANTED:
        raise ValueError
    return tuple(response >> 32 * k & 0xFFFFFFFF for k in range(3))  # type: ignore[return-value]


def take_cluster(machine: Any) -> tuple[int, int, int] | None:
    """Cancel the launch of the next cluster of the grid; its first CTA, or None when every cluster has started."""
    while machine.next_cluster < machine.num_clusters and machine.next_cluster in machine.cancelled:
        machine.next_cluster += 1
    if machine.next_cluster >= machine.num_clusters:
        return None
    index = machine.next_cluster
    machine.cancelled.add(index)
    machine.next_cluster += 1
    return machine.cluster_origin(index)


@instruction("ptx.clusterlaunchcontrol_try_cancel", counter="clusterlaunchcontrol.try_cancel")
def try_cancel(mods: Mods, t: Threads, address: Value, mbar: Value) -> None:
    """Request a cluster; the response and its 16 bytes of transaction arrive in one or (``.multicast``) every CTA."""
    machine, cluster, site = t.cta.machine, t.cta.cluster, t.site
    multicast = "multicast::cluster::all" in mods
    for tid, addr, bar_addr in t.rows(t.tid, address, mbar):
        addr, bar_addr = int(addr), int(bar_addr)
        targets = []
        if multicast:
            for cta in cluster.ctas:
                targets.append(
                    (
                        cta,
                        addr & OFFSET_MASK,
                        cluster.barrier_at(cta.rank << 24 | bar_addr & OFFSET_MASK, "try_cancel"),
                    )
                )
        else:
            cta, offset = cluster.resolve(addr, "try_cancel")
            targets.append((cta, offset, cluster.barrier_at(bar_addr, "try_cancel")))
        for cta, offset, bar in targets:
            cta.check_shared(offset, offset + _BYTES, "clusterlaunchcontrol.try_cancel")
            if offset % _BYTES:
                raise DeviceFault(
                    "clc.misaligned",
                    "clusterlaunchcontrol.try_cancel with a response address that is not a multiple of 16",
                    "allocate the response with align=16",
                    site=site,
                )
            if cluster.hb is not None:
                warp = t.cta.rank * t.cta.num_warps + int(tid) // 32
                cluster.hb.tma_load(
                    warp,
                    bar.hb,
                    t.rd_site,
                    writes=[(cta.rank, hbm.Span(offset, offset + _BYTES))],
                    reads=[],
                    what="clusterlaunchcontrol.try_cancel",
                )
        if cluster.clc_denied:
            raise DeviceFault(
                "clc.after-refusal",
                "clusterlaunchcontrol.try_cancel after a request of this cluster has failed",
                "leave the loop when is_canceled is false",
                site=site,
            )

        def complete(targets: Any = tuple(targets)) -> None:
            taken = take_cluster(machine)
            if taken is None:
                cluster.clc_denied = True
            raw = np.frombuffer(encode(taken).to_bytes(_BYTES, "little"), dtype=np.uint8)
            for cta, offset, bar in targets:
                cta.smem[offset : offset + _BYTES] = raw
                complete_tx(machine, bar, _BYTES, site)

        machine.issue((cluster, "clc", t.cta.rank), complete, "clusterlaunchcontrol.try_cancel", site)


def _response(t: Threads, value: Any) -> tuple[int, int, int] | None:
    try:
        return decode(as_int128(value))
    except ValueError:
        raise DeviceFault(
            "clc.bad-response",
            "query_cancel of 16 bytes that are not a response of clusterlaunchcontrol.try_cancel",
            "wait on the mbarrier of try_cancel before loading the response (ld.shared.b128)",
            site=t.site,
        ) from None


def _per_lane(t: Threads, response: Value, what: Callable[[Any], int]) -> Value:
    if not (isinstance(response, np.ndarray) and response.ndim):
        return what(_response(t, response))
    active = t.active_indices()
    first = response[active[0]]
    out = np.zeros(t.count, dtype=np.int64)
    if all(response[k] == first for k in active):
        out[active] = what(_response(t, first))
        return out
    for k in active:
        out[k] = what(_response(t, response[k]))
    return out


@instruction("ptx.clusterlaunchcontrol_query_cancel_is_canceled", counter="clusterlaunchcontrol.query_cancel")
def is_canceled(mods: Mods, t: Threads, response: Value) -> Value:
    """Whether the request got a cluster."""
    return _per_lane(t, response, lambda r: int(r is not None))


def _coordinate(t: Threads, axis: int) -> Callable[[Any], int]:
    def take(r: Any) -> int:
        if r is None:
            raise DeviceFault(
                "clc.not-canceled",
                "get_first_ctaid of a response that did not get a cluster",
                "use it only where is_canceled is true",
                site=t.site,
            )
        return int(r[axis])

    return take


@instruction(
    "ptx.clusterlaunchcontrol_query_cancel_get_first_ctaid", counter="clusterlaunchcontrol.query_cancel"
)
def get_first_ctaid(mods: Mods, t: Threads, old: Value, response: Value) -> Value:
    """Index of the first CTA of the cancelled cluster along one axis."""
    axis = "xyz".index(mods["query"][-1])
    return _per_lane(t, response, _coordinate(t, axis))


@instruction(
    "ptx.clusterlaunchcontrol_query_cancel_get_first_ctaid_v4", counter="clusterlaunchcontrol.query_cancel"
)
def get_first_ctaid_v4(mods: Mods, t: Threads, old: Any, response: Value) -> Any:
    """All three coordinates; the fourth element is unspecified (0 here)."""
    return [*(_per_lane(t, response, _coordinate(t, axis)) for axis in range(3)), 0]
