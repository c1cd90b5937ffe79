# SPDX-License-Identifier: Apache-2.0
""".npy files for the tool, well made and not."""
import struct

import numpy


def save(path, array):
    numpy.save(path, array)
    return path


def npy(header, elements=b"", version=1):
    """An .npy file with the header as it is given."""
    width = "<H" if version == 1 else "<I"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack(width, len(header)) + header + elements


def head(descr="'<f4'", fortran="False", shape="(2, 3)"):
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n".encode()
