# SPDX-License-Identifier: Apache-2.0
"""What Connection.stats() gives."""

from __future__ import annotations

from typing import TypedDict


class Stats(TypedDict):
    """Counts since this client attached; the last three are of now."""

    sent: int
    received: int
    released: int
    forwarded: int
    forward_copies: int
    nacked: int
    shared: int
    reads: int
    expired: int
    dropped: int
    dead_lettered: int
    requeued: int
    sent_bytes: int
    overflows: int
    held_slots: int
    held_messages: int
    views: int
