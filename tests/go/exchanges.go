package main

import (
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Each exchange type routes by its own rule, and exchanges feed exchanges.

var (
	topicPatterns = []string{"*.orange.*", "*.*.rabbit", "lazy.#", "#", "*", "#.orange.#", "a.#.b", "", "lazy"}
	topicKeys     = []string{
		"quick.orange.rabbit", "lazy.orange.elephant", "lazy.brown.fox", "lazy", "orange", "a.b", "a.x.y.b",
		"quick.orange.male.rabbit", "",
	}
)

func defaultExchange(s *session) any {
	channel := s.channel()
	queue := s.queue(channel, "q")
	publish(channel, queue, "by name")
	publish(channel, s.name("missing"), "dropped in silence")
	return object{"received": drain(channel, queue)}
}

func predeclaredExchanges(s *session) any {
	channel := s.channel()
	queue := s.queue(channel, "q")
	for _, exchange := range []string{"amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"} {
		check(channel.QueueBind(queue, queue, exchange, false, amqp.Table{"run": queue}))
		send(channel, exchange, queue, exchange, amqp.Table{"run": queue})
	}
	return object{"received": drain(channel, queue)}
}

func directExchange(s *session) any {
	channel := s.channel()
	exchange, queue := declare(s, channel, "direct", "e", nil), s.queue(channel, "q")
	for _, key := range []string{"red", "green"} {
		check(channel.QueueBind(queue, key, exchange, false, nil))
	}
	for _, key := range []string{"red", "blue", "green", "red.green"} {
		send(channel, exchange, key, key, nil)
	}
	check(channel.QueueUnbind(queue, "red", exchange, nil))
	for _, key := range []string{"red", "green"} {
		send(channel, exchange, key, key+" after unbind", nil)
	}
	return object{"received": drain(channel, queue)}
}

func fanoutExchange(s *session) any {
	channel := s.channel()
	exchange := declare(s, channel, "fanout", "e", nil)
	first, second := s.queue(channel, "first"), s.queue(channel, "second")
	check(channel.QueueBind(first, "one", exchange, false, nil))
	check(channel.QueueBind(first, "another", exchange, false, nil))
	check(channel.QueueBind(second, "", exchange, false, nil))
	for _, body := range []string{"1", "2"} {
		send(channel, exchange, "any", body, nil)
	}
	return object{"first": drain(channel, first), "second": drain(channel, second)}
}

func topicExchange(s *session) any {
	channel := s.channel()
	exchange := declare(s, channel, "topic", "e", nil)
	for number, pattern := range topicPatterns {
		queue := s.queue(channel, fmt.Sprint("q", number))
		check(channel.QueueBind(queue, pattern, exchange, false, nil))
	}
	for _, key := range topicKeys {
		send(channel, exchange, key, key, nil)
	}
	received := object{}
	for number, pattern := range topicPatterns {
		received[pattern] = drain(channel, s.name(fmt.Sprint("q", number)))
	}
	return received
}

func headersExchange(s *session) any {
	channel := s.channel()
	exchange := declare(s, channel, "headers", "e", nil)
	bindings := map[string]amqp.Table{
		"all":     {"x-match": "all", "colour": "red", "size": int32(1)},
		"any":     {"x-match": "any", "colour": "red", "size": int32(1)},
		"unsaid":  {"colour": "red", "size": int32(1)},
		"present": {"x-match": "all", "colour": nil},
	}
	for short, arguments := range bindings {
		check(channel.QueueBind(s.queue(channel, short), "", exchange, false, arguments))
	}
	send(channel, exchange, "", "both", amqp.Table{"colour": "red", "size": int32(1), "more": "x"})
	send(channel, exchange, "", "colour", amqp.Table{"colour": "red", "size": int32(2)})
	send(channel, exchange, "", "other", amqp.Table{"colour": "blue"})
	send(channel, exchange, "", "none", amqp.Table{})
	received := object{}
	for short := range bindings {
		received[short] = drain(channel, s.name(short))
	}
	return received
}

func exchangeToExchange(s *session) any {
	channel := s.channel()
	source := declare(s, channel, "topic", "source", nil)
	middle := declare(s, channel, "fanout", "middle", nil)
	queue := s.queue(channel, "q")
	check(channel.QueueBind(queue, "", middle, false, nil))
	check(channel.ExchangeBind(middle, "to.#", source, false, nil))
	send(channel, source, "to.you", "bound", nil)
	send(channel, source, "elsewhere", "not matched", nil)
	check(channel.ExchangeUnbind(middle, "to.#", source, false, nil))
	send(channel, source, "to.you", "unbound", nil)
	return object{"received": drain(channel, queue)}
}

func alternateExchange(s *session) any {
	channel := s.channel()
	alternate := declare(s, channel, "fanout", "alternate", nil)
	main := declare(s, channel, "direct", "main", amqp.Table{"alternate-exchange": alternate})
	known, unknown := s.queue(channel, "known"), s.queue(channel, "unknown")
	check(channel.QueueBind(known, "known", main, false, nil))
	check(channel.QueueBind(unknown, "", alternate, false, nil))
	returns := channel.NotifyReturn(make(chan amqp.Return, 3))
	for _, key := range []string{"known", "unknown"} {
		check(channel.Publish(main, key, true, false, amqp.Publishing{Body: []byte(key)}))
	}
	// A message that is returned for certain, so that no other return can still be on its way.
	check(channel.Publish("", s.name("missing"), true, false, amqp.Publishing{Body: []byte("nowhere")}))
	returned := []string{string(await(returns).Body)}
	for len(returns) > 0 {
		returned = append(returned, string(await(returns).Body))
	}
	return object{"known": drain(channel, known), "unknown": drain(channel, unknown), "returned": returned}
}

func declare(s *session, channel *amqp.Channel, kind, short string, arguments amqp.Table) string {
	check(channel.ExchangeDeclare(s.name(short), kind, false, false, false, false, arguments))
	return s.name(short)
}

func send(channel *amqp.Channel, exchange, key, body string, headers amqp.Table) {
	check(channel.Publish(exchange, key, false, false, amqp.Publishing{Headers: headers, Body: []byte(body)}))
}
