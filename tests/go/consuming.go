package main

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"leveret-scenarios/patience"
)

// Getting, consuming, prefetch, cancelling, and who gets what among consumers.

var five = []string{"1", "2", "3", "4", "5"}

func get(s *session) any {
	channel := s.channel()
	queue := s.queue(channel, "q")
	_, found, err := channel.Get(queue, false)
	check(err)
	publish(channel, queue, "1", "2", "3")
	got := [][]any{}
	keyIntact := true
	for range 3 {
		message, _, err := channel.Get(queue, false)
		check(err)
		got = append(got, []any{message.DeliveryTag, string(message.Body), message.Redelivered, message.MessageCount})
		keyIntact = keyIntact && message.Exchange == "" && message.RoutingKey == queue
		check(message.Ack(false))
	}
	return object{"empty": !found, "got": got, "key_intact": keyIntact, "left": ready(channel, queue)}
}

func consumeAndAck(s *session) any {
	channel := s.channel()
	queue := s.queue(channel, "q")
	deliveries := consume(channel, queue)
	publish(channel, queue, five...)
	taken := take(deliveries, 5)
	tags, redelivered := []uint64{}, []bool{}
	for _, message := range taken {
		tags = append(tags, message.DeliveryTag)
		redelivered = append(redelivered, message.Redelivered)
		check(message.Ack(false))
	}
	check(channel.Close())
	return object{"bodies": bodiesOf(taken), "tags": tags, "redelivered": redelivered, "left": ready(s.channel(), queue)}
}

func consumeWithoutAck(s *session) any {
	channel := s.channel()
	queue := s.queue(channel, "q")
	publish(channel, queue, five...)
	bodies := bodiesOf(take(consumeAutomatically(channel, queue), 5))
	check(channel.Close())
	return object{"bodies": bodies, "left": ready(s.channel(), queue)}
}

func prefetchPerConsumer(s *session) any {
	channel := s.channel()
	queue := s.queue(channel, "q")
	publish(channel, queue, numbered(10)...)
	check(channel.Qos(3, 0, false))
	// Unlimited deliveries would show as fewer messages ready, whatever the library still holds back.
	deliveries := consume(channel, queue)
	taken := take(deliveries, 3)
	firstReady := ready(channel, queue)
	first := len(taken) + len(deliveries)
	check(taken[0].Ack(false))
	taken = append(taken, await(deliveries))
	return object{
		"first": first, "ready": firstReady, "after_ack": len(taken), "ready_after_ack": ready(channel, queue),
	}
}

func prefetchOfLaterConsumersOnly(s *session) any {
	channel := s.channel()
	earlierQueue, laterQueue := s.queue(channel, "earlier"), s.queue(channel, "later")
	publish(channel, earlierQueue, five...)
	publish(channel, laterQueue, five...)
	earlier := consume(channel, earlierQueue)
	check(channel.Qos(2, 0, false))
	later := consume(channel, laterQueue)
	take(earlier, 5)
	take(later, 2)
	return object{"earlier_ready": ready(channel, earlierQueue), "later_ready": ready(channel, laterQueue)}
}

func prefetchGlobal(s *session) any {
	channel := s.channel()
	first, second := s.queue(channel, "a"), s.queue(channel, "b")
	publish(channel, first, five...)
	publish(channel, second, five...)
	check(channel.Qos(3, 0, true))
	fromFirst, fromSecond := consume(channel, first), consume(channel, second)
	delivered := 0
	takeUntil := func(count int) {
		for ; delivered < count; delivered++ {
			select {
			case <-fromFirst:
			case <-fromSecond:
			case <-time.After(patience.Limit):
				panic("waited in vain")
			}
		}
	}
	takeUntil(3)
	left := ready(channel, first) + ready(channel, second)
	takeUntil(2*len(five) - left)
	return object{"delivered": delivered, "ready": left}
}

func cancel(s *session) any {
	channel := s.channel()
	queue := s.queue(channel, "q")
	deliveries := must(channel.Consume(queue, "watcher", false, false, false, false, nil))
	publish(channel, queue, "before")
	taken := take(deliveries, 1)
	check(channel.Cancel("watcher", false))
	s.store(queue, "after")
	state := must(passive(channel, queue))
	for message := range deliveries {
		taken = append(taken, message)
	}
	check(taken[0].Ack(false))
	return object{"bodies": bodiesOf(taken), "ready": state.Messages, "consumers": state.Consumers}
}

func serverCancel(s *session) any {
	channel := s.channel()
	queue := s.queue(channel, "q")
	cancelled := channel.NotifyCancel(make(chan string, 1))
	must(channel.Consume(queue, "watcher", false, false, false, false, nil))
	must(s.channel().QueueDelete(queue, false, false, false))
	return object{"cancelled": []string{await(cancelled)}, "channel_open": roundTrip(channel) == nil}
}

func consumerPriority(s *session) any {
	channel := s.channel()
	queue := s.queue(channel, "q")
	check(channel.Qos(3, 0, false))
	low := consume(channel, queue)
	high := must(channel.Consume(queue, "", false, false, false, false, amqp.Table{"x-priority": 10}))
	publish(channel, queue, five...)
	return object{"high": bodiesOf(take(high, 3)), "low": bodiesOf(take(low, 2))}
}

func exclusiveConsumer(s *session) any {
	queue := s.queue(s.channel(), "q")
	holder := s.channel()
	must(holder.Consume(queue, "holder", false, true, false, false, nil))
	consumeAs := func(exclusive bool) func(*amqp.Channel) error {
		return func(channel *amqp.Channel) error {
			_, err := channel.Consume(queue, "", false, exclusive, false, false, nil)
			return err
		}
	}
	second := s.refused(consumeAs(false))
	check(holder.Cancel("holder", false))
	consume(holder, queue)
	return object{"second": second, "exclusive_second": s.refused(consumeAs(true))}
}

func duplicateConsumerTag(s *session) any {
	queue := s.queue(s.channel(), "q")
	return s.connectionRefused(func(channel *amqp.Channel) error {
		must(channel.Consume(queue, "twice", false, false, false, false, nil))
		_, err := channel.Consume(queue, "twice", false, false, false, false, nil)
		return err
	})
}

func requeueOnClose(s *session) any {
	s.connect()
	holder := must(s.connect().Channel())
	queue := s.queue(holder, "q")
	publish(holder, queue, "1", "2", "3")
	getAll(holder, queue)
	check(holder.Close())
	other := s.connect()
	afterChannel := seenAgain(must(other.Channel()), queue, 3)
	check(other.Close())
	return object{"after_channel": afterChannel, "after_connection": seenAgain(s.channel(), queue, 3)}
}

func cancelOfAnUnknownTag(s *session) any {
	return s.refused(func(channel *amqp.Channel) error { return channel.Cancel("nobody has it", false) })
}
