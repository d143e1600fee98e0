// A load that keeps accounts: confirming publishers and acknowledging consumers, each with a connection of its own, while
// the test that started it makes trouble. Whatever a client hears that it would not hear on a good day is an error.
//
// Commands come on standard input, one a line, and each is answered by one line of JSON on standard output:
//
//	go-on N    waits until each publisher has had N more messages confirmed
//	trouble    from now on messages that are under way may arrive twice
//	calm       from now on they may not
//	finish     ends the load and tells the accounts
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"
)

type options struct {
	uri        string
	publishers int
	consumers  int
	queueType  string
	burst      int
	interval   time.Duration
	prefetch   int
	patience   time.Duration
}

type answer struct {
	Errors   []string  `json:"errors"`
	Accounts *accounts `json:"accounts,omitempty"`
}

func main() {
	var chosen options
	flag.StringVar(&chosen.uri, "uri", "", "the server")
	flag.IntVar(&chosen.publishers, "publishers", 200, "confirming publishers")
	flag.IntVar(&chosen.consumers, "consumers", 50, "acknowledging consumers, each of a queue of its own")
	flag.StringVar(&chosen.queueType, "queue-type", "classic", "the type of the queues")
	flag.IntVar(&chosen.burst, "burst", 4, "messages that a publisher has under way at once")
	flag.DurationVar(&chosen.interval, "interval", 50*time.Millisecond, "between a publisher's bursts")
	flag.IntVar(&chosen.prefetch, "prefetch", 20, "unacknowledged deliveries of a consumer")
	flag.DurationVar(&chosen.patience, "patience", 3*time.Minute, "how long anything may take: a busy machine must not fail a test")
	flag.Parse()

	load := start(chosen)
	load.report(nil)
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		var command string
		var count int
		// A command without a number leaves the count at 0.
		_, _ = fmt.Sscanf(input.Text(), "%s %d", &command, &count)
		switch command {
		case "go-on":
			load.goOn(count)
			load.report(nil)
		case "trouble", "calm":
			load.ledger.enter(command == "trouble")
			load.report(nil)
		case "finish":
			load.report(load.finish())
			return
		default:
			load.ledger.fail("unknown command %q", input.Text())
			load.report(nil)
		}
	}
}

func (l *load) report(told *accounts) {
	line, err := json.Marshal(answer{Errors: l.ledger.errors(), Accounts: told})
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}
