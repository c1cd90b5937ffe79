# SPDX-License-Identifier: Apache-2.0
"""The words of a control file, for tests that write what only libringside would."""
import os
import struct

DELIVERIES, HEADER = 16, 80  # offsets in a slot's record


class Control:
    """The words of a ring's control file, as a worker that may write them sees them."""

    def __init__(self, path):
        self.file = open(path, "r+b", buffering=0)
        self.clients, self.destinations, self.shared, self.inbox, self.table, self.cells, self.slots = struct.unpack(
            "<7Q", os.pread(self.file.fileno(), 56, 96))

    def close(self):
        self.file.close()

    def read(self, offset):
        return struct.unpack("<Q", os.pread(self.file.fileno(), 8, offset))[0]

    def write(self, offset, value):
        os.pwrite(self.file.fileno(), struct.pack("<Q", value), offset)

    def record(self, slot, offset=0):
        return self.slots + slot * 256 + offset
