"""mbarrier protocols, named barriers by warp, reductions over a barrier.

The mbarrier scripts are random legal sequences of operations by one thread (a model below keeps them legal: no underflow,
transaction counts within the ISA's range); after every operation both parities are tested and recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from hardware.harness import Case, kernel_from_source


def _script(seed: int, length: int, count: int) -> tuple[str, int]:
    """Source of a kernel that runs a random sequence on an mbarrier of ``count`` arrivals, and the number of records."""
    rng = np.random.default_rng(seed)
    expected, pending, tx = count, count, 0
    lines: list[str] = []
    records = 0
    bar = "bar.ptr_to([0])"

    def done() -> None:
        nonlocal pending
        if pending == 0 and tx == 0:
            pending = expected

    while len(lines) < length * 4:
        choice = rng.choice(["arrive", "arrive_n", "expect", "complete", "arrive_expect", "drop", "state"])
        if choice == "arrive" and pending >= 1:
            lines.append(f'T.ptx["mbarrier.arrive.shared.b64"]({bar})')
            pending -= 1
        elif choice == "arrive_n" and pending >= 2:
            n = int(rng.integers(1, pending + 1))
            lines.append(f'T.ptx["mbarrier.arrive.shared.b64"]({bar}, T.uint32({n}))')
            pending -= n
        elif choice == "expect" and pending >= 1 and tx < 2**19:
            n = int(rng.choice([16, 48, 1024, 4096, -tx if tx < 0 else 7]))
            lines.append(f'T.ptx["mbarrier.expect_tx.relaxed.cta.shared.b64"]({bar}, T.uint32({n}))')
            tx += n
        elif choice == "complete" and (pending >= 1 or tx > 0) and tx > -(2**18):
            n = int(rng.choice([16, 48, 2048])) if tx <= 0 else int(rng.choice([tx, max(1, tx // 2)]))
            if pending == 0:
                n = min(n, tx)
            lines.append(f'T.ptx["mbarrier.complete_tx.relaxed.cta.shared.b64"]({bar}, T.uint32({n}))')
            tx -= n
        elif choice == "arrive_expect" and pending >= 1:
            n = int(rng.choice([16, 32, 512])) if tx >= 0 else -tx
            if pending == 1 and tx + n < 0:
                continue
            lines.append(f'T.ptx["mbarrier.arrive.expect_tx.shared.b64"]({bar}, T.uint32({n}))')
            tx += n
            pending -= 1
        elif choice == "drop" and pending >= 1 and expected > 2:
            lines.append(f'T.ptx["mbarrier.arrive_drop.shared.b64"]({bar})')
            pending -= 1
            expected -= 1
        elif choice == "state" and pending >= 1:
            lines.append(f'T.ptx["mbarrier.arrive.shared.b64"](st[0], {bar})')
            pending -= 1
            lines.append('T.ptx["mbarrier.pending_count.b64"](p[0], st[0])')
            lines.append(f"D[{records}] = p[0]")
            lines.append(f'T.ptx["mbarrier.test_wait.shared.b64"](p[0], {bar}, st[0])')
            lines.append(f"D[{records + 1}] = p[0]")
            records += 2
        else:
            continue
        if pending == 0 and tx < 0:  # the phase would stay open until the count comes back to zero
            lines.append(f'T.ptx["mbarrier.expect_tx.relaxed.cta.shared.b64"]({bar}, T.uint32({-tx}))')
            tx = 0
        done()
        for parity in (0, 1):
            lines.append(f'T.ptx["mbarrier.test_wait.parity.shared.b64"](p[0], {bar}, T.uint32({parity}))')
            lines.append(f"D[{records}] = p[0]")
            records += 1
    body = "\n".join("        " + line for line in lines)
    source = f"""@T.prim_func
