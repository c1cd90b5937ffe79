# SPDX-License-Identifier: Apache-2.0
"""Workers on libringside in processes of their own, wherever a test wants them: in a namespace, as another user."""
import contextlib
import os
import selectors
import signal
import subprocess

PROGRAM = os.environ["RINGSIDE_WORKER"]


class Failed(Exception):
    """An answer that is an error: `name` is its symbol, the text says why."""

    def __init__(self, name, text):
        super().__init__(f"{name}: {text}")
        self.name = name


class Worker:
    """worker("loan 100 0") gives the words of the answer; begin() and end() leave time in between."""

    def __init__(self, socket, name="worker", prefix=(), **popen):
        self.process = subprocess.Popen([*prefix, PROGRAM, str(socket), name], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, bufsize=1, **popen)
        self.forked = []
        try:
            self.end()
        except BaseException:
            self.kill()
            raise

    def begin(self, command):
        self.process.stdin.write(command + "\n")

    def end(self, seconds=20):
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                raise AssertionError(f"the worker did not answer within {seconds} s")
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the worker ended with {self.process.wait()}")
        verdict, _, rest = line.rstrip("\n").partition(" ")
        if verdict != "ok":
            raise Failed(*rest.partition(" ")[::2])
        return rest.split()

    def __call__(self, command, seconds=20):
        self.begin(command)
        return self.end(seconds)

    def send(self, route, value, size=100):
        self(f"loan {size} 5000")
        self(f"send {route} {value}")

    def receive(self, timeout_ms=5000):
        """The value of the next message; -1 when its bytes are not all the same."""
        return int(self(f"receive {timeout_ms}")[0])

    def fork(self):
        self.forked.append(int(self("fork")[0]))
        return self.forked[-1]

    def signal(self, number):
        self.process.send_signal(number)

    def close(self, seconds=20):
        """Ends it in order."""
        self.process.stdin.close()
        code = self.process.wait(seconds)
        self.process.stdout.close()
        return code

    def kill(self):
        for pid in self.forked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
