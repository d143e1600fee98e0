package main

import amqp "github.com/rabbitmq/amqp091-go"

// What a server refuses, with which code and words, and that only the channel pays for it.

func redeclare(s *session) any {
	channel := s.channel()
	queue, exchange := s.queue(channel, "q"), declare(s, channel, "direct", "e", nil)
	queueAs := func(durable, autoDelete, exclusive bool) func(*amqp.Channel) error {
		return declareQueue(queue, durable, autoDelete, exclusive, nil)
	}
	exchangeAs := func(kind string, durable, autoDelete, internal bool) func(*amqp.Channel) error {
		return func(other *amqp.Channel) error {
			return other.ExchangeDeclare(exchange, kind, durable, autoDelete, internal, false, nil)
		}
	}
	return s.refusedEach([]attempt{
		{"same", queueAs(false, false, false)},
		{"durable", queueAs(true, false, false)},
		{"auto_delete", queueAs(false, true, false)},
		{"exclusive", queueAs(false, false, true)},
		{"exchange_same", exchangeAs("direct", false, false, false)},
		{"exchange_type", exchangeAs("fanout", false, false, false)},
		{"exchange_durable", exchangeAs("direct", true, false, false)},
		{"exchange_auto_delete", exchangeAs("direct", false, true, false)},
		{"exchange_internal", exchangeAs("direct", false, false, true)},
	})
}

func redeclareWithArguments(s *session) any {
	plain, limited := s.queue(s.channel(), "plain"), s.name("limited")
	queueAs := func(queue string, arguments amqp.Table) func(*amqp.Channel) error {
		return declareQueue(queue, false, false, false, arguments)
	}
	check(queueAs(limited, ttl(60000))(s.channel()))
	return s.refusedEach([]attempt{
		{"same", queueAs(limited, ttl(60000))},
		{"added", queueAs(plain, ttl(60000))},
		{"missing", queueAs(limited, nil)},
		{"different", queueAs(limited, ttl(50000))},
		{"unknown", queueAs(plain, amqp.Table{"x-of-no-meaning": "any"})},
	})
}

func missingQueuesAndExchanges(s *session) any {
	queue, missing := s.queue(s.channel(), "q"), s.name("missing")
	return s.refusedEach([]attempt{
		{"get", func(channel *amqp.Channel) error {
			_, _, err := channel.Get(missing, false)
			return err
		}},
		{"consume", func(channel *amqp.Channel) error {
			_, err := channel.Consume(missing, "", false, false, false, false, nil)
			return err
		}},
		{"purge", func(channel *amqp.Channel) error { return purge(channel, missing) }},
		{"bind_missing_queue", func(channel *amqp.Channel) error {
			return channel.QueueBind(missing, "key", "amq.direct", false, nil)
		}},
		{"bind_missing_exchange", func(channel *amqp.Channel) error {
			return channel.QueueBind(queue, "key", missing, false, nil)
		}},
		{"bind_missing_source", func(channel *amqp.Channel) error {
			return channel.ExchangeBind("amq.fanout", "key", missing, false, nil)
		}},
		{"bind_missing_destination", func(channel *amqp.Channel) error {
			return channel.ExchangeBind(missing, "key", "amq.fanout", false, nil)
		}},
		{"publish", func(channel *amqp.Channel) error {
			return channel.Publish(missing, "key", false, false, amqp.Publishing{})
		}},
		{"delete_queue", func(channel *amqp.Channel) error {
			_, err := channel.QueueDelete(missing, false, false, false)
			return err
		}},
		{"delete_exchange", func(channel *amqp.Channel) error { return channel.ExchangeDelete(missing, false, false) }},
		{"unbind", func(channel *amqp.Channel) error { return channel.QueueUnbind(missing, "key", missing, nil) }},
		{"no_last_queue", func(channel *amqp.Channel) error { return purge(channel, "") }},
	})
}

func reservedNames(s *session) any {
	exchangeAs := func(name, kind string, durable bool) func(*amqp.Channel) error {
		return func(channel *amqp.Channel) error {
			return channel.ExchangeDeclare(name, kind, durable, false, false, false, nil)
		}
	}
	return s.refusedEach([]attempt{
		{"queue", declareQueue("amq.mine", false, false, false, nil)},
		{"exchange", exchangeAs("amq.mine", "direct", false)},
		{"passive", func(channel *amqp.Channel) error { return exists(channel, "amq.mine") }},
		{"delete", func(channel *amqp.Channel) error { return channel.ExchangeDelete("amq.direct", false, false) }},
		{"redeclare", exchangeAs("amq.direct", "direct", true)},
		{"redeclare_otherwise", exchangeAs("amq.direct", "fanout", true)},
	})
}

func defaultExchangeIsFixed(s *session) any {
	queue := s.queue(s.channel(), "q")
	return s.refusedEach([]attempt{
		{"declare", func(channel *amqp.Channel) error {
			return channel.ExchangeDeclare("", "direct", true, false, false, false, nil)
		}},
		{"passive", func(channel *amqp.Channel) error { return exchangeExists(channel, "") }},
		{"delete", func(channel *amqp.Channel) error { return channel.ExchangeDelete("", false, false) }},
		{"bind", func(channel *amqp.Channel) error { return channel.QueueBind(queue, "key", "", false, nil) }},
		{"unbind", func(channel *amqp.Channel) error { return channel.QueueUnbind(queue, "key", "", nil) }},
		{"source", func(channel *amqp.Channel) error { return channel.ExchangeBind("amq.fanout", "key", "", false, nil) }},
		{"destination", func(channel *amqp.Channel) error {
			return channel.ExchangeBind("", "key", "amq.fanout", false, nil)
		}},
	})
}

func internalExchange(s *session) any {
	exchange := s.name("e")
	check(s.channel().ExchangeDeclare(exchange, "fanout", false, false, true, false, nil))
	return object{"publish": s.refused(func(channel *amqp.Channel) error {
		return channel.Publish(exchange, "", false, false, amqp.Publishing{})
	})}
}

func unknownExchangeType(s *session) any {
	return s.connectionRefused(func(channel *amqp.Channel) error {
		return channel.ExchangeDeclare(s.name("e"), "no-such-type", false, false, false, false, nil)
	})
}

func pipelinedAfterAnError(s *session) any {
	queue := s.queue(s.channel(), "q")
	refused := s.refused(func(channel *amqp.Channel) error {
		check(channel.Publish(s.name("missing"), "key", false, false, amqp.Publishing{Body: []byte("closes the channel")}))
		// Refused by the library itself, should the server's close have come back already.
		return channel.Publish("", queue, false, false, amqp.Publishing{Body: []byte("discarded")})
	})
	return object{"refused": refused, "stored": ready(s.channel(), queue)}
}

func declareQueue(name string, durable, autoDelete, exclusive bool, arguments amqp.Table) func(*amqp.Channel) error {
	return func(channel *amqp.Channel) error {
		_, err := channel.QueueDeclare(name, durable, autoDelete, exclusive, false, arguments)
		return err
	}
}

func ttl(milliseconds int32) amqp.Table { return amqp.Table{"x-message-ttl": milliseconds} }