def kernel(D: T.Buffer(({records},), "uint32")):
    T.device_entry()
    T.cta_id([1])
    tx = T.thread_id([32])
    pool = T.SMEMPool()
    bar = pool.alloc((1,), "uint64", align=8)
    pool.commit()
    p = T.alloc_local((1,), "uint32")
    st = T.alloc_local((1,), "uint64")
    if tx == 0:
        T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32({count}))
{body}
"""
    return source, records


def script(seed: int, length: int, count: int, name: str) -> Any:
    return kernel_from_source(name, _script(seed, length, count)[0])


def ring(warps: int, stages: int, rounds: int) -> Any:
    """A producer warp and consumer warps around a ring of stages: full and empty mbarriers, parity by round."""
    from tvm.script import tirx as T

    @T.prim_func
    def kernel(A: T.Buffer((rounds * 32,), "uint32"), D: T.Buffer((warps - 1, rounds * 32), "uint32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([warps])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((stages * 32,), "uint32", align=128)
        full = pool.alloc((stages,), "uint64", align=8)
        empty = pool.alloc((stages,), "uint64", align=8)
        pool.commit()
        if warp == 0:
            if lane == 0:
                for k in T.unroll(stages):
                    T.ptx["mbarrier.init.shared.b64"](full.ptr_to([k]), T.uint32(32))
                    T.ptx["mbarrier.init.shared.b64"](empty.ptr_to([k]), T.uint32(32 * (warps - 1)))
        T.cuda.cta_sync()
        if warp == 0:
            for k in T.serial(rounds):
                T.cuda.mbarrier_wait(empty.ptr_to([k % stages]), (k // stages + 1) % 2)
                s[(k % stages) * 32 + lane] = A[k * 32 + lane] ^ T.Cast("uint32", k)
                T.ptx["mbarrier.arrive.shared.b64"](full.ptr_to([k % stages]))
        else:
            for k in T.serial(rounds):
                T.cuda.mbarrier_wait(full.ptr_to([k % stages]), (k // stages) % 2)
                D[warp - 1, k * 32 + lane] = s[(k % stages) * 32 + (lane + warp) % 32]
                T.ptx["mbarrier.arrive.shared.b64"](empty.ptr_to([k % stages]))

    return kernel


def bulk_ring(stages: int, rounds: int) -> Any:
    """The same ring filled by bulk copies with transaction bytes; the consumer sums what it reads."""
    from tvm.script import tirx as T

    @T.prim_func
    def kernel(A: T.Buffer((rounds * 64,), "uint32"), D: T.Buffer((64,), "uint32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([3])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((stages * 64,), "uint32", align=128)
        full = pool.alloc((stages,), "uint64", align=8)
        empty = pool.alloc((stages,), "uint64", align=8)
        pool.commit()
        if warp == 0:
            if lane == 0:
                for k in T.unroll(stages):
                    T.ptx["mbarrier.init.shared.b64"](full.ptr_to([k]), T.uint32(1))
                    T.ptx["mbarrier.init.shared.b64"](empty.ptr_to([k]), T.uint32(64))
                T.ptx["fence.mbarrier_init.release.cluster"]()
        T.cuda.cta_sync()
        if warp == 0:
            if lane == 0:
                for k in T.serial(rounds):
                    T.cuda.mbarrier_wait(empty.ptr_to([k % stages]), (k // stages + 1) % 2)
                    T.ptx["mbarrier.arrive.expect_tx.shared.b64"](full.ptr_to([k % stages]), T.uint32(256))
                    T.ptx["cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"](
                        s.ptr_to([(k % stages) * 64]),
                        T.address_of(A[k * 64]),
                        T.uint32(256),
                        full.ptr_to([k % stages]),
                    )
        else:
            total: T.uint32 = T.uint32(0)
            for k in T.serial(rounds):
                T.cuda.mbarrier_wait(full.ptr_to([k % stages]), (k // stages) % 2)
                total = total * T.uint32(3) + s[(k % stages) * 64 + (warp - 1) * 32 + lane]
                T.ptx["mbarrier.arrive.shared.b64"](empty.ptr_to([k % stages]))
            D[(warp - 1) * 32 + lane] = total

    return kernel


def named_pairs(pairs: int) -> Any:
    """Warp w hands a value to warp w + pairs through named barrier 1 + w: bar.arrive here, bar.sync there."""
    from tvm.script import tirx as T

    @T.prim_func
    def kernel(A: T.Buffer((pairs * 32,), "uint32"), D: T.Buffer((pairs * 32,), "uint32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([2 * pairs])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((pairs * 32,), "uint32", align=128)
        pool.commit()
        if warp < pairs:
            s[warp * 32 + lane] = A[warp * 32 + lane] * T.uint32(7)
            T.ptx["bar.arrive"](T.Cast("uint32", 1 + warp), T.uint32(64))
        else:
            T.ptx["bar.sync"](T.Cast("uint32", 1 + warp - pairs), T.uint32(64))
            D[(warp - pairs) * 32 + lane] = s[(warp - pairs) * 32 + 31 - lane]

    return kernel


def named_subsets(warps: int, rounds: int) -> Any:
    """Groups of two warps share a barrier each round, by another pairing every round."""
    from tvm.script import tirx as T

    @T.prim_func
    def kernel(A: T.Buffer((warps * 32,), "uint32"), D: T.Buffer((warps * 32,), "uint32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([warps])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((warps * 32,), "uint32", align=128)
        pool.commit()
        x: T.uint32 = A[warp * 32 + lane]
        for k in T.serial(rounds):
            partner: T.let[T.int32] = warp ^ (T.int32(1) << (k % 2))
            low: T.let[T.int32] = T.min(warp, partner)
            # Every pair of either pairing has a barrier of its own: 1 to 4 in even rounds, 5 to 8 in odd ones.
            ident: T.let[T.int32] = T.if_then_else(k % 2 == 0, 1 + low // 2, 5 + low // 4 * 2 + low % 2)
            s[warp * 32 + lane] = x
            T.ptx["bar.sync"](T.Cast("uint32", ident), T.uint32(64))
            x = x * T.uint32(5) + s[partner * 32 + lane]
            T.ptx["bar.sync"](T.Cast("uint32", ident), T.uint32(64))
        D[warp * 32 + lane] = x

    return kernel


def reductions(threads: int) -> Any:
    """bar.red over all threads: popc, and, or."""
    from tvm.script import tirx as T

    @T.prim_func
    def kernel(A: T.Buffer((6, threads), "uint32"), D: T.Buffer((6, 3, threads), "uint32")):
        T.device_entry()
        T.cta_id([1])
        tx = T.thread_id([threads])
        r = T.alloc_local((3,), "uint32")
        for k in T.serial(6):
            T.ptx["bar.red.popc.u32"](r[0], T.uint32(1), T.uint32(threads), T.ptx.pred(A[k, tx]))
            T.ptx["bar.red.and.pred"](r[1], T.uint32(2), T.uint32(threads), T.ptx.pred(A[k, tx]))
            T.ptx["bar.red.or.pred"](r[2], T.uint32(3), T.uint32(threads), T.ptx.pred(A[k, tx]))
            for j in T.unroll(3):
                D[k, j, tx] = r[j]

    return kernel


def _words(*shapes: tuple[int, ...]) -> Any:
    def arguments(rng: np.random.Generator) -> list[np.ndarray]:
        return [
            rng.integers(0, 2**32, shapes[0], dtype=np.uint32),
            *(np.full(s, 0xABABABAB, np.uint32) for s in shapes[1:]),
        ]

    return arguments


def _votes(threads: int, rng: np.random.Generator) -> list[np.ndarray]:
    level = np.array([0.0, 0.01, 0.5, 0.9, 0.995, 1.0])[:, None]
    return [(rng.random((6, threads)) < level).astype(np.uint32), np.full((6, 3, threads), 9, np.uint32)]


def _records(seed: int, length: int, count: int, rng: np.random.Generator) -> list[np.ndarray]:
    return [np.full(_script(seed, length, count)[1], 7, np.uint32)]


def cases() -> Iterator[Case]:
    for seed in range(24):
        count = (1, 2, 3, 5, 8, 32)[seed % 6]
        case_id = f"barriers/mbarrier/script/{seed}"
        yield Case(
            case_id, "mbarrier", partial(script, seed, 24, count, case_id), partial(_records, seed, 24, count)
        )
    for warps, stages, rounds in ((2, 1, 5), (2, 2, 9), (3, 3, 12), (5, 4, 17)):
        yield Case(
            f"barriers/mbarrier/ring/{warps}x{stages}x{rounds}",
            "mbarrier",
            partial(ring, warps, stages, rounds),
            _words((rounds * 32,), (warps - 1, rounds * 32)),
        )
    for stages, rounds in ((1, 6), (2, 11), (4, 40)):
        yield Case(
            f"barriers/mbarrier/bulk_ring/{stages}x{rounds}",
            "mbarrier",
            partial(bulk_ring, stages, rounds),
            _words((rounds * 64,), (64,)),
        )
    for pairs in (1, 2, 4, 8, 15):
        yield Case(
            f"barriers/named/pairs/{pairs}",
            "named barriers",
            partial(named_pairs, pairs),
            _words((pairs * 32,), (pairs * 32,)),
        )
    for warps, rounds in ((4, 6), (8, 9)):
        yield Case(
            f"barriers/named/subsets/{warps}x{rounds}",
            "named barriers",
            partial(named_subsets, warps, rounds),
            _words((warps * 32,), (warps * 32,)),
        )
    for threads in (32, 128, 256):
        yield Case(
            f"barriers/red/{threads}",
            "named barriers",
            partial(reductions, threads),
            partial(_votes, threads),
        )
