# SPDX-License-Identifier: Apache-2.0
"""What two processes share is only touched by the named atomic operations: a plain store could be seen before what it announces."""
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
ATOMIC_ONLY = ["rs_slot", "rs_client", "rs_destination", "rs_ring_entry", "rs_inbox_shared", "rs_ring_shared", "rs_box"]
# Written before a ring is published and constant afterwards, or words too.
SUPERBLOCK_WORDS = ["version", "epoch", "inbox_depth"]


def without_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)


def fields(struct):
    text = without_comments((ROOT / "proto/ring_layout.h").read_text())
    body = re.search(rf"struct {struct} {{(.*?)\n}};", text, re.S).group(1)
    found = re.findall(r"^\s*([\w ]+?)\s+(\w+)(?:\[[^]]*\])?;", body, re.M)
    assert len(found) == body.count(";"), f"not every field of {struct} was read"
    return found


@pytest.mark.parametrize("struct", ATOMIC_ONLY)
def test_fields_that_change_are_atomic_words(struct):
    plain = [name for kind, name in fields(struct) if kind not in ("rs_word", "rs_word32")]
    assert all(re.fullmatch(r"pad\d*", name) for name in plain), plain


def test_superblock_changes_in_words_only():
    assert [name for kind, name in fields("rs_superblock") if kind.startswith("rs_word")] == SUPERBLOCK_WORDS


def findings(pattern, *, but=()):
    """Where the sources match outside of comments."""
    paths = [path for folder in ("proto", "client", "proxy", "config") for path in (ROOT / folder).rglob("*.[ch]")]
    assert len(paths) > 50
    return {str(path.relative_to(ROOT)): found for path in paths if path.name not in but
            and (found := re.findall(pattern, without_comments(path.read_text())))}


def test_only_one_header_names_memory_orders():
    pattern = r"\b(?:__atomic_\w+|__sync_\w+|atomic_thread_fence|memory_order_\w+|volatile)\b"
    assert findings(pattern, but=["atomic.h"]) == {}, "use the operations of proto/atomic.h"


def test_shared_words_are_not_assigned():
    """`record->state = x` compiles, as the slowest store there is; what was meant must be said."""
    assert findings(r"\b(?:record|shared)->\w+(?:\[[^]]*\])?\s*(?:[-+|&^]?=(?!=)|\+\+|--)") == {}


def test_nothing_is_timed_by_a_clock_that_can_be_set():
    """Whoever sets the machine's clock by an hour ends no wait, no lease and no message. A log's stamps are for people."""
    assert findings(r"\b(?:CLOCK_REALTIME\w*|gettimeofday|time\(NULL\)|\w+_timedlock|\w+_timedwait)\b", but=["log.c"]) == {}
