// SPDX-License-Identifier: Apache-2.0

// A worker in Go over the control socket: ttrpc, generated code and mmap.
//
// Build and run (Debian: golang-go, golang-github-containerd-ttrpc-dev, protobuf-compiler):
//
//	./build.sh DIRECTORY
//	DIRECTORY/worker SOCKET send ROUTE    a float32 [80, 3000] written in place, then sent on a route of the stage
//	DIRECTORY/worker SOCKET receive       the next message of the stage's inbox
//	DIRECTORY/worker SOCKET call ROUTE    calls the method Scale of a stage with such a tensor, and reads the reply
//	DIRECTORY/worker SOCKET serve         answers one call: Scale doubles the tensor
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

var options = &control.Options{Metadata: []byte(`{"from":"go"}`), MetadataKind: control.MetadataKind_JSON}

// filled loans a slot and writes into it where it lies.
func filled(ctx context.Context, sidecar control.ControlService, number func(i int) float32) *control.Lease {
	loan, err := sidecar.Loan(ctx, &control.LoanRequest{MetadataBytes: 128,
		Tensors: []*control.Tensor{{Dtype: control.Dtype_FLOAT32, Shape: []int64{80, 3000}}}})
	must(err)
	data := mapped(loan.BodyPath, true)[loan.SlotOffset+loan.Tensors[0].Offset:]
	for i := 0; i < 80*3000; i++ {
		binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(number(i)))
	}
	return loan.Lease
}

func half(i int) float32 { return float32(i) / 2 }

func send(ctx context.Context, sidecar control.ControlService, route string) {
	sent, err := sidecar.Send(ctx, &control.SendRequest{Lease: filled(ctx, sidecar, half), Route: route, Options: options})
	must(err)
	fmt.Printf("sent as ticket %#x\n", sent.Ticket)
}

func dataOf(message *control.Message) []byte {
	tensor := message.Tensors[0]
	return mapped(message.BodyPath, false)[message.SlotOffset+tensor.Offset:][:tensor.Bytes]
}

func next(ctx context.Context, sidecar control.ControlService) *control.Message {
	response, err := sidecar.Receive(ctx, &control.ReceiveRequest{RequestId: 1})
	must(err)
	return response.Message
}

func release(ctx context.Context, sidecar control.ControlService, message *control.Message) {
	_, err := sidecar.Release(ctx, &control.LeaseRequest{Lease: message.Lease})
	must(err)
}

func use(ctx context.Context, sidecar control.ControlService, message *control.Message) {
	tensor, data, sum := message.Tensors[0], dataOf(message), 0.0
	for i := 0; i < len(data); i += 4 {
		sum += float64(math.Float32frombits(binary.LittleEndian.Uint32(data[i:])))
	}
	fmt.Printf("received %s %s sum %.0f %s\n", strings.ToLower(tensor.Dtype.String()),
		strings.ReplaceAll(fmt.Sprint(tensor.Shape), " ", ", "), sum, message.Metadata)
	release(ctx, sidecar, message)
}

func call(ctx context.Context, sidecar control.ControlService, route string) {
	response, err := sidecar.Call(ctx, &control.CallRequest{Lease: filled(ctx, sidecar, half), Route: route,
		Method: "Scale", Options: options})
	must(err)
	use(ctx, sidecar, response.Message)
}

func serve(ctx context.Context, sidecar control.ControlService) {
	request := next(ctx, sidecar)
	reply := &control.ReplyRequest{Request: request.Lease, Options: options}
	if request.Method == "Scale" {
		data := dataOf(request)
		reply.Reply = filled(ctx, sidecar, func(i int) float32 {
			return 2 * math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		})
	} else {
		reply.Status, reply.Text = 12, fmt.Sprintf("no method %q; there is: Scale", request.Method) // UNIMPLEMENTED
	}
	_, err := sidecar.Reply(ctx, reply)
	must(err)
	release(ctx, sidecar, request)
}

func main() {
	if len(os.Args) < 3 || (os.Args[2] == "send" || os.Args[2] == "call") != (len(os.Args) == 4) {
		fmt.Fprintln(os.Stderr, "usage: worker SOCKET send ROUTE | receive | call ROUTE | serve")
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
	switch os.Args[2] {
	case "send":
		send(ctx, sidecar, os.Args[3])
	case "call":
		call(ctx, sidecar, os.Args[3])
	case "serve":
		serve(ctx, sidecar)
	default:
		use(ctx, sidecar, next(ctx, sidecar))
	}
}
