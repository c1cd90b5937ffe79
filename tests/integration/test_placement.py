# SPDX-License-Identifier: Apache-2.0
"""NUMA calls that a container forbids, and nodes that do not exist: one warning that tells the truth, and a start."""
import errno
import pathlib
import platform

import pytest

from machine import refuse_calls, sidecar  # noqa: F401

MBIND, SET_MEMPOLICY, GET_MEMPOLICY = 237, 238, 239
ALL = (MBIND, SET_MEMPOLICY, GET_MEMPOLICY)
NODES = len(list(pathlib.Path("/sys/devices/system/node").glob("node[0-9]*")))

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls are those of x86-64")


def start(sidecar, numa, stage="stage", **popen):  # noqa: F811
    """The status of a sidecar, and its lines about placement that are worth a warning."""
    daemon = sidecar(stage, ring={"numa": numa}).start(**popen)
    with daemon.client() as client:
        status = client.status()
        client.attach()
        client.send(client.loan((65536,)).lease)  # it serves all the same
        client.release(client.receive().lease)
    assert status.state == "serving"
    return status.numa, [line for line in daemon.log().splitlines() if " warn " in line and "numa:" in line]


@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
@pytest.mark.parametrize("calls, names", [((MBIND,), "mbind"), (ALL, ""), ((GET_MEMPOLICY,), "get_mempolicy")])
def test_forbidden_call_is_one_warning(sidecar, calls, names, error):  # noqa: F811
    if NODES == 0:
        pytest.skip("this kernel has no NUMA nodes")
    text, warnings = start(sidecar, 0, preexec_fn=lambda: refuse_calls(calls, getattr(errno, error)))
    if calls == (GET_MEMPOLICY,) and error == "EPERM":  # the binding itself worked
        assert text.startswith("bound to node 0; where the pages lie cannot be checked: get_mempolicy: EPERM")
    else:
        assert text.startswith("not bound") and len(warnings) == 1 and text in warnings[0]
    assert names in text
    assert calls == (GET_MEMPOLICY,) or error in text or "get_mempolicy" in text


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS])
def test_nobody_is_warned_of_what_nobody_asked_for(sidecar, error):  # noqa: F811
    text, warnings = start(sidecar, "off", preexec_fn=lambda: refuse_calls(ALL, error))
    assert (text, warnings) == ("off", [])


def test_node_that_does_not_exist(sidecar):  # noqa: F811
    text, warnings = start(sidecar, NODES)
    assert f"there is no node {NODES}" in text and len(warnings) == 1 and text in warnings[0]


def test_strict_and_preferred_are_told_apart(sidecar):  # noqa: F811
    text, warnings = start(sidecar, 0)
    assert warnings == [] and text == "bound to node 0"
    text, warnings = start(sidecar, "auto", "another")
    assert warnings == []
    assert text == "one node" if NODES == 1 else text.endswith("preferred")
