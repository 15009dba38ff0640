"""The address map of the virtual GPU.

======================  ===========================================================================
shared window address   ``(CTA rank in cluster << 24) | byte offset`` (uint32), as ``cvta`` and ``mapa`` see it
generic shared pointer  ``SHARED_TAG | shared window address``
global pointer          ``(segment + 1) << 40 | byte offset``; one segment per tensor
======================  ===========================================================================

Dynamic shared memory starts at byte 1024: the first KiB belongs to the system, as on sm_90 and sm_100, so that
address 0 is never valid.  Static shared memory lies behind the largest possible dynamic pool.
"""

from __future__ import annotations

SHARED_TAG = 1 << 56
RANK_SHIFT = 24
OFFSET_MASK = (1 << RANK_SHIFT) - 1
POOL_BASE = 1024
STATIC_BASE = 0x39000
WINDOW_BYTES = 0x40000
SEGMENT_SHIFT = 40
SMEM_LIMIT = 232_448  # 227 KiB per CTA (opt-in maximum, sm_90 and sm_100)


def static_base() -> int:
    return STATIC_BASE


def is_shared(pointer: int) -> bool:
    """Whether a generic pointer (or shared window address) points to shared memory."""
    return bool(pointer & SHARED_TAG) or pointer < (1 << 32)
