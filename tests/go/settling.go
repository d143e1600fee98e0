package main

import (
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Ack, nack, reject and recover: what is gone, what comes back, and where in the queue.

func ackMultiple(s *session) any {
	channel, queue, taken := holdingFive(s)
	check(taken[2].Ack(true))
	check(channel.Close())
	return object{"back": seenAgain(s.channel(), queue, 2)}
}

func ackAllOutstanding(s *session) any {
	channel, queue, _ := holdingFive(s)
	check(channel.Ack(0, true))
	// What was left would come back, and before what is published behind it.
	check(channel.Recover(true))
	publish(channel, queue, "marker")
	return object{"left": slices.Index(drain(channel, queue), "marker")}
}

func nackRequeueOrder(s *session) any {
	channel, queue, taken := holdingFive(s)
	check(taken[4].Nack(true, true))
	again := getAll(channel, queue)
	check(again[3].Nack(false, true))
	check(again[1].Nack(false, true))
	return object{"all": marked(again), "middle": seen(channel, queue)}
}

func nackDrops(s *session) any {
	channel, queue, taken := holdingFive(s)
	check(taken[2].Nack(true, false))
	check(channel.Close())
	return object{"back": seenAgain(s.channel(), queue, 2)}
}

func reject(s *session) any {
	channel, queue, taken := holdingFive(s)
	check(taken[0].Reject(false))
	check(taken[1].Reject(true))
	return object{"back": seen(channel, queue)}
}

func recoverUnacked(s *session) any {
	channel, queue, _ := holdingFive(s)
	check(channel.Recover(true))
	return object{"back": seen(channel, queue)}
}

func recoverWithoutRequeue(s *session) any {
	return s.connectionRefused(func(channel *amqp.Channel) error { return channel.Recover(false) })
}

func unknownDeliveryTag(s *session) any {
	return s.refusedEach([]attempt{
		{"ack", func(channel *amqp.Channel) error { return channel.Ack(5, false) }},
		{"ack_multiple", func(channel *amqp.Channel) error { return channel.Ack(5, true) }},
		{"nack", func(channel *amqp.Channel) error { return channel.Nack(5, false, true) }},
		{"reject", func(channel *amqp.Channel) error { return channel.Reject(5, true) }},
		{"twice", func(channel *amqp.Channel) error {
			queue := s.queue(channel, "q")
			publish(channel, queue, "once")
			taken := getAll(channel, queue)
			check(taken[0].Ack(false))
			return taken[0].Ack(false)
		}},
	})
}

// holdingFive gives a channel that holds five unacknowledged messages of a queue.
func holdingFive(s *session) (*amqp.Channel, string, []amqp.Delivery) {
	channel := s.channel()
	queue := s.queue(channel, "q")
	publish(channel, queue, five...)
	return channel, queue, getAll(channel, queue)
}
