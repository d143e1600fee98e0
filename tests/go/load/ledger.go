package main

import (
	"fmt"
	"sync"
	"time"
)

// ledger knows of each message when it was published and confirmed, and how often it arrived.
type ledger struct {
	mutex    sync.Mutex
	changed  *sync.Cond
	messages [][]message
	// confirmed counts each publisher's confirmed messages, missing those of all that have not arrived.
	confirmed []int
	missing   int
	problems  []string
	// phase counts the changes between calm (even) and trouble (odd).
	phase  int
	nacked int
	// last is each publisher's last message that arrived for the first time.
	last      []int
	reordered int
	patience  time.Duration
	// expired tells that waitFor has waited long enough.
	expired bool
}

type message struct {
	published, confirmed int
	isConfirmed          bool
	arrivals, unmarked   int
}

// accounts is what became of all messages.
type accounts struct {
	Confirmed int `json:"confirmed"`
	Nacked    int `json:"nacked"`
	// Missing were confirmed and never arrived.
	Missing []string `json:"missing"`
	// Marked arrived again, and said so.
	Marked int `json:"marked"`
	// UnderWay arrived again without saying so, having been under way when there was trouble.
	UnderWay int `json:"under_way"`
	// Unexplained arrived again without saying so, and without trouble.
	Unexplained []string `json:"unexplained"`
	// Reordered arrived for the first time behind a later message of the same publisher.
	Reordered int `json:"reordered"`
}

func newLedger(publishers int, patience time.Duration) *ledger {
	l := &ledger{
		patience:  patience,
		messages:  make([][]message, publishers),
		confirmed: make([]int, publishers),
		last:      make([]int, publishers),
	}
	for publisher := range l.last {
		l.last[publisher] = -1
	}
	l.changed = sync.NewCond(&l.mutex)
	return l
}

func (l *ledger) enter(trouble bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if trouble != (l.phase%2 == 1) {
		l.phase++
	}
}

func (l *ledger) fail(format string, values ...any) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.problems = append(l.problems, fmt.Sprintf(format, values...))
	l.changed.Broadcast()
}

func (l *ledger) errors() []string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return append([]string{}, l.problems...)
}

// publish notes a publisher's next message and returns its number.
func (l *ledger) publish(publisher int) int {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.messages[publisher] = append(l.messages[publisher], message{published: l.phase})
	return len(l.messages[publisher]) - 1
}

func (l *ledger) settle(publisher, number int, acked bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if acked {
		of := &l.messages[publisher][number]
		of.isConfirmed, of.confirmed = true, l.phase
		l.confirmed[publisher]++
		if of.arrivals == 0 {
			l.missing++
		}
	} else {
		l.nacked++
	}
	l.changed.Broadcast()
}

func (l *ledger) arrive(body string, redelivered bool) {
	var publisher, number int
	if _, err := fmt.Sscanf(body, "%d:%d", &publisher, &number); err != nil {
		l.fail("a body that nobody published: %q", body)
		return
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if publisher >= len(l.messages) || number >= len(l.messages[publisher]) {
		l.problems = append(l.problems, "a message that nobody published: "+body)
	} else {
		of := &l.messages[publisher][number]
		switch {
		case of.arrivals > 0 && !redelivered:
			of.unmarked++
		case of.arrivals == 0 && number > l.last[publisher]:
			l.last[publisher] = number
		case of.arrivals == 0:
			l.reordered++
		}
		if of.arrivals == 0 && of.isConfirmed {
			l.missing--
		}
		of.arrivals++
	}
	l.changed.Broadcast()
}

// waitFor waits until something holds, for as long as there is neither an error nor the end of patience.
func (l *ledger) waitFor(what string, holds func() bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.expired = false
	timer := time.AfterFunc(l.patience, func() {
		l.mutex.Lock()
		l.expired = true
		l.mutex.Unlock()
		l.changed.Broadcast()
	})
	defer timer.Stop()
	for len(l.problems) == 0 && !l.expired && !holds() {
		l.changed.Wait()
	}
	if l.expired {
		l.problems = append(l.problems, "waited in vain for "+what)
	}
}

func (l *ledger) close() *accounts {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	told := &accounts{Nacked: l.nacked, Missing: []string{}, Unexplained: []string{}, Reordered: l.reordered}
	for publisher, messages := range l.messages {
		for number, each := range messages {
			name := fmt.Sprintf("%d:%d", publisher, number)
			calm := each.isConfirmed && each.published%2 == 0 && each.published == each.confirmed
			if each.isConfirmed {
				told.Confirmed++
			}
			if each.isConfirmed && each.arrivals == 0 {
				told.Missing = append(told.Missing, name)
			}
			told.Marked += max(each.arrivals-1, 0) - each.unmarked
			if calm && each.unmarked > 0 {
				told.Unexplained = append(told.Unexplained, name)
			} else {
				told.UnderWay += each.unmarked
			}
		}
	}
	return told
}
