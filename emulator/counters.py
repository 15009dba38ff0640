"""Every name that can appear in ``Run.counters`` and in ``Kernel.resources``.

Kept apart from the instructions, so that a course file can be checked without loading TVM.
"""

from __future__ import annotations

#: Executed warp-level instructions, by PTX name.
INSTRUCTIONS = (
    "activemask", "atom.global", "atom.shared", "bar.arrive", "bar.red", "bar.sync", "barrier.cluster.arrive",
    "barrier.cluster.wait", "clusterlaunchcontrol.query_cancel", "clusterlaunchcontrol.try_cancel", "cp.async",
    "cp.async.bulk.commit_group", "cp.async.bulk.dsmem", "cp.async.bulk.load", "cp.async.bulk.prefetch",
    "cp.async.bulk.store", "cp.async.bulk.tensor.load", "cp.async.bulk.tensor.store", "cp.async.bulk.wait_group",
    "cp.async.bulk.wait_group.read", "cp.async.commit_group", "cp.async.mbarrier.arrive", "cp.async.wait_all",
    "cp.async.wait_group", "cp.reduce.async.bulk.dsmem", "cp.reduce.async.bulk.store", "cp.reduce.async.bulk.tensor",
    "discard", "elect.sync", "ex2", "fence", "fence.mbarrier_init", "fence.proxy.async", "fence.proxy.tensormap", "grid.sync",
    "griddepcontrol", "ld.generic", "ld.global", "ld.shared", "ldmatrix", "match.sync", "mbarrier.arrive",
    "mbarrier.arrive.expect_tx", "mbarrier.arrive_drop", "mbarrier.arrive_drop.expect_tx", "mbarrier.complete_tx",
    "mbarrier.expect_tx", "mbarrier.init", "mbarrier.inval", "mbarrier.test_wait", "mbarrier.try_wait", "mbarrier.wait",
    "mma.sync", "movmatrix", "prefetch", "red.async", "redux.sync", "setmaxnreg", "shfl.sync", "st.async", "st.generic",
    "st.global", "st.shared", "stmatrix", "tcgen05.alloc", "tcgen05.commit", "tcgen05.cp", "tcgen05.dealloc",
    "tcgen05.fence", "tcgen05.ld", "tcgen05.mma", "tcgen05.relinquish_alloc_permit", "tcgen05.st", "tcgen05.wait::ld",
    "tcgen05.wait::st", "tensormap.cp_fenceproxy", "tensormap.replace", "vote.sync", "wgmma.commit_group", "wgmma.fence",
    "wgmma.mma_async", "wgmma.wait_group",
)  # fmt: skip

#: Bytes per path, floating-point operations, instructions with a certain qualifier, and what a profiled run adds.
AMOUNTS = (
    "bytes.bulk.dsmem", "bytes.bulk.load", "bytes.bulk.store", "bytes.global.load", "bytes.global.store", "bytes.tma.load",
    "bytes.tma.store", "bytes.tmem.load", "bytes.tmem.store", "flops.mma.sync", "flops.tcgen05.mma", "flops.wgmma",
    "ctas", "mma.a_in_tmem", "mma.executed", "tcgen05.mma.cta_group::2",
    "tcgen05.commit.multicast::cluster",
    "global.requests", "global.sectors", "global.sectors.ideal", "shared.requests", "shared.wavefronts",
    "shared.wavefronts.ideal",
)  # fmt: skip

#: Numbers in ``Kernel.resources``.
RESOURCES = ("threads_per_cta", "smem_bytes", "tmem_columns")

#: What a launch under schedule ``late`` records about overlap; the other schedules do not. Never times: an asynchronous
#: operation runs from its issue to its completion, and ``late`` completes it, in the order of issue, only when no warp
#: can go on without. Two operations run together when one is issued before the other completes.
OBSERVABLES = {
    "tma.loads_in_flight_at_mma": (
        "the most TMA loads (cp.async.bulk.tensor) of a cluster that were in flight at one moment while one of its"
        " tcgen05.mma was"
    ),
    "tcgen05.mma.beside_loads": (
        "the number of tcgen05.mma that had, at some moment of their flight, two or more TMA loads of their cluster in"
        " flight beside them"
    ),
    "accumulations": "the number of tcgen05.mma that overwrite their accumulator: each begins an accumulation",
    "accumulations.serial": (
        "the number of accumulations, not counting the first of a CTA, that the kernel's own synchronisation orders after"
        " every tcgen05.ld of what this CTA accumulated before: no epilogue can overlap with them"
    ),
    "warps.two_roles": (
        "the number of warps that executed at least two of: a TMA load, tcgen05.mma, tcgen05.ld"
    ),
    "warps.mma": (
        "the least number of warps of a cluster that issued tcgen05.mma, of all clusters in which one did"
    ),
    "tcgen05.mma.busiest": "the most tcgen05.mma that one cluster executed",
    "waves.bytes": (
        "the bytes of the distinct boxes that TMA loads for the w-th tile of all CTAs together, summed over w"
    ),
    "waves.bytes.ideal": "the least waves.bytes that is possible: every wave a rectangle of tiles, as square as it can be",
    "waves.percent": (
        "the distinct operand bytes of the tiles that run side by side, in percent of what the best rectangles of tiles"
        " would read: 100 * waves.bytes / waves.bytes.ideal, rounded up"
    ),
}

#: The observables that are no sum.
MAXIMA = ("tcgen05.mma.busiest", "tma.loads_in_flight_at_mma", "warps.mma", "waves.percent")

#: Instructions behind an amount or an observable, for messages that show lines.
COUNTED_BY = {
    "bytes.bulk.load": ("cp.async.bulk.load",),
    "bytes.global.load": ("ld.global",),
    "bytes.global.store": ("st.global",),
    "bytes.tma.load": ("cp.async.bulk.tensor.load",),
    "bytes.tma.store": ("cp.async.bulk.tensor.store",),
    "bytes.tmem.load": ("tcgen05.ld",),
    "bytes.tmem.store": ("tcgen05.st",),
    "flops.tcgen05.mma": ("tcgen05.mma",),
    "mma.a_in_tmem": ("tcgen05.mma",),
    "tcgen05.wait::ld": ("tcgen05.ld", "tcgen05.wait::ld"),
    "tcgen05.wait::st": ("tcgen05.st", "tcgen05.wait::st"),
    "tcgen05.mma.cta_group::2": ("tcgen05.mma",),
    "tcgen05.commit.multicast::cluster": ("tcgen05.commit",),
    "tma.loads_in_flight_at_mma": ("cp.async.bulk.tensor.load", "tcgen05.mma"),
    "tcgen05.mma.beside_loads": ("cp.async.bulk.tensor.load", "tcgen05.mma"),
    "accumulations": ("tcgen05.mma",),
    "accumulations.serial": ("tcgen05.mma", "tcgen05.ld"),
    "warps.two_roles": ("cp.async.bulk.tensor.load", "tcgen05.mma", "tcgen05.ld"),
    "warps.mma": ("tcgen05.mma",),
    "tcgen05.mma.busiest": ("tcgen05.mma",),
    "waves.bytes": ("cp.async.bulk.tensor.load",),
    "waves.bytes.ideal": ("cp.async.bulk.tensor.load",),
    "waves.percent": ("cp.async.bulk.tensor.load",),
}
