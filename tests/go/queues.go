package main

import (
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Queues and exchanges from declaration to deletion.

func serverNamedQueue(s *session) any {
	channel := s.channel()
	name := must(channel.QueueDeclare("", false, false, true, false, nil)).Name
	// The empty name now means that queue, and an empty key its name.
	check(channel.QueueBind("", "", "amq.direct", false, nil))
	send(channel, "amq.direct", name, "bound", nil)
	received := drain(channel, "")
	publish(channel, name, "1", "2")
	purged := must(channel.QueuePurge("", false))
	publish(channel, name, "3")
	deleted := must(channel.QueueDelete("", false, false, false))
	return object{
		"name": name, "received": received, "purged": purged, "deleted": deleted,
		"on_another_channel": s.refused(func(other *amqp.Channel) error { return purge(other, "") }),
	}
}

func exclusiveQueue(s *session) any {
	stranger, owner := s.connect(), s.connect()
	queue := must(must(owner.Channel()).QueueDeclare(s.name("q"), false, false, true, false, nil)).Name
	answers := s.refusedEach([]attempt{
		{"declare", func(channel *amqp.Channel) error {
			_, err := channel.QueueDeclare(queue, false, false, true, false, nil)
			return err
		}},
		{"passive", func(channel *amqp.Channel) error { return exists(channel, queue) }},
		{"bind", func(channel *amqp.Channel) error { return channel.QueueBind(queue, "any", "amq.direct", false, nil) }},
		{"get", func(channel *amqp.Channel) error {
			_, _, err := channel.Get(queue, false)
			return err
		}},
		{"consume", func(channel *amqp.Channel) error {
			_, err := channel.Consume(queue, "", false, false, false, false, nil)
			return err
		}},
		{"purge", func(channel *amqp.Channel) error { return purge(channel, queue) }},
		{"delete", func(channel *amqp.Channel) error {
			_, err := channel.QueueDelete(queue, false, false, false)
			return err
		}},
	})
	s.store(queue, "publishing is open to all")
	answers["received"] = drain(must(owner.Channel()), queue)
	check(owner.Close())
	answers["after_close"] = s.refusedOtherwise(func(other *amqp.Channel) error { return exists(other, queue) }, answers["passive"])
	answers["redeclared"] = must(must(stranger.Channel()).QueueDeclare(queue, false, false, true, false, nil)).Name == queue
	return answers
}

func autoDeleteQueue(s *session) any {
	channel := s.channel()
	queue := must(channel.QueueDeclare(s.name("q"), false, true, false, false, nil)).Name
	_, _, err := channel.Get(queue, false)
	check(err)
	afterGet := ready(channel, queue)
	for _, tag := range []string{"first", "last"} {
		must(channel.Consume(queue, tag, false, false, false, false, nil))
	}
	check(channel.Cancel("first", false))
	afterFirst := ready(channel, queue)
	check(channel.Cancel("last", false))
	afterLast := s.refused(func(other *amqp.Channel) error { return exists(other, queue) })
	return object{"after_get": afterGet, "after_first_cancel": afterFirst, "after_last_cancel": afterLast}
}

func autoDeleteExchange(s *session) any {
	channel := s.channel()
	exchange, queue := s.name("e"), s.queue(channel, "q")
	check(channel.ExchangeDeclare(exchange, "direct", false, true, false, false, nil))
	for _, key := range []string{"one", "two"} {
		check(channel.QueueBind(queue, key, exchange, false, nil))
	}
	check(channel.QueueUnbind(queue, "one", exchange, nil))
	afterFirst := s.refused(func(other *amqp.Channel) error { return exchangeExists(other, exchange) })
	check(channel.QueueUnbind(queue, "two", exchange, nil))
	afterLast := s.refused(func(other *amqp.Channel) error { return exchangeExists(other, exchange) })
	return object{"after_first_unbind": afterFirst, "after_last_unbind": afterLast}
}

func passiveDeclare(s *session) any {
	channel := s.channel()
	queue, missing := s.queue(channel, "q"), s.name("missing")
	s.store(queue, "1", "2")
	consumer := s.channel()
	check(consumer.Qos(1, 0, false))
	take(consume(consumer, queue), 1)
	state := must(passive(channel, queue))
	answers := s.refusedEach([]attempt{
		// A passive declaration compares nothing but the name.
		{"other_flags", func(other *amqp.Channel) error {
			_, err := other.QueueDeclarePassive(queue, true, false, false, false, nil)
			return err
		}},
		{"queue", func(other *amqp.Channel) error { return exists(other, missing) }},
		{"exchange", func(other *amqp.Channel) error { return exchangeExists(other, missing) }},
	})
	answers["messages"], answers["consumers"] = state.Messages, state.Consumers
	return answers
}

func purgeAndDeleteCounts(s *session) any {
	channel := s.channel()
	queue := s.queue(channel, "q")
	publish(channel, queue, "1", "2", "3")
	purged := must(channel.QueuePurge(queue, false))
	publish(channel, queue, "4", "5")
	deleted := must(channel.QueueDelete(queue, false, false, false))
	missing := must(channel.QueueDelete(queue, false, false, false))
	return object{"purged": purged, "deleted": deleted, "missing": missing}
}

func ifUnusedIfEmpty(s *session) any {
	channel := s.channel()
	queue, exchange := s.queue(channel, "q"), declare(s, channel, "direct", "e", nil)
	check(channel.QueueBind(queue, "key", exchange, false, nil))
	deleteQueue := func(ifUnused, ifEmpty bool) func(*amqp.Channel) error {
		return func(other *amqp.Channel) error {
			_, err := other.QueueDelete(queue, ifUnused, ifEmpty, false)
			return err
		}
	}
	inUse := s.refused(func(other *amqp.Channel) error { return other.ExchangeDelete(exchange, true, false) })
	s.store(queue, "1")
	notEmpty := s.refused(deleteQueue(false, true))
	take(must(channel.Consume(queue, "only", true, false, false, false, nil)), 1)
	queueInUse := s.refused(deleteQueue(true, false))
	check(channel.Cancel("only", false))
	check(deleteQueue(true, true)(channel))
	check(channel.ExchangeDelete(exchange, true, false))
	return object{
		"exchange_in_use": inUse,
		"queue_not_empty": notEmpty,
		"queue_in_use":    queueInUse,
		"queue_gone":      s.refused(func(other *amqp.Channel) error { return exists(other, queue) }),
		"exchange_gone":   s.refused(func(other *amqp.Channel) error { return exchangeExists(other, exchange) }),
	}
}

func names(s *session) any {
	channel := s.channel()
	stripped := s.queue(channel, "a\r\nb\n")
	publish(channel, stripped, "found")
	longest := s.name("")
	longest += strings.Repeat("x", 255-len(longest))
	return object{
		"stripped": stripped == s.name("ab"),
		"received": drain(channel, s.name("ab")),
		"longest":  must(channel.QueueDeclare(longest, false, false, false, false, nil)).Name == longest,
		"exchange": s.refused(func(other *amqp.Channel) error {
			return other.ExchangeDeclare(s.name("e\n"), "direct", false, false, false, false, nil)
		}),
		"exchange_stripped": s.refused(func(other *amqp.Channel) error { return exchangeExists(other, s.name("e")) }),
	}
}

func noWaitErrors(s *session) any {
	queue := s.queue(s.channel(), "q")
	return s.refusedEach([]attempt{
		{"declare", func(other *amqp.Channel) error {
			_, err := other.QueueDeclare(queue, true, false, false, true, nil)
			return err
		}},
		{"bind", func(other *amqp.Channel) error { return other.QueueBind(queue, "", s.name("missing"), true, nil) }},
	})
}

func exists(channel *amqp.Channel, queue string) error {
	_, err := passive(channel, queue)
	return err
}

func exchangeExists(channel *amqp.Channel, exchange string) error {
	return channel.ExchangeDeclarePassive(exchange, "direct", false, false, false, false, nil)
}

func purge(channel *amqp.Channel, queue string) error {
	_, err := channel.QueuePurge(queue, false)
	return err
}
