// SPDX-License-Identifier: Apache-2.0
// What the client checks, one function a case. Each begins and ends with every slot free.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"os"
	"reflect"
	"time"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	control "ringside/v1"
)

func small() *control.Tensor {
	return &control.Tensor{Dtype: control.Dtype_UINT8, Shape: []int64{8}}
}

// payload is the float32 [3,4] and the uint8 [5] that travel.
func payload() (floats, integers []byte) {
	floats = make([]byte, 48)
	for i := 0; i < 12; i++ {
		binary.LittleEndian.PutUint32(floats[4*i:], math.Float32bits(float32(i)*1.25-3))
	}
	return floats, []byte{250, 1, 0, 77, 5}
}

func metadata() []byte {
	return []byte(`{"text":"` + string(bytes.Repeat([]byte("ringside "), 560)) + `"}`)
}

func options() *control.Options {
	return &control.Options{TtlNs: uint64(time.Hour), Metadata: metadata(),
		MetadataKind: control.MetadataKind_JSON, StreamId: 1<<63 + 5, Sequence: 41,
		TraceId: []byte("0123456789abcdef")}
}

// loanPayload loans a slot for the payload and writes it through the mapping.
func loanPayload(w *worker) *control.LoanResponse {
	floats, integers := payload()
	loan, err := w.Loan(soon, &control.LoanRequest{MetadataBytes: uint32(len(metadata())),
		Tensors: []*control.Tensor{{Dtype: control.Dtype_FLOAT32, Shape: []int64{3, 4}},
			{Dtype: control.Dtype_UINT8, Shape: []int64{5}}}})
	must(err)
	check(loan.Lease.Ticket != 0 && loan.Lease.Delivery == -1, "a loan's lease, not %v", loan.Lease)
	checkTensors(loan.Tensors, loan.SlotBytes)
	check(loan.BodyPath == w.session.Ring.BodyPath, "the own body file, not %q", loan.BodyPath)
	mapped(loan.BodyPath, loan.SlotOffset, loan.SlotBytes, true, func(slot []byte) {
		copy(slot[loan.Tensors[0].Offset:], floats)
		copy(slot[loan.Tensors[1].Offset:], integers)
	})
	return loan
}

func checkTensors(tensors []*control.Tensor, slotBytes uint64) {
	check(len(tensors) == 2, "2 tensors, not %d", len(tensors))
	first, second := tensors[0], tensors[1]
	check(first.Dtype == control.Dtype_FLOAT32 && reflect.DeepEqual(first.Shape, []int64{3, 4}) &&
		first.Bytes == 48, "float32 [3,4] of 48 bytes, not %v", first)
	check(second.Dtype == control.Dtype_UINT8 && reflect.DeepEqual(second.Shape, []int64{5}) &&
		second.Bytes == 5, "uint8 [5] of 5 bytes, not %v", second)
	check(first.Offset%256 == 0 && second.Offset%256 == 0, "offsets aligned to 256 bytes, not %d and %d",
		first.Offset, second.Offset)
	check(first.Offset+48 <= second.Offset && second.Offset+5 <= slotBytes,
		"tensors apart and inside %d bytes, not at %d and %d", slotBytes, first.Offset, second.Offset)
}

// checkPayload reads a message through a read-only mapping of its own.
func checkPayload(message *control.Message) {
	floats, integers := payload()
	want := options()
	checkTensors(message.Tensors, message.SlotBytes)
	check(bytes.Equal(message.Metadata, want.Metadata) && message.MetadataKind == want.MetadataKind,
		"%d bytes of JSON metadata as sent, not %d of %v", len(want.Metadata), len(message.Metadata),
		message.MetadataKind)
	check(message.StreamId == want.StreamId && message.Sequence == want.Sequence &&
		bytes.Equal(message.TraceId, want.TraceId), "stream %d, sequence %d, trace %q, not %d, %d, %q",
		want.StreamId, want.Sequence, want.TraceId, message.StreamId, message.Sequence, message.TraceId)
	check(message.TtlNs == want.TtlNs && message.PublishNs != 0 && message.OriginTicket == 0,
		"a time to live of %d, a time and no origin, not %d, %d, %d", want.TtlNs, message.TtlNs,
		message.PublishNs, message.OriginTicket)
	mapped(message.BodyPath, message.SlotOffset, message.SlotBytes, false, func(slot []byte) {
		for i, data := range [][]byte{floats, integers} {
			got := slot[message.Tensors[i].Offset:][:len(data)]
			check(bytes.Equal(got, data), "tensor %d to hold % x, not % x", i, data, got)
		}
	})
}

func checkAllFree(w *worker) {
	free, loaned := w.slots()
	check(free == slotCount && loaned == 0, "%d slots free and none loaned, not %d and %d", slotCount,
		free, loaned)
}

