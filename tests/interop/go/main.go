// SPDX-License-Identifier: Apache-2.0
// A client of the control socket that shares no code with this project: Debian's Go ttrpc and gogo
// protobuf, with the messages and the stub generated from proto/control.proto. It shows that a language
// with protobuf, a UNIX socket and mmap can use all of the control API. How it is built and run, and what
// it needs: run.py beside this file.
//
//	go-client -socket A -next-socket B
//
// A is the socket of a sidecar with 4 slots of 64 KiB, 2 places in its inbox ("depth") and two routes:
// "self" to its own inbox (when_full: error) and "next" to the sidecar at B.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
)

const slotCount = 4

var (
	socket     = flag.String("socket", "", "control socket of the stage")
	nextSocket = flag.String("next-socket", "", "control socket of the stage that route \"next\" leads to")
	hold       = flag.Bool("hold", false, "loan a slot, say so and wait to be killed")
)

var cases = []struct {
	name string
	run  func()
}{
	{"attach", caseAttach},
	{"loan_send_receive_release", caseRoundTrip},
	{"nack_and_forward", caseNackAndForward},
	{"share_read_free", caseShareReadFree},
	{"share_counted_reads", caseShareCounted},
	{"loan_deadline_when_ring_full", caseRingFull},
	{"send_when_inbox_full", caseInboxFull},
	{"receive_again_after_given_up", caseReceiveAgain},
	{"refusals", caseRefusals},
	{"close_keeps_loan_for_session", caseDetach},
	{"death_returns_loan", caseDeath},
	{"send_to_next_stage", caseNextStage},
	{"read_at_next_stage", caseReadAtNextStage},
}

// run reports one case; a failed check ends it with what was expected.
func run(name string, body func()) (passed bool) {
	defer func() {
		if failed := recover(); failed != nil {
			if _, ours := failed.(failure); !ours {
				panic(failed)
			}
			fmt.Printf("not ok %s: %v\n", name, failed)
		}
	}()
	body()
	fmt.Printf("ok %s\n", name)
	return true
}

// holdAndWait is the process that dies with a loan.
func holdAndWait() {
	attach(*socket, "go-doomed", nil).loan(small())
	fmt.Println("holding")
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
}

// startDoomed starts a process of this program that holds a loan, and returns once it does.
func startDoomed() *exec.Cmd {
	command := exec.Command("/proc/self/exe", "-hold", "-socket", *socket)
	command.Stderr = os.Stderr
	_, err := command.StdinPipe()
	must(err)
	output, err := command.StdoutPipe()
	must(err)
	must(command.Start())
	line, err := bufio.NewReader(output).ReadString('\n')
	check(err == nil && line == "holding\n", "the second process to hold a loan, not %q: %v", line, err)
	return command
}

func main() {
	flag.Parse()
	if *hold {
		holdAndWait()
		return
	}
	for _, test := range cases {
		// What a failed case leaves behind would fail the others for no reason of theirs.
		if !run(test.name, test.run) {
			os.Exit(1)
		}
	}
}
