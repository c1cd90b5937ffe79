# SPDX-License-Identifier: Apache-2.0
"""The workers of examples/, built as each says in its head: every language sends, receives, calls and serves."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from daemon import Daemon
from ttrpc_client import Refused

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["RINGSIDE_BUILD"])
TREE = BUILD / "tests" / "interop" / "tree"  # as the source tree is, with room to build in
ENVIRONMENT = {**{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
               "PATH": f"/usr/bin:/bin:{os.environ['PATH']}",  # Debian's toolchains first
               "LD_LIBRARY_PATH": str(BUILD / "client" / "c"), "PYTHONPATH": str(BUILD / "client" / "python"),
               "PYTHONDONTWRITEBYTECODE": "1", "CARGO_HOME": str(TREE / "cargo")}
CLASSES = "out:/usr/share/java/protobuf.jar"

# What each needs (Debian package: a program or a path that it has), how it is built, how it is run.
WORKERS = {
    "c": ({"gcc": "cc"},
          ["cc -Wall -Wextra -Werror -o worker worker.c -I../../client/c -L../../build/client/c -lringside"],
          ["./worker"]),
    "python": ({"python3-numpy": "/usr/lib/python3/dist-packages/numpy"}, [], [sys.executable, "worker.py"]),
    "python-socket": ({"protobuf-compiler": "protoc"},
                      ["protoc -I../../proto --python_out=. control.proto ttrpc_wire.proto"],
                      [sys.executable, "worker.py"]),
    "go": ({"golang-go": "go", "protobuf-compiler": "protoc",
            "golang-github-containerd-ttrpc-dev": "/usr/share/gocode/src/github.com/containerd/ttrpc"},
           ["./build.sh out"], ["out/worker"]),
    "rust": ({"cargo": "cargo", "librust-ttrpc-dev": "/usr/share/cargo/registry/ttrpc-0.5.2"},
             ["cargo build --offline"], ["target/debug/ringside-worker"]),
    "java": ({"openjdk-17-jdk-headless": "javac", "libprotobuf-java": "/usr/share/java/protobuf.jar",
              "protobuf-compiler": "protoc"},
             ["mkdir -p out", "protoc -I../../proto --java_out=out control.proto ttrpc_wire.proto",
              f"javac -nowarn -d out -cp {CLASSES} Worker.java $(find out -name '*.java')"],
             ["java", "-cp", CLASSES, "Worker"]),
}
SENT = "received float32 [80, 3000] sum 14399940000 {\"from\":\"%s\"}\n"


@pytest.fixture(scope="module")
def tree():
    shutil.copytree(ROOT / "examples", TREE / "examples", dirs_exist_ok=True)
    for name, target in (("proto", ROOT / "proto"), ("client", ROOT / "client"), ("build", BUILD)):
        if not (TREE / name).is_symlink():
            (TREE / name).symlink_to(target)
    return TREE / "examples"


@pytest.fixture(scope="module")
def worker(tree):
    """worker(language, arguments) runs it to its end, built when it is asked for first; skips where that cannot be done."""
    ready = set()

    def run(language, *arguments, background=False):
        needs, steps, command = WORKERS[language]
        lacking = [package for package, what in needs.items()
                   if not (pathlib.Path(what).exists() if what[0] == "/" else shutil.which(what, path=ENVIRONMENT["PATH"]))]
        if lacking:
            pytest.skip(f"examples/{language} needs Debian's {', '.join(lacking)}")
        for step in steps if language not in ready else ():
            subprocess.run(step, shell=True, cwd=tree / language, env=ENVIRONMENT, check=True, timeout=900)
        ready.add(language)
        process = subprocess.Popen([*command, *map(str, arguments)], cwd=tree / language, env=ENVIRONMENT, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if background:
            return process
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    return run


@pytest.fixture
def stages(place):
    """Two sidecars, the first with a route "next" to the second; all that was loaned and sent must be free in the end."""
    ring = {"classes": [{"slot_bytes": "1Mi", "slots": 16}]}
    back = Daemon(place, "back", ring=ring, inbox={"cells": 64, "depth": 32}).start()
    front = Daemon(place, "front", ring=ring, routes={"next": {"to": [f"unix:{back.socket}"]}}).start()
    yield front, back
    with front.client() as client:
        wait_until(lambda: client.status().classes[0].free == 16)
    for stage in (front, back):
        assert stage.stop() in (0, -signal.SIGKILL), stage.log()


def wait_until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def done(ended):
    code, out, err = ended
    assert code == 0, out + err
    return out


@pytest.mark.parametrize("language", WORKERS)
def test_exchange_with_another_language(stages, worker, language):
    front, back = stages
    other = "python-socket" if language != "python-socket" else "c"
    for sender, receiver in ((language, other), (other, language), (language, language)):
        assert "sent" in done(worker(sender, front.socket, "send", "next"))
        assert done(worker(receiver, back.socket, "receive")) == SENT % sender


@pytest.mark.parametrize("language", WORKERS)
def test_error_is_told(stages, worker, language):
    code, out, err = worker(language, stages[0].socket, "send", "nowhere")
    assert code != 0 and "nowhere" in err and "sent" not in out, out + err


@pytest.mark.parametrize("language", WORKERS)
def test_call_of_another_language(stages, worker, language):
    front, back = stages
    languages = list(WORKERS)
    other = languages[languages.index(language) - 1]
    for caller, callee in ((language, "python-socket"), (language, language), (language, other)):
        try:
            server = worker(callee, back.socket, "serve", background=True)
        except pytest.skip.Exception:
            continue  # the caller was tried already
        assert done(worker(caller, front.socket, "call", "next")) == \
            "received float32 [80, 3000] sum 28799880000 {\"from\":\"%s\"}\n" % callee
        out, err = server.communicate(timeout=60)
        assert server.returncode == 0, out + err


@pytest.mark.parametrize("language", WORKERS)
def test_unknown_method_is_told(stages, worker, language):
    front, back = stages
    server = worker(language, back.socket, "serve", background=True)
    with front.client() as client:
        client.attach()
        with pytest.raises(Refused) as error:
            client.end_call(client.begin_call("Twist", b"x", route="next"))
        out, err = server.communicate(timeout=60)  # while its caller is there
    assert error.value.code == 12
    assert "Twist" in error.value.message and re.search("(there is|it has): Scale$", error.value.message)
    assert server.returncode == 0, out + err


def test_shell_script(stages, tree):
    front, back = stages
    if missing_numpy():
        pytest.skip("examples/shell needs Debian's python3-numpy, to make a file to send")
    ended = subprocess.run(["./pass-on.sh", front.socket, back.socket], cwd=tree / "shell", text=True, capture_output=True,
                           env={**ENVIRONMENT, "PATH": f"{BUILD / 'client' / 'cli'}:{ENVIRONMENT['PATH']}"}, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1] == "the same came out at both ends", ended.stdout


def missing_numpy():
    return not pathlib.Path("/usr/lib/python3/dist-packages/numpy").exists()


def test_stream_of_messages(stages, worker):
    front, back = stages
    worker("python-socket", front.socket, "send", "next")
    stream = worker("python-socket", back.socket, "stream", 12, background=True)
    for _ in range(11):
        done(worker("c", front.socket, "send", "next"))
    out, err = stream.communicate(timeout=60)
    assert stream.returncode == 0, err
    assert out == SENT % "python-socket" + SENT % "c" * 11
