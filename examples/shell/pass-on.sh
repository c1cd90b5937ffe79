#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A pipeline's hand-off and a shared tensor from a shell, with nothing but the tool `ringside` and an .npy file.
#
# Run (Debian: python3-numpy, to make and compare the file), with `ringside` in PATH:
#
#     ./pass-on.sh SOCKET NEXT_SOCKET [ROUTE]
#
# SOCKET is the sidecar of a stage whose ROUTE (default: next) leads to the stage of NEXT_SOCKET.
set -eu
first=$1 second=$2 route=${3:-next}
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

python3 -c 'import numpy, sys; numpy.save(sys.argv[1], numpy.arange(240000, dtype="f4").reshape(80, 3000) / 2)' \
    "$directory/mel.npy"

# By a route: the next stage receives it.
RINGSIDE_SOCKET=$first ringside send "$route" "$directory/mel.npy"
RINGSIDE_SOCKET=$second ringside recv -n 1 --timeout 10 -o "$directory"
cmp "$directory/mel.npy" "$directory"/rst1-*.0.npy

# By a ticket, which is text and goes wherever text goes.
ticket=$(RINGSIDE_SOCKET=$first ringside share --kept "$directory/mel.npy")
echo "shared as $ticket"
RINGSIDE_SOCKET=$first ringside read -o "$directory/read.npy" "$ticket"
cmp "$directory/mel.npy" "$directory/read.npy"
RINGSIDE_SOCKET=$first ringside free "$ticket"
if RINGSIDE_SOCKET=$first ringside read -o "$directory/late.npy" "$ticket" 2>"$directory/why"; then
    echo "read what was freed" >&2
    exit 1
fi
cat "$directory/why"
echo "the same came out at both ends"