func caseAttach() {
	w := dial(*socket)
	defer w.close()
	state := w.status() // works before Attach
	check(state.State == "serving" && state.Stage == "go", "stage \"go\" serving, not %q %q",
		state.Stage, state.State)
	session, err := w.Attach(soon, &control.AttachRequest{Name: "go-client"})
	must(err)
	ring := session.Ring
	check(ring.Client > 0, "a client number above 0, which is the sidecar's")
	check(len(ring.Incarnation) == 16 && bytes.Equal(ring.Incarnation, state.Incarnation) &&
		ring.SidecarId != 0 && ring.Stage == "go", "the ring that status shows, not %v", ring)
	check(len(session.SessionToken) != 0 && !session.Resumed && len(session.Held) == 0,
		"a new session, not %v", session)
	check(len(session.Descriptors) == 0, "no descriptors, not %v", session.Descriptors)
	routes := map[string]*control.Route{}
	for _, route := range session.Routes {
		routes[route.Name] = route
	}
	check(len(routes) == 2 && routes["self"] != nil && routes["next"] != nil &&
		routes["self"].WhenFull == control.Route_ERROR && len(routes["self"].Destinations) == 1,
		"routes \"self\" and \"next\", not %v", session.Routes)
	client := w.shown(ring.Client)
	check(client != nil && client.Name == "go-client" && client.State == "attached" &&
		client.Pid == uint32(os.Getpid()), "status to show this process attached, not %v", client)
	checkAllFree(w)
}

func caseRoundTrip() {
	w := attach(*socket, "go-client", nil)
	defer w.close()
	before := w.status().Totals
	loan := loanPayload(w)
	sent, err := w.Send(soon, &control.SendRequest{Lease: loan.Lease, Route: "self", Options: options()})
	must(err)
	check(sent.Ticket == loan.Lease.Ticket, "the ticket of the loan, not %#x", sent.Ticket)

	message := w.receive()
	check(message.Lease.Delivery >= 0 && message.Lease.Ticket == sent.Ticket && message.Attempts == 0,
		"the message just sent for the first time, not %v", message.Lease)
	checkPayload(message)
	w.release(message.Lease)
	after := w.status().Totals
	check(after.Sent == before.Sent+1 && after.Received == before.Received+1 &&
		after.Released == before.Released+1, "each counted once, not %v after %v", after, before)
	checkAllFree(w)
}

func caseNackAndForward() {
	w := attach(*socket, "go-client", nil)
	defer w.close()
	loan := loanPayload(w)
	_, err := w.Send(soon, &control.SendRequest{Lease: loan.Lease, Route: "self", Options: options()})
	must(err)
	_, err = w.Nack(soon, &control.LeaseRequest{Lease: w.receive().Lease})
	must(err)
	again := w.receive()
	check(again.Attempts == 1, "one earlier attempt, not %d", again.Attempts)
	forwarded, err := w.Forward(soon, &control.ForwardRequest{Lease: again.Lease, Route: "self"})
	must(err)
	check(forwarded.InPlace, "a forward within the ring in place")
	last := w.receive()
	check(last.Attempts == 0, "attempts to begin anew on another route, not %d", last.Attempts)
	checkPayload(last)
	w.release(last.Lease)
	checkAllFree(w)
}

func readText(w *worker, text string) (*control.Message, error) {
	response, err := w.Read(soon, &control.ReadRequest{By: &control.ReadRequest_Text{Text: text}})
	if err != nil {
		return nil, err
	}
	return response.Message, nil
}

func caseShareReadFree() {
	w := attach(*socket, "go-client", nil)
	defer w.close()
	request := &control.ShareRequest{Lease: loanPayload(w).Lease, Kept: true, Options: options()}
	request.Options.TtlNs = uint64(time.Minute)
	shared, err := w.Share(soon, request)
	must(err)
	check(shared.Ticket != 0 && shared.Text != "", "a ticket in both forms, not %v", shared)

	described, err := w.Describe(soon, &control.DescribeRequest{
		By: &control.DescribeRequest_Text{Text: shared.Text}})
	must(err)
	check(described.Slot.State == "sealed" && described.Slot.Ticket == shared.Ticket &&
		len(described.Slot.Tensors) == 2, "what was shared, not %v", described.Slot)
	for range [2]int{} { // kept: any number of reads
		message, err := readText(w, shared.Text)
		must(err)
		check(message.Lease.Delivery == -1, "a reading's lease, not %v", message.Lease)
		message.TtlNs = options().TtlNs
		checkPayload(message)
		w.release(message.Lease)
	}
	_, err = w.Free(soon, &control.FreeRequest{By: &control.FreeRequest_Text{Text: shared.Text}})
	must(err)
	checkAllFree(w)
	_, err = readText(w, shared.Text)
	refused(err, codes.NotFound, "STALE_TICKET")
	_, err = w.Read(soon, &control.ReadRequest{By: &control.ReadRequest_Ticket{Ticket: shared.Ticket}})
	refused(err, codes.NotFound, "STALE_TICKET")
	_, err = readText(w, "no ticket at all")
	refused(err, codes.InvalidArgument, "MALFORMED_TICKET")
}

