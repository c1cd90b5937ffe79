// SPDX-License-Identifier: Apache-2.0

// A worker in Go over the control socket: ttrpc, generated code and mmap.
//
// Build and run (Debian: golang-go, golang-github-containerd-ttrpc-dev, protobuf-compiler):
//
//	./build.sh DIRECTORY
//	DIRECTORY/worker SOCKET send ROUTE    a float32 [80, 3000] written in place, then sent on a route of the stage
//	DIRECTORY/worker SOCKET receive       the next message of the stage's inbox
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/ttrpc"

	control "ringside/v1"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}

// mapped maps a body file whole, since slots begin at multiples of 4 KiB and pages may be larger.
func mapped(path string, writable bool) []byte {
	flags, protection := os.O_RDONLY, syscall.PROT_READ
	if writable {
		flags, protection = os.O_RDWR, syscall.PROT_READ|syscall.PROT_WRITE
	}
	file, err := os.OpenFile(path, flags, 0)
	must(err)
	defer file.Close()
	info, err := file.Stat()
	must(err)
	body, err := syscall.Mmap(int(file.Fd()), 0, int(info.Size()), protection, syscall.MAP_SHARED)
	must(err)
	return body
}

func send(ctx context.Context, sidecar control.ControlService, route string) {
	loan, err := sidecar.Loan(ctx, &control.LoanRequest{MetadataBytes: 64,
		Tensors: []*control.Tensor{{Dtype: control.Dtype_FLOAT32, Shape: []int64{80, 3000}}}})
	must(err)
	data := mapped(loan.BodyPath, true)[loan.SlotOffset+loan.Tensors[0].Offset:]
	for i := 0; i < 80*3000; i++ {
		binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(float32(i)/2))
	}
	sent, err := sidecar.Send(ctx, &control.SendRequest{Lease: loan.Lease, Route: route,
		Options: &control.Options{Metadata: []byte(`{"from":"go"}`), MetadataKind: control.MetadataKind_JSON}})
	must(err)
	fmt.Printf("sent as ticket %#x\n", sent.Ticket)
}

func receive(ctx context.Context, sidecar control.ControlService) {
	response, err := sidecar.Receive(ctx, &control.ReceiveRequest{RequestId: 1})
	must(err)
	message, tensor, sum := response.Message, response.Message.Tensors[0], 0.0
	data := mapped(message.BodyPath, false)[message.SlotOffset+tensor.Offset:][:tensor.Bytes]
	for i := 0; i < len(data); i += 4 {
		sum += float64(math.Float32frombits(binary.LittleEndian.Uint32(data[i:])))
	}
	fmt.Printf("received %s %s sum %.0f %s\n", strings.ToLower(tensor.Dtype.String()),
		strings.ReplaceAll(fmt.Sprint(tensor.Shape), " ", ", "), sum, message.Metadata)
	_, err = sidecar.Release(ctx, &control.LeaseRequest{Lease: message.Lease})
	must(err)
}

func main() {
	if len(os.Args) < 3 || (os.Args[2] == "send") != (len(os.Args) == 4) {
		fmt.Fprintln(os.Stderr, "usage: worker SOCKET send ROUTE | receive")
		os.Exit(2)
	}
	conn, err := net.Dial("unix", os.Args[1])
	must(err)
	client := ttrpc.NewClient(conn)
	defer client.Close()
	sidecar := control.NewControlClient(client)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err = sidecar.Attach(ctx, &control.AttachRequest{Name: "go"})
	must(err)
	if os.Args[2] == "send" {
		send(ctx, sidecar, os.Args[3])
	} else {
		receive(ctx, sidecar)
	}
}
