package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// load is the clients and their ledger.
type load struct {
	options
	ledger     *ledger
	stopping   atomic.Bool
	publishers sync.WaitGroup
	// leave ends the consumers.
	leave     chan struct{}
	consumers sync.WaitGroup
}

// start connects everybody, and returns once the queues are there.
func start(chosen options) *load {
	l := &load{options: chosen, ledger: newLedger(chosen.publishers, chosen.patience), leave: make(chan struct{})}
	if err := l.declare(); err != nil {
		l.ledger.fail("declaring: %v", err)
		return l
	}
	for number := range l.options.consumers {
		l.consumers.Go(func() { l.run("consumer", number, l.consume) })
	}
	for number := range l.options.publishers {
		l.publishers.Go(func() { l.run("publisher", number, l.publish) })
	}
	return l
}

func (l *load) goOn(count int) {
	var goals []int
	l.ledger.waitFor(fmt.Sprintf("%d more confirms for each publisher", count), func() bool {
		if goals == nil {
			for _, confirmed := range l.ledger.confirmed {
				goals = append(goals, confirmed+count)
			}
		}
		for publisher, goal := range goals {
			if l.ledger.confirmed[publisher] < goal {
				return false
			}
		}
		return true
	})
}

// finish lets the publishers hear their last confirms and the consumers take what is left.
func (l *load) finish() *accounts {
	l.stopping.Store(true)
	l.publishers.Wait()
	l.ledger.waitFor("the last deliveries", func() bool { return l.ledger.missing == 0 })
	close(l.leave)
	l.consumers.Wait()
	return l.ledger.close()
}

func queueOf(number int) string { return fmt.Sprintf("load-%d", number) }

func (l *load) declare() error {
	connection, err := amqp.Dial(l.uri)
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	for number := range l.options.consumers {
		arguments := amqp.Table{"x-queue-type": l.queueType}
		if _, err := channel.QueueDeclare(queueOf(number), true, false, false, false, arguments); err != nil {
			return err
		}
	}
	return nil
}

// run gives one client its connection, and notes what it hears.
func (l *load) run(role string, number int, work func(*amqp.Connection, int) error) {
	connection, err := amqp.DialConfig(l.uri, amqp.Config{Heartbeat: 10 * time.Second})
	if err != nil {
		l.ledger.fail("%s %d: connecting: %v", role, number, err)
		return
	}
	if err := work(connection, number); err != nil {
		l.ledger.fail("%s %d: %v", role, number, err)
	}
	if err := connection.Close(); err != nil {
		l.ledger.fail("%s %d: closing: %v", role, number, err)
	}
}

// onChannel opens a channel for some work, and closes it. Being closed by the server is an error.
func onChannel(connection *amqp.Connection, work func(*amqp.Channel) error) error {
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	closed := channel.NotifyClose(make(chan *amqp.Error, 1))
	err = work(channel)
	if heard := heardSoFar(closed); heard != nil {
		return heard
	}
	if err != nil {
		return err
	}
	return channel.Close()
}

func heardSoFar(closed chan *amqp.Error) error {
	select {
	case heard := <-closed:
		if heard != nil {
			return heard
		}
	default:
	}
	return nil
}

// publish uses one channel until the broker refuses a message there: what made it do so may stay with the channel, as in
// RabbitMQ's quorum queues.
func (l *load) publish(connection *amqp.Connection, publisher int) error {
	for !l.stopping.Load() {
		err := onChannel(connection, func(channel *amqp.Channel) error { return l.publishOn(channel, publisher) })
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *load) publishOn(channel *amqp.Channel, publisher int) error {
	if err := channel.Confirm(false); err != nil {
		return err
	}
	returned := channel.NotifyReturn(make(chan amqp.Return, l.burst))
	for refused := false; !refused && !l.stopping.Load(); {
		underWay, first, err := l.publishBurst(channel, publisher)
		if err != nil {
			return err
		}
		for place, confirm := range underWay {
			acked, err := l.await(confirm, channel, returned)
			if err != nil {
				return err
			}
			l.ledger.settle(publisher, first+place, acked)
			refused = refused || !acked
		}
		time.Sleep(l.interval)
	}
	return nil
}

// publishBurst tells what is to be confirmed, and the number of the first of it.
func (l *load) publishBurst(
	channel *amqp.Channel, publisher int,
) (underWay []*amqp.DeferredConfirmation, first int, err error) {
	queue := queueOf(publisher % l.options.consumers)
	for place := range l.burst {
		number := l.ledger.publish(publisher)
		if place == 0 {
			first = number
		}
		body := fmt.Sprintf("%d:%d", publisher, number)
		message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(body)}
		confirm, err := channel.PublishWithDeferredConfirm("", queue, true, false, message)
		if err != nil {
			return nil, 0, err
		}
		underWay = append(underWay, confirm)
	}
	return underWay, first, nil
}

func (l *load) await(
	confirm *amqp.DeferredConfirmation, channel *amqp.Channel, returned chan amqp.Return,
) (bool, error) {
	limit, cancel := context.WithTimeout(context.Background(), l.patience)
	defer cancel()
	acked, err := confirm.WaitContext(limit)
	switch {
	case err != nil:
		return false, fmt.Errorf("no confirm of message %d: %w", confirm.DeliveryTag, err)
	case channel.IsClosed():
		return false, fmt.Errorf("channel closed before the confirm of message %d", confirm.DeliveryTag)
	}
	select {
	case message := <-returned:
		return false, fmt.Errorf("message %q came back: %s", message.Body, message.ReplyText)
	default:
		return acked, nil
	}
}

func (l *load) consume(connection *amqp.Connection, number int) error {
	return onChannel(connection, func(channel *amqp.Channel) error {
		if err := channel.Qos(l.prefetch, 0, false); err != nil {
			return err
		}
		deliveries, err := channel.Consume(queueOf(number), "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		for {
			select {
			case delivery, open := <-deliveries:
				if !open {
					return fmt.Errorf("the deliveries ended")
				}
				l.ledger.arrive(string(delivery.Body), delivery.Redelivered)
				if err := delivery.Ack(false); err != nil {
					return err
				}
			case <-l.leave:
				return nil
			}
		}
	})
}
