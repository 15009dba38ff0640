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

=====================================  ========  ========================================================================
code                                   strength  meaning
=====================================  ========  ========================================================================
race.smem.write-read                   race      SMEM is read and nothing orders the read after an earlier write
race.smem.read-write                   race      SMEM is overwritten while an earlier reader may still read
race.smem.write-write                  race      two writes of the same SMEM bytes in no particular order
race.smem.many-issuers                 race      many threads issue the same TMA load
race.smem.within-warp                  race      a lane reads what another lane of its warp stored, no bar.warp.sync
race.smem.same-address                 race      lanes of a warp store different values to one address in one store
race.tmem.write-read                   race      TMEM is read before the MMA or tcgen05.st that fills it is done
race.tmem.read-write                   race      TMEM is overwritten before its readers have signalled
race.tmem.write-write                  race      two unordered writes of TMEM, e.g. by MMAs of two threads
race.tmem.many-issuers                 race      many threads issue the same MMA
tmem.alloc-not-visible                 race      TMEM is used and nothing orders its allocation before
race.gmem.write-read                   race      global memory is read and nothing orders the read after a write
race.gmem.read-write                   race      global memory is overwritten while it may still be read
race.gmem.write-write                  race      two threads or CTAs write the same global elements
race.gmem.same-address                 race      lanes of a warp store different values to one element in one store
proxy.missing-fence                    race      async read of generic-proxy writes without fence.proxy.async
proxy.fence-by-another-thread          lint      the fence is on the path, but not in the writing thread
uninitialised.smem                     error     SMEM is read that nothing has written (*)
uninitialised.tmem                     error     TMEM is read or accumulated into that nothing has written
uninitialised.local                    error     an integer local is read that nothing has written
tcgen05.missing-wait-ld                lint      tcgen05.ld results or TMEM reuse without tcgen05.wait::ld
tcgen05.missing-wait-st                lint      a warp reuses what it stored without tcgen05.wait::st
tcgen05.missing-fence                  lint      no tcgen05.fence::before/after_thread_sync around a thread sync
mbarrier.init-not-visible              race      an mbarrier is used and nothing orders its init before the use
mbarrier.init-not-fenced               lint      async use of an mbarrier, no fence.mbarrier_init after its init
mbarrier.many-initialisers             lint      many threads initialise one mbarrier
mbarrier.not-initialized               error     an operation on an mbarrier that nobody has initialised
mbarrier.stale-phase                   race      a wait returns for a phase two or more phases old
mbarrier.phase-overrun                 race      the next phase can complete before a waiter has seen this one
exit.bulk-store-pending                lint      a CTA exits while a bulk store may read its SMEM
exit.load-pending                      race      a CTA exits while a copy into its SMEM is in flight
exit.mma-pending                       race      a CTA exits while an MMA may still use its SMEM or TMEM
exit.remote-use                        race      SMEM of another CTA is used, which may have exited before
mbarrier.misaligned                    error     an mbarrier at an address that is not a multiple of 8
mbarrier.bad-count                     error     mbarrier.init with a count outside 1 .. 2**20 - 1
mbarrier.reinit-in-use                 error     mbarrier.init while a phase is under way
mbarrier.too-many-arrivals             error     more arrivals in a phase than mbarrier.init announced
mbarrier.tx-overflow                   error     transaction count outside the hardware's range
mbarrier.over-delivery                 error     more bytes delivered than expect_tx announced
mbarrier.early-completion              error     a phase completes while its copies are on their way
mbarrier.overwritten                   error     a write hits an mbarrier that is used again (else lint)
mbarrier.bad-parity                    error     a wait with a parity other than 0 or 1
barrier.bad-id                         error     named barrier outside 0 .. 15
barrier.bad-count                      error     named barrier count not a positive multiple of 32
barrier.count-too-large                error     named barrier waits for more threads than the CTA has
barrier.mixed-counts                   error     different thread counts at one named barrier in one round
barrier.double-arrive                  race      a warp arrives at a named barrier twice in one round
barrier.cluster-double-arrive          error     barrier.cluster.arrive twice without a wait in between
barrier.cluster-wait-without-arrive    error     barrier.cluster.wait without an arrive
cluster.other-barrier                  error     a copy signals another CTA's mbarrier without cta_group::2
cluster.bad-rank                       error     mapa or an address with a rank that the cluster does not have
warp.divergent                         error     .sync.aligned is executed by only part of a warp
warp.not-a-member                      error     a thread is not in the member mask of its own warp instruction
warp.bad-width                         error     a shuffle whose width is not a power of two up to 32
deadlock                               error     nothing can run any more: one finding per wait, causes first
smem.out-of-bounds                     error     address outside the CTA's shared memory
smem.outside-view                      error     address inside the allocation but outside the declared buffer
smem.misaligned                        error     shared address of an instruction not aligned as it requires
smem.illegal-address                   error     shared address of a CTA rank that the cluster does not have
smem.mixed-ranks                       error     lanes of one access reach SMEM of different CTAs (not emulated)
gmem.out-of-bounds                     error     address outside a tensor
gmem.illegal-address                   error     address outside every tensor
gmem.misaligned                        error     global address that is not aligned to the access
local.out-of-bounds                    error     an index outside a local array
local.misaligned                       error     a pointer to registers that crosses a word
tma.bad-box                            error     a tensor map or box that breaks a rule of tensor maps
tma.bad-coordinates                    error     coordinates that the copy may not have
tma.bad-mask                           error     a multicast mask with CTAs that do not exist
tma.bad-rank                           error     another number of coordinates than the tensor map has
tma.misaligned                         error     address or size of a bulk copy is not aligned as it requires
tensormap.invalid                      error     the bytes that a copy uses are no tensor map
tensormap.misaligned                   error     a tensor map at an address that is not a multiple of 128
cp.async.bad-size                      error     cp.async of a size other than 4, 8 or 16, or with too large a source
cp.async.remote                        error     cp.async into SMEM of another CTA
tmem.out-of-bounds                     error     TMEM columns beyond 512
tmem.not-allocated                     error     TMEM columns that the CTA does not hold
tmem.wrong-lanes                       error     a warp accesses lanes outside its quarter
tmem.bad-size                          error     tcgen05.alloc of a size other than 32, 64, 128, 256 or 512
tmem.alloc-after-relinquish            error     tcgen05.alloc after relinquish_alloc_permit
tmem.bad-dealloc                       error     tcgen05.dealloc of something that was not allocated
tmem.freed                             error     TMEM columns that tcgen05.dealloc has freed
tmem.exhausted                         error     tcgen05.alloc of more columns than are left in the CTA
tcgen05.mixed-cta-group                error     tcgen05 instructions of a kernel with different cta_group
tcgen05.no-peer                        error     cta_group::2 in a cluster of one CTA
tcgen05.bad-instruction-descriptor     error     instruction descriptor with fields that the MMA does not allow
tcgen05.bad-descriptor                 error     SMEM descriptor that does not describe the operand
tcgen05.bad-tmem-address               error     TMEM address that D may not have
tcgen05.bad-cp                         error     tcgen05.cp with a shape or address that it does not allow
tcgen05.operand-overlap                race      an MMA whose accumulator covers a part of its own operand A in TMEM
wgmma.bad-descriptor                   error     SMEM descriptor that does not describe the operand of wgmma
wgmma.no-fence                         race      wgmma without wgmma.fence after its registers were written
tmem.leak                              error     a CTA exits without freeing its TMEM
setmaxnreg.bad-count                   error     register count not a multiple of 8 in 24 .. 256
setmaxnreg.pool-exceeded               error     setmaxnreg.inc beyond the registers of the SM
clc.after-refusal                      error     try_cancel after one that has failed
clc.bad-response                       error     query of bytes that are no response of try_cancel
clc.misaligned                         error     response of try_cancel at an address not a multiple of 16
clc.not-canceled                       error     first CTA id of a response that got no cluster
assert.failed                          error     an assertion of the kernel failed
arithmetic.division-by-zero            error     an integer is divided by 0
smem.bank-conflict                     lint      lanes of an access want different words of one bank
gmem.uncoalesced                       lint      an access touches more sectors than its bytes need
=====================================  ========  ========================================================================

(*) lint when a plain ld.shared reads it and no output depends on it: the launch is repeated with other contents of
fresh SMEM, and no element changes.

Every finding of the race detector has ``data["missing"]``, the concept that is missing: "mbarrier wait",
"tcgen05.commit", "wait_group.read", "wait_group", "tcgen05.wait::ld", "tcgen05.wait::st", "barrier",
"cluster synchronization", "grid synchronization", "fence.proxy.async", "cp.async.wait_group", "bar.warp.sync",
"one owner per element",
"wgmma.wait_group" and the like.
"""
