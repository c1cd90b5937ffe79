# SPDX-License-Identifier: Apache-2.0
"""Builds the Go client from Debian's sources, without a network, and runs it against two sidecars.

Usage: run.py BUILD_DIR RINGSIDE_PROXY

Needs Debian's golang-go, protobuf-compiler and golang-github-containerd-ttrpc-dev (with what that depends
on: golang-github-gogo-protobuf-dev, golang-google-grpc-dev, golang-google-genproto-dev and others); where
one is missing it says so and exits with 77, which meson counts as skipped. The generator is ttrpc's
protoc-gen-gogottrpc, since this version of ttrpc speaks gogo protobuf; it has unary calls only.
"""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
GOCODE = pathlib.Path("/usr/share/gocode")
TTRPC = "github.com/containerd/ttrpc"
PACKAGES = {  # Go package that is imported -> Debian package that has it
    TTRPC: "golang-github-containerd-ttrpc-dev",
    "github.com/gogo/protobuf/proto": "golang-github-gogo-protobuf-dev",
    "google.golang.org/grpc/status": "golang-google-grpc-dev",
}
START_SECONDS = 30  # to make the ring and to stop
RUN_SECONDS = 240


def missing():
    """Debian packages that are needed and not there."""
    tools = {"go": "golang-go", "protoc": "protobuf-compiler"}
    return ([package for tool, package in tools.items() if shutil.which(tool) is None]
            + [package for path, package in PACKAGES.items() if not (GOCODE / "src" / path).is_dir()])


def build(directory):
    """Generates the Go code of control.proto and compiles the client; returns its path."""
    generated, plugin = directory / "src", directory / "protoc-gen-gogottrpc"
    generated.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GO")}
    environment |= {"GO111MODULE": "off", "GOPROXY": "off", "GOFLAGS": "", "GOENV": "off",
                    "CGO_ENABLED": "0", "GOPATH": f"{directory}:{GOCODE}",
                    "GOCACHE": str(directory / "cache")}

    def run(*command):
        # Outside of GOPATH go takes a package by its relative path only.
        subprocess.run(command, cwd=pathlib.Path(__file__).parent, env=environment, check=True,
                       timeout=RUN_SECONDS)

    run("go", "build", "-o", str(plugin), f"{TTRPC}/cmd/protoc-gen-gogottrpc")
    run("protoc", f"--plugin={plugin}", f"--proto_path={ROOT / 'proto'}",
        f"--gogottrpc_out=plugins=ttrpc:{generated}", str(ROOT / "proto" / "control.proto"))
    run("go", "vet", ".")
    run("go", "build", "-o", str(directory / "go-client"), ".")
    return directory / "go-client"


class Sidecar:
    """A ringside-proxy of our own; ready when the constructor returns."""

    def __init__(self, proxy, directory, shm, stage, routes):
        self.socket = directory / f"{stage}.sock"
        config = directory / f"{stage}.json"
        config.write_text(json.dumps({
            "stage": stage, "socket": {"path": str(self.socket)},
            "ring": {"control_dir": str(shm), "body_dir": str(shm), "pages": "4Ki", "numa": "off",
                     "lock": "off", "classes": [{"slot_bytes": "64Ki", "slots": 4}]},
            "inbox": {"cells": 16, "depth": 2},
            "routes": {name: {"to": [f"unix:{path}"], "when_full": "error"}
                       for name, path in routes.items()}}), encoding="utf-8")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(str(directory / f"{stage}.notify"))
            notify.settimeout(0.1)
            environment = {name: value for name, value in os.environ.items()
                           if not name.startswith("RINGSIDE_")}
            environment["NOTIFY_SOCKET"] = notify.getsockname()
            self.process = subprocess.Popen([proxy, str(config)], env=environment)
            try:
                self.wait_ready(notify)
            except BaseException:
                self.process.kill()
                self.process.wait()
                raise

    def wait_ready(self, notify):
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise SystemExit(f"the sidecar ended with {self.process.returncode} before it was ready")
            try:
                if b"READY=1" in notify.recv(4096).split(b"\n"):
                    return
            except socket.timeout:
                pass
        raise SystemExit(f"the sidecar was not ready within {START_SECONDS} s")

    def stop(self):
        """Ends it as an orchestrator would; returns its exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def test(client, proxy):
    """Runs the client; 0 when it and both sidecars ended well."""
    with tempfile.TemporaryDirectory(prefix="ringside-go-") as directory, \
            tempfile.TemporaryDirectory(prefix="ringside-go-", dir="/dev/shm") as shm:
        directory, shm, sidecars = pathlib.Path(directory), pathlib.Path(shm), []
        try:
            next_socket = directory / "next.sock"
            sidecars.append(Sidecar(proxy, directory, shm, "next", {}))
            sidecars.append(Sidecar(proxy, directory, shm, "go",
                                    {"self": directory / "go.sock", "next": next_socket}))
            status = subprocess.run([client, "-socket", sidecars[1].socket, "-next-socket", next_socket],
                                    timeout=RUN_SECONDS, check=False).returncode
        finally:
            ends = [sidecar.stop() for sidecar in reversed(sidecars)]
        left = sorted(path.name for path in shm.iterdir())
    if any(ends) or left:
        print(f"the sidecars ended with {ends} and left {left}")
        return 1
    return status


def main():
    if missing():
        print(f"SKIP: the Go client needs Debian's {', '.join(missing())}")
        return 77
    directory = pathlib.Path(sys.argv[1]).resolve()
    return test(build(directory), sys.argv[2])


if __name__ == "__main__":
    sys.exit(main())
