"""Checks of what a kernel does. No TVM, no scheduler: the machine tells what happens, this package checks it.

* :mod:`~emulator.checks.findings`: what a check reports, and the log.
* :mod:`~emulator.checks.happens_before`: the race detector, with :mod:`~emulator.checks.events` (records),
  :mod:`~emulator.checks.shadow` (where things are), :mod:`~emulator.checks.conflicts` (one access against
  what the shadow remembers), :mod:`~emulator.checks.grid_order` (order between clusters) and
  :mod:`~emulator.checks.race_reports` (words).
* :mod:`~emulator.checks.barrier_protocol` and :mod:`~emulator.checks.memory_safety`: rules as pure functions.
* :mod:`~emulator.checks.bank_conflicts`: SMEM bank conflicts and global coalescing.
* :mod:`~emulator.checks.views`: accesses that leave the buffer they name.
* :mod:`~emulator.checks.deadlock`: the autopsy of a hang, with :mod:`~emulator.checks.rehearsal` (who holds up whom).

Codes of findings
-----------------

==================================  ========  ================================================================
code                                strength  meaning
==================================  ========  ================================================================
race.smem.write-read                race      SMEM is read and nothing orders the read after an earlier write
race.smem.read-write                race      SMEM is overwritten while an earlier reader may still read
race.smem.write-write               race      two writes of the same SMEM bytes in no particular order
race.smem.many-issuers              race      many threads issue the same TMA load
race.tmem.write-read                race      TMEM is read before the MMA or tcgen05.st that fills it is done
race.tmem.read-write                race      TMEM is overwritten before its readers have signalled
race.tmem.write-write               race      two unordered writes of TMEM, e.g. by MMAs of two threads
race.tmem.many-issuers              race      many threads issue the same MMA
tmem.alloc-not-visible              race      TMEM is used and nothing orders its allocation before
race.gmem.write-read                race      global memory is read and nothing orders the read after a write
race.gmem.read-write                race      global memory is overwritten while it may still be read
race.gmem.write-write               race      two threads or CTAs write the same global elements
proxy.missing-fence                 race      async read of generic-proxy writes without fence.proxy.async
proxy.fence-by-another-thread       lint      the fence is on the path, but not in the writing thread
uninitialised.smem                  error     SMEM is read that nothing has written (lint: by ld.shared)
uninitialised.tmem                  error     TMEM is read or accumulated into that nothing has written
tcgen05.missing-wait-ld             lint      tcgen05.ld results or TMEM reuse without tcgen05.wait::ld
tcgen05.missing-wait-st             lint      a warp reuses what it stored without tcgen05.wait::st
tcgen05.missing-fence               lint      no tcgen05.fence::before/after_thread_sync around a thread sync
mbarrier.init-not-visible           race      an mbarrier is used and nothing orders its init before the use
mbarrier.init-not-fenced            lint      async use of an mbarrier, no fence.mbarrier_init after its init
mbarrier.many-initialisers          lint      many threads initialise one mbarrier
mbarrier.not-initialized            error     an operation on an mbarrier that nobody has initialised
mbarrier.stale-phase                race      a wait returns for a phase two or more phases old
mbarrier.phase-overrun              race      the next phase can complete before a waiter has seen this one
exit.bulk-store-pending             race      a CTA exits while a bulk store may read its SMEM (*)
exit.load-pending                   race      a CTA exits while a copy into its SMEM is in flight
exit.mma-pending                    race      a CTA exits while an MMA may still use its SMEM or TMEM
exit.remote-use                     race      SMEM of another CTA is used, which may have exited before
mbarrier.misaligned                 error     mbarrier object not 8-byte aligned
mbarrier.bad-count                  error     arrival count outside 1 .. 2**20 - 1
mbarrier.reinit-in-use              error     mbarrier.init while a phase is under way
mbarrier.too-many-arrivals          error     more arrivals in a phase than mbarrier.init announced
mbarrier.tx-overflow                error     transaction count outside the hardware's range
mbarrier.over-delivery              error     more bytes delivered than expect_tx announced
mbarrier.early-completion           error     a phase completes while its copies are on their way
mbarrier.overwritten                error     a write hits an mbarrier that is used again (else lint)
mbarrier.bad-parity                 error     a wait with a parity other than 0 or 1
barrier.bad-id                      error     named barrier outside 0 .. 15
barrier.bad-count                   error     named barrier count not a positive multiple of 32
barrier.count-too-large             error     named barrier waits for more threads than the CTA has
barrier.mixed-counts                error     different thread counts at one named barrier in one round
barrier.double-arrive               race      a warp arrives at a named barrier twice in one round
cluster.other-barrier               error     a copy signals another CTA's mbarrier without cta_group::2
warp.divergent                      error     .sync.aligned is executed by only part of a warp
deadlock                            error     nothing can run any more: one finding per wait, causes first
smem.out-of-bounds                  error     address outside the CTA's shared memory
smem.outside-view                   error     address inside the allocation but outside the declared buffer
smem.misaligned                     error     shared address of an instruction not aligned as it requires
memory.misaligned                   error     ld or st that is not naturally aligned
gmem.out-of-bounds                  error     address outside a tensor
bulk.bad-size                       error     bulk copy of a size that is no positive multiple of 16
tmem.out-of-bounds                  error     TMEM columns beyond 512
tmem.not-allocated                  error     TMEM columns that the CTA does not hold
tmem.wrong-lanes                    error     a warp accesses lanes outside its quarter
tmem.bad-size                       error     tcgen05.alloc of a size other than 32, 64, 128, 256 or 512
tmem.alloc-after-relinquish         error     tcgen05.alloc after relinquish_alloc_permit
tmem.bad-dealloc                    error     tcgen05.dealloc of something that was not allocated
tmem.freed                          error     TMEM columns that tcgen05.dealloc has freed
tmem.exhausted                      error     tcgen05.alloc of more columns than are left in the CTA
tcgen05.mixed-cta-group             error     tcgen05 instructions of a kernel with different cta_group
tmem.leak                           error     a CTA exits without freeing its TMEM
setmaxnreg.bad-count                error     register count not a multiple of 8 in 24 .. 256
setmaxnreg.pool-exceeded            error     setmaxnreg.inc beyond the registers of the SM
smem.bank-conflict                  lint      lanes of an access want different words of one bank
gmem.uncoalesced                    lint      an access touches more sectors than its bytes need
==================================  ========  ================================================================

(*) lint when the same warp waits for some of its bulk groups: kernels that ship leave the last store to itself.

Every finding of the race detector has ``data["missing"]``, the concept that is missing: "mbarrier wait",
"tcgen05.commit", "wait_group.read", "wait_group", "tcgen05.wait::ld", "tcgen05.wait::st", "barrier",
"cluster synchronization", "grid synchronization", "fence.proxy.async", "cp.async.wait_group",
"wgmma.wait_group" and the like.
"""
