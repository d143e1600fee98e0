package main

import (
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Confirms, returns and transactions.

func confirms(s *session) any {
	channel := s.channel()
	queue := s.queue(channel, "q")
	check(channel.Confirm(false))
	bodies := numbered(1000)
	confirmations := channel.NotifyPublish(make(chan amqp.Confirmation, len(bodies)))
	publish(channel, queue, bodies...)
	acked, nacked := 0, 0
	for range bodies {
		if await(confirmations).Ack {
			acked++
		} else {
			nacked++
		}
	}
	stored := ready(channel, queue)
	return object{
		"acked": acked, "nacked": nacked, "stored": stored,
		"in_order": slices.Equal(drain(channel, queue), bodies),
	}
}

func mandatoryReturn(s *session) any {
	channel := s.channel()
	queue, missing := s.queue(channel, "q"), s.name("missing")
	check(channel.Confirm(false))
	// Unbuffered, so that the library hands over one event at a time, in the order of their arrival.
	returns := channel.NotifyReturn(make(chan amqp.Return))
	confirmations := channel.NotifyPublish(make(chan amqp.Confirmation))
	events := []string{}
	for _, each := range []struct {
		key, body string
		mandatory bool
	}{{missing, "returned", true}, {queue, "kept", true}, {missing, "dropped", false}} {
		check(channel.Publish("", each.key, each.mandatory, false, amqp.Publishing{Body: []byte(each.body)}))
		for confirmed := false; !confirmed; {
			select {
			case message := <-returns:
				events = append(events, fmt.Sprintf("return %d %s %s", message.ReplyCode, message.ReplyText, message.Body))
			case confirmation := <-confirmations:
				confirmed = true
				events = append(events, map[bool]string{true: "ack", false: "nack"}[confirmation.Ack])
			}
		}
	}
	return object{"events": events, "received": drain(channel, queue)}
}

func immediate(s *session) any {
	return s.connectionRefused(func(channel *amqp.Channel) error {
		return channel.Publish("", "any", false, true, amqp.Publishing{})
	})
}

func txCommit(s *session) any {
	channel, observer := s.channel(), s.channel()
	queue := s.queue(channel, "q")
	s.store(queue, "acked")
	check(channel.Tx())
	taken := getAll(channel, queue)
	publish(channel, queue, "1", "2")
	check(taken[0].Ack(false))
	before := ready(observer, queue)
	check(channel.TxCommit())
	check(channel.Close())
	return object{"before": before, "after": drain(observer, queue)}
}

func txRollback(s *session) any {
	channel, observer := s.channel(), s.channel()
	queue := s.queue(channel, "q")
	s.store(queue, "kept")
	check(channel.Tx())
	taken := getAll(channel, queue)
	publish(channel, queue, "1", "2")
	check(taken[0].Ack(false))
	check(channel.TxRollback())
	afterRollback := ready(observer, queue)
	check(channel.Close())
	return object{"after_rollback": afterRollback, "back": seenAgain(observer, queue, 1)}
}

func txRefused(s *session) any {
	return s.refusedEach([]attempt{
		{"confirm_then_tx", func(channel *amqp.Channel) error {
			check(channel.Confirm(false))
			return channel.Tx()
		}},
		{"tx_then_confirm", func(channel *amqp.Channel) error {
			check(channel.Tx())
			return channel.Confirm(false)
		}},
		{"commit_without_select", func(channel *amqp.Channel) error { return channel.TxCommit() }},
		{"rollback_without_select", func(channel *amqp.Channel) error { return channel.TxRollback() }},
	})
}

func txReturns(s *session) any {
	channel := s.channel()
	returns := channel.NotifyReturn(make(chan amqp.Return, 1))
	check(channel.Tx())
	message := amqp.Publishing{Body: []byte("returned")}
	check(channel.Publish("", s.name("missing"), true, false, message))
	check(roundTrip(channel))
	before := len(returns)
	check(channel.TxCommit())
	withCommit := []string{}
	for len(returns) > 0 {
		withCommit = append(withCommit, string((<-returns).Body))
	}
	return object{"before": make([]string, before), "with_commit": withCommit}
}