func caseShareCounted() {
	w := attach(*socket, "go-client", nil)
	defer w.close()
	shared, err := w.Share(soon, &control.ShareRequest{Lease: w.loan(small()).Lease, Readers: 2})
	must(err)
	first, err := w.Read(soon, &control.ReadRequest{
		By: &control.ReadRequest_Ticket{Ticket: shared.Ticket}})
	must(err)
	w.release(first.Message.Lease)
	second, err := readText(w, shared.Text)
	must(err)
	w.release(second.Lease)
	_, err = readText(w, shared.Text)
	refused(err, codes.NotFound, "STALE_TICKET")
	checkAllFree(w)
}

func caseRingFull() {
	w := attach(*socket, "go-client", nil)
	defer w.close()
	var loans []*control.LoanResponse
	for i := 0; i < slotCount; i++ {
		loans = append(loans, w.loan(small()))
	}
	began := time.Now()
	const timeout = 150 * time.Millisecond
	_, err := w.Loan(within(timeout), &control.LoanRequest{Tensors: []*control.Tensor{small()}})
	refused(err, codes.DeadlineExceeded, "TIMEOUT")
	check(time.Since(began) >= timeout, "no answer before %v, not after %v", timeout, time.Since(began))

	// Calls of one connection are answered as they are done: the first waits for what the second gives.
	granted := make(chan error)
	go func() {
		loan, err := w.Loan(soon, &control.LoanRequest{Tensors: []*control.Tensor{small()}})
		if err == nil {
			loans[0] = loan
		}
		granted <- err
	}()
	time.Sleep(20 * time.Millisecond) // so that it most likely waits already; it passes either way
	w.abandon(loans[0].Lease)
	must(<-granted)
	for _, loan := range loans {
		w.abandon(loan.Lease)
	}
	checkAllFree(w)
}

func caseInboxFull() {
	w := attach(*socket, "go-client", nil)
	defer w.close()
	must(w.send("self", 1))
	must(w.send("self", 2))
	refused(w.send("self", 3), codes.ResourceExhausted, "FULL") // and the loan is still ours to abandon
	for want := uint64(1); want <= 2; want++ {
		message := w.receive()
		check(message.Sequence == want, "message %d, not %d", want, message.Sequence)
		w.release(message.Lease)
	}
	_, err := w.Receive(within(time.Millisecond), &control.ReceiveRequest{})
	refused(err, codes.DeadlineExceeded, "TIMEOUT")
	checkAllFree(w)
}

// A call that its caller gave up may still have been given a message: the request id finds it again.
func caseReceiveAgain() {
	w := attach(*socket, "go-client", nil)
	defer w.close()
	request := &control.ReceiveRequest{RequestId: 7001}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := w.Receive(ctx, request)
	code := status.Code(err) // the sidecar's answer and the library's own end race
	check(err == context.DeadlineExceeded || code == codes.DeadlineExceeded, "a deadline, not: %v", err)
	must(w.send("self", 9))
	first, err := w.Receive(soon, request)
	must(err)
	check(first.Message.Sequence == 9, "the message sent, not %d", first.Message.Sequence)
	second, err := w.Receive(soon, request)
	must(err)
	check(reflect.DeepEqual(first.Message.Lease, second.Message.Lease), "the same lease, not %v and %v",
		first.Message.Lease, second.Message.Lease)
	w.release(first.Message.Lease)
	checkAllFree(w)
}

func caseRefusals() {
	stranger := dial(*socket)
	_, err := stranger.Loan(soon, &control.LoanRequest{Tensors: []*control.Tensor{small()}})
	refused(err, codes.FailedPrecondition, "STATE") // no session
	stranger.close()

	w := attach(*socket, "go-client", nil)
	defer w.close()
	_, err = w.Loan(soon, &control.LoanRequest{Tensors: []*control.Tensor{
		{Dtype: control.Dtype_FLOAT32, Shape: []int64{1 << 20}}}})
	refused(err, codes.OutOfRange, "TOO_BIG")
	_, err = w.Loan(soon, &control.LoanRequest{Tensors: []*control.Tensor{
		{Dtype: control.Dtype_FLOAT32, Shape: []int64{1 << 40, 1 << 40}}}})
	refused(err, codes.InvalidArgument, "SHAPE")
	refused(w.send("nowhere", 0), codes.NotFound, "NO_ROUTE") // and the loan is still ours to abandon
	loan := w.loan(small())
	w.abandon(loan.Lease)
	_, err = w.Send(soon, &control.SendRequest{Lease: loan.Lease, Route: "self"})
	refused(err, codes.FailedPrecondition, "STATE") // no longer ours
	err = w.raw.Call(soon, "ringside.v1.Control", "Teleport", &control.Empty{}, &control.Empty{})
	refused(err, codes.Unimplemented, "UNIMPLEMENTED")
	err = w.raw.Call(soon, "ringside.v1.Nothing", "Status", &control.Empty{}, &control.Empty{})
	refused(err, codes.Unimplemented, "UNIMPLEMENTED")
	checkAllFree(w)
}

