package main

import (
	"fmt"
	"net/url"
	"reflect"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"leveret-scenarios/patience"
)

const accepted = "accepted"

// session is what every scenario is handed: connections to the target, names of its own, and ways to observe.
// Scenarios panic on what they did not expect; run turns that into an answer.
type session struct {
	uri         string
	prefix      string
	connections []*amqp.Connection
}

type attempt struct {
	short  string
	action func(*amqp.Channel) error
}

// name gives a queue's or exchange's name that no other run of any scenario uses.
func (s *session) name(short string) string { return s.prefix + short }

func (s *session) dial(config amqp.Config, changes ...func(*url.URL)) (*amqp.Connection, error) {
	uri := must(url.Parse(s.uri))
	for _, change := range changes {
		change(uri)
	}
	connection, err := amqp.DialConfig(uri.String(), config)
	if err == nil {
		s.connections = append(s.connections, connection)
	}
	return connection, err
}

func (s *session) connect() *amqp.Connection { return must(s.dial(amqp.Config{})) }

// channel opens one on the scenario's main connection, which is made on first use.
func (s *session) channel() *amqp.Channel {
	if len(s.connections) == 0 {
		s.connect()
	}
	return must(s.connections[0].Channel())
}

// queue declares a queue of this run and returns its full name.
func (s *session) queue(channel *amqp.Channel, short string) string {
	return must(channel.QueueDeclare(s.name(short), false, false, false, false, nil)).Name
}

// refused runs action on a fresh channel and returns the error that closed it, the connection staying usable.
func (s *session) refused(action func(*amqp.Channel) error) any {
	channel := s.channel()
	closed := channel.NotifyClose(make(chan *amqp.Error, 1))
	if action(channel) == nil && roundTrip(channel) == nil {
		check(channel.Close())
		return accepted
	}
	answer := closeOf(await(closed))
	must(s.channel().QueueDeclare("", false, false, true, false, nil))
	return answer
}

// refusedOtherwise is what refused gives as soon as that is not before: RabbitMQ 4 deletes an exclusive queue some time after it has
// answered its owner's close.
func (s *session) refusedOtherwise(action func(*amqp.Channel) error, before any) any {
	deadline := time.Now().Add(patience.Limit)
	for {
		now := s.refused(action)
		if !reflect.DeepEqual(now, before) || time.Now().After(deadline) {
			return now
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// refusedEach makes several attempts, one after the other.
func (s *session) refusedEach(attempts []attempt) object {
	answers := object{}
	for _, each := range attempts {
		answers[each.short] = s.refused(each.action)
	}
	return answers
}

func (s *session) close() {
	for _, connection := range s.connections {
		_ = connection.Close()
	}
}

// connectionRefused runs action on a channel of a fresh connection and returns the error that closed that connection, or says that it
// closed the channel alone.
func (s *session) connectionRefused(action func(*amqp.Channel) error) any {
	connection := s.connect()
	closed := connection.NotifyClose(make(chan *amqp.Error, 1))
	channel := must(connection.Channel())
	alone := channel.NotifyClose(make(chan *amqp.Error, 1))
	if action(channel) == nil && roundTrip(channel) == nil {
		return accepted
	}
	answer := closeOf(await(alone))
	// A channel that went with its connection is told its error.
	if !connection.IsClosed() {
		answer["closed"] = "channel"
	} else {
		answer = closeOf(await(closed))
	}
	return answer
}

func closeOf(err error) object {
	closed, ok := err.(*amqp.Error)
	if !ok {
		panic(err)
	}
	return object{"code": closed.Code, "text": closed.Reason}
}

// roundTrip returns once the server has handled everything sent on channel, with what it objected to.
func roundTrip(channel *amqp.Channel) error {
	return channel.ExchangeDeclarePassive("amq.direct", "direct", true, false, false, false, nil)
}

func publish(channel *amqp.Channel, queue string, bodies ...string) {
	for _, body := range bodies {
		check(channel.Publish("", queue, false, false, amqp.Publishing{Body: []byte(body)}))
	}
}

// store publishes and returns once the queue has them all, for what is to be counted or taken on another channel.
func (s *session) store(queue string, bodies ...string) {
	channel := s.channel()
	check(channel.Confirm(false))
	confirmations := channel.NotifyPublish(make(chan amqp.Confirmation, len(bodies)))
	publish(channel, queue, bodies...)
	for range bodies {
		await(confirmations)
	}
	check(channel.Close())
}

func passive(channel *amqp.Channel, queue string) (amqp.Queue, error) {
	return channel.QueueDeclarePassive(queue, false, false, false, false, nil)
}

func ready(channel *amqp.Channel, queue string) int { return must(passive(channel, queue)).Messages }

// consume starts a consumer with manual acknowledgement.
func consume(channel *amqp.Channel, queue string) <-chan amqp.Delivery {
	return must(channel.Consume(queue, "", false, false, false, false, nil))
}

// consumeAutomatically starts a consumer whose messages need no acknowledgement.
func consumeAutomatically(channel *amqp.Channel, queue string) <-chan amqp.Delivery {
	return must(channel.Consume(queue, "", true, false, false, false, nil))
}

func take(deliveries <-chan amqp.Delivery, count int) []amqp.Delivery {
	taken := make([]amqp.Delivery, 0, count)
	for len(taken) < count {
		taken = append(taken, await(deliveries))
	}
	return taken
}

// getAll gets everything in queue, in order.
func getAll(channel *amqp.Channel, queue string) []amqp.Delivery {
	return getEvery(channel, queue, false)
}

// drain gets and acknowledges everything in queue; the bodies in order.
func drain(channel *amqp.Channel, queue string) []string {
	return bodiesOf(getEvery(channel, queue, true))
}

// seen gets everything in queue: body and whether it was marked as redelivered.
func seen(channel *amqp.Channel, queue string) [][]any { return marked(getAll(channel, queue)) }

// seenAgain is what seen gives once that many are back: a server may answer a close before its queue has the messages.
func seenAgain(channel *amqp.Channel, queue string, count int) [][]any {
	for deadline := time.Now().Add(patience.Limit); ready(channel, queue) != count; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			panic("waited in vain")
		}
	}
	return seen(channel, queue)
}

func getEvery(channel *amqp.Channel, queue string, automatic bool) []amqp.Delivery {
	taken := []amqp.Delivery{}
	for {
		message, ok, err := channel.Get(queue, automatic)
		check(err)
		if !ok {
			return taken
		}
		taken = append(taken, message)
	}
}

func bodiesOf(messages []amqp.Delivery) []string {
	bodies := make([]string, len(messages))
	for index, message := range messages {
		bodies[index] = string(message.Body)
	}
	return bodies
}

func marked(messages []amqp.Delivery) [][]any {
	marks := make([][]any, len(messages))
	for index, message := range messages {
		marks[index] = []any{string(message.Body), message.Redelivered}
	}
	return marks
}

func await[T any](source <-chan T) T {
	select {
	case value, ok := <-source:
		if !ok {
			panic("the channel was closed while something was awaited")
		}
		return value
	case <-time.After(patience.Limit):
		panic("waited in vain")
	}
}

func numbered(count int) []string {
	bodies := make([]string, 0, count)
	for number := range count {
		bodies = append(bodies, fmt.Sprint(number))
	}
	return bodies
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
