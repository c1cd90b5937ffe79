#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Generates the Go code of control.proto and compiles worker.go with Debian's Go libraries, without a network.
# Usage: build.sh DIRECTORY
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1/src"
out=$(cd "$1" && pwd)
export GOPATH="$out:/usr/share/gocode" GO111MODULE=off GOPROXY=off GOFLAGS= GOENV=off CGO_ENABLED=0
cd "$here" # outside of GOPATH go takes a package by its relative path only
go build -o "$out/protoc-gen-gogottrpc" github.com/containerd/ttrpc/cmd/protoc-gen-gogottrpc
protoc --plugin="$out/protoc-gen-gogottrpc" -I../../proto --gogottrpc_out="plugins=ttrpc:$out/src" \
    ../../proto/control.proto
go build -o "$out/worker" .