// A closed connection takes nothing from a living process; its session token leads back to what it holds.
func caseDetach() {
	w := attach(*socket, "go-client", nil)
	loan := w.loan(small())
	w.close()
	_, err := w.Status(soon, &control.StatusRequest{})
	check(err == ttrpc.ErrClosed, "a closed connection, not: %v", err)

	observer := dial(*socket)
	defer observer.close()
	await("the client shown as detached with its loan", func() bool {
		client := observer.shown(w.session.Ring.Client)
		return client != nil && client.State == "detached" && client.Loans == 1
	})
	_, loaned := observer.slots()
	check(loaned == 1, "the slot to stay loaned, not %d", loaned)

	back := attach(*socket, "go-client", w.session.SessionToken)
	defer back.close()
	check(back.session.Resumed && back.session.Ring.Client == w.session.Ring.Client,
		"the same client again, not %v", back.session.Ring)
	check(len(back.session.Held) == 1 && back.session.Held[0].Ticket == loan.Lease.Ticket,
		"the loan among what it holds, not %v", back.session.Held)
	back.abandon(back.session.Held[0])
	checkAllFree(back)
}

func caseDeath() {
	observer := dial(*socket)
	defer observer.close()
	doomed := startDoomed()
	_, loaned := observer.slots()
	must(doomed.Process.Kill())
	_ = doomed.Wait() // says that it was killed
	check(loaned == 1, "the other process's loan in status, not %d", loaned)
	await("the dead process's slot free", func() bool {
		free, _ := observer.slots()
		return free == slotCount
	})
}

// The message stays in the sender's body file, which a worker of the next stage maps by the path it is told.
func caseNextStage() {
	w := attach(*socket, "go-client", nil)
	defer w.close()
	await("the next stage connected", func() bool {
		for _, peer := range w.status().Peers {
			if peer.Direction == "downstream" && peer.State == "connected" {
				return true
			}
		}
		return false
	})
	receiver := attach(*nextSocket, "go-receiver", nil)
	defer receiver.close()
	loan := loanPayload(w)
	_, err := w.Send(soon, &control.SendRequest{Lease: loan.Lease, Route: "next", Options: options()})
	must(err)
	message := receiver.receive()
	check(bytes.Equal(message.Lease.Ring, w.session.Ring.Incarnation), "a lease of the sender's ring, not %x",
		message.Lease.Ring)
	check(message.BodyPath == w.session.Ring.BodyPath && message.SlotOffset == loan.SlotOffset,
		"the sender's own slot, not %d in %q", message.SlotOffset, message.BodyPath)
	checkPayload(message)
	receiver.release(message.Lease)
	await("the sender's slot free", func() bool {
		free, _ := w.slots()
		return free == slotCount
	})
}

// A ticket of the sender's ring is read through the sidecar of the stage that it sends to, and freed there.
func caseReadAtNextStage() {
	w := attach(*socket, "go-client", nil)
	defer w.close()
	reader := attach(*nextSocket, "go-reader", nil)
	defer reader.close()
	request := &control.ShareRequest{Lease: loanPayload(w).Lease, Kept: true, Options: options()}
	request.Options.TtlNs = uint64(time.Minute)
	shared, err := w.Share(soon, request)
	must(err)
	message, err := readText(reader, shared.Text)
	must(err)
	check(bytes.Equal(message.Lease.Ring, w.session.Ring.Incarnation) && message.Lease.Delivery == -1,
		"a reading of the sender's ring, not %v", message.Lease)
	message.TtlNs = options().TtlNs
	checkPayload(message)
	_, err = reader.Free(soon, &control.FreeRequest{By: &control.FreeRequest_Ticket{Ticket: shared.Ticket}})
	must(err)
	_, err = readText(reader, shared.Text)
	refused(err, codes.NotFound, "STALE_TICKET")
	free, _ := w.slots()
	check(free == slotCount-1, "the slot of a message that is read in use, not %d free", free)
	reader.release(message.Lease)
	checkAllFree(w)
}
