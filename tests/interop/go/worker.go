// SPDX-License-Identifier: Apache-2.0
// A worker in Go: a connection to a sidecar, its session, and the mapped bodies.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	control "ringside/v1"
)

// patience bounds every call: far more than a loaded machine needs, so only what is stuck exceeds it.
const patience = 20 * time.Second

type worker struct {
	control.ControlService
	raw     *ttrpc.Client
	session *control.AttachResponse // nil before attach
}

type wireTimeout struct{}

// bound gives each call a timeout_nano: its context's, or the one that `within` asked for, or patience.
// (The library itself gives a call up the moment its context ends, so with a context's deadline the
// sidecar's own answer to it is rarely seen.)
func bound(ctx context.Context, request *ttrpc.Request, response *ttrpc.Response,
	_ *ttrpc.UnaryClientInfo, next ttrpc.Invoker) error {
	if timeout, ok := ctx.Value(wireTimeout{}).(time.Duration); ok {
		request.TimeoutNano = timeout.Nanoseconds()
	} else if request.TimeoutNano == 0 {
		request.TimeoutNano = patience.Nanoseconds()
	}
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	return next(ctx, request, response)
}

// soon is the context of a call that needs no time limit of its own.
var soon = context.Background()

// within is the context of a call whose timeout_nano is `timeout`.
func within(timeout time.Duration) context.Context {
	return context.WithValue(soon, wireTimeout{}, timeout)
}

func dial(socket string) *worker {
	conn, err := net.Dial("unix", socket)
	must(err)
	client := ttrpc.NewClient(conn, ttrpc.WithUnaryClientInterceptor(bound))
	return &worker{ControlService: control.NewControlClient(client), raw: client}
}

// attach opens a session, or comes back to the one of `token`.
func attach(socket, name string, token []byte) *worker {
	w := dial(socket)
	response, err := w.Attach(soon, &control.AttachRequest{Name: name, SessionToken: token})
	must(err)
	w.session = response
	return w
}

// close ends the connection and waits until it is closed.
func (w *worker) close() {
	must(w.raw.Close())
	must(w.raw.UserOnCloseWait(soon))
}

func (w *worker) loan(tensors ...*control.Tensor) *control.LoanResponse {
	loan, err := w.Loan(soon, &control.LoanRequest{Tensors: tensors})
	must(err)
	return loan
}

// send loans one tensor, leaves its bytes as they are and sends it with `sequence`.
func (w *worker) send(route string, sequence uint64) error {
	loan := w.loan(small())
	_, err := w.Send(soon, &control.SendRequest{Lease: loan.Lease, Route: route,
		Options: &control.Options{Sequence: sequence}})
	if err != nil {
		w.abandon(loan.Lease)
	}
	return err
}

func (w *worker) receive() *control.Message {
	response, err := w.Receive(soon, &control.ReceiveRequest{})
	must(err)
	check(response.Message != nil && response.Message.Lease != nil, "a message with a lease")
	return response.Message
}

func (w *worker) release(lease *control.Lease) {
	_, err := w.Release(soon, &control.LeaseRequest{Lease: lease})
	must(err)
}

func (w *worker) abandon(lease *control.Lease) {
	_, err := w.Abandon(soon, &control.LeaseRequest{Lease: lease})
	must(err)
}

func (w *worker) status() *control.StatusResponse {
	response, err := w.Status(soon, &control.StatusRequest{})
	must(err)
	return response
}

// slots counts the ring's free and loaned slots.
func (w *worker) slots() (free, loaned uint32) {
	for _, class := range w.status().Classes {
		free += class.Free
		loaned += class.Loaned
	}
	return free, loaned
}

// shown is what status says of a client number; nil when it is nobody's. (The sidecar of the next stage is
// a client too.)
func (w *worker) shown(number uint32) *control.ClientStatus {
	for _, client := range w.status().Clients {
		if client.Number == number {
			return client
		}
	}
	return nil
}

// await polls what the sidecar notices by itself.
func await(what string, holds func() bool) {
	for end := time.Now().Add(patience); !holds(); time.Sleep(10 * time.Millisecond) {
		check(time.Now().Before(end), "%s within %v", what, patience)
	}
}

// mapped maps a body file whole (its pages may be huge, and a slot begins at any 4 KiB) and gives the
// slot's part of it to `use`; the mapping ends with the call.
func mapped(path string, offset, bytes uint64, writable bool, use func(slot []byte)) {
	flags, protection := os.O_RDONLY, syscall.PROT_READ
	if writable {
		flags, protection = os.O_RDWR, syscall.PROT_READ|syscall.PROT_WRITE
	}
	file, err := os.OpenFile(path, flags, 0)
	must(err)
	defer file.Close()
	info, err := file.Stat()
	must(err)
	check(offset+bytes <= uint64(info.Size()), "slot %d+%d inside the %d bytes of %s", offset, bytes,
		info.Size(), path)
	body, err := syscall.Mmap(int(file.Fd()), 0, int(info.Size()), protection, syscall.MAP_SHARED)
	must(err)
	use(body[offset : offset+bytes])
	must(syscall.Munmap(body))
}

// refused checks that an error is the sidecar's, with this status and this symbolic name.
func refused(err error, code codes.Code, name string) {
	got, ok := status.FromError(err)
	check(err != nil && ok && got.Code() == code && strings.HasPrefix(got.Message(), name+": "),
		"%v with %q in front, not: %v", code, name+": ", err)
}

type failure string

func check(holds bool, expected string, arguments ...interface{}) {
	if !holds {
		panic(failure("expected " + fmt.Sprintf(expected, arguments...)))
	}
}

func must(err error) {
	check(err == nil, "success, not: %v", err)
}
