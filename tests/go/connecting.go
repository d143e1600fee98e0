package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Opening, negotiating and keeping connections and channels.

const mebibyte = 1 << 20

func connect(s *session) any {
	// Less than a second stands for the server's own interval.
	connection := must(s.dial(amqp.Config{Heartbeat: time.Millisecond}))
	return object{
		"capabilities": connection.Properties["capabilities"],
		"properties":   slices.Sorted(maps.Keys(connection.Properties)),
		"channel_max":  connection.Config.ChannelMax,
		"frame_max":    connection.Config.FrameSize,
		"heartbeat":    connection.Config.Heartbeat.Seconds(),
	}
}

func wrongPassword(s *session) any {
	_, err := s.dial(amqp.Config{}, func(uri *url.URL) { uri.User = url.UserPassword("guest", "not-the-password") })
	return object{"code": closeOf(err)["code"]}
}

func wrongVhost(s *session) any {
	_, err := s.dial(amqp.Config{}, func(uri *url.URL) { uri.Path = "/nowhere" })
	return closeOf(err)
}

func heartbeatTwoSeconds(s *session) any {
	connection := must(s.dial(amqp.Config{Heartbeat: 2 * time.Second}))
	// The library closes the connection should the server's heartbeats fail to arrive, as the server does for its own.
	select {
	case err := <-connection.NotifyClose(make(chan *amqp.Error, 1)):
		panic(err)
	case <-time.After(5 * time.Second):
	}
	check(roundTrip(must(connection.Channel())))
	return object{"heartbeat": connection.Config.Heartbeat.Seconds(), "alive": !connection.IsClosed()}
}

func frameMax4096(s *session) any { return throughFramesOf(s, 4096) }

func frameMax131072(s *session) any { return throughFramesOf(s, 131072) }

func throughFramesOf(s *session, frameMax int) any {
	connection := must(s.dial(amqp.Config{FrameSize: frameMax}))
	channel := must(connection.Channel())
	queue := s.queue(channel, "q")
	deliveries := consumeAutomatically(channel, queue)
	sizes := []int{0, 1, frameMax - 8, frameMax - 7, mebibyte}
	for _, size := range sizes {
		check(channel.Publish("", queue, false, false, amqp.Publishing{Body: patterned(size)}))
	}
	intact := []int{}
	for index, message := range take(deliveries, len(sizes)) {
		if bytes.Equal(message.Body, patterned(sizes[index])) {
			intact = append(intact, len(message.Body))
		}
	}
	return object{"frame_max": connection.Config.FrameSize, "intact": intact}
}

func manyChannels(s *session) any {
	channels := make([]*amqp.Channel, 500)
	queues := make([]string, len(channels))
	for number := range channels {
		channels[number] = s.channel()
		queues[number] = must(channels[number].QueueDeclare("", false, false, true, false, nil)).Name
	}
	for number, channel := range channels {
		publish(channel, queues[number], fmt.Sprint(number))
	}
	own := 0
	for number, channel := range channels {
		if slices.Equal(drain(channel, queues[number]), []string{fmt.Sprint(number)}) {
			own++
		}
	}
	return object{"channels": len(channels), "own_messages": own}
}

func tenConnections(s *session) any {
	queue := s.queue(s.channel(), "q")
	done := make(chan error, 10)
	for publisher := range 10 {
		channel := must(s.connect().Channel())
		go func() { done <- publishHundred(channel, queue, publisher) }()
	}
	for range 10 {
		check(await(done))
	}
	channel := s.channel()
	stored := ready(channel, queue)
	byPublisher := map[string][]string{}
	for _, body := range bodiesOf(take(consumeAutomatically(channel, queue), 1000)) {
		publisher, number, _ := strings.Cut(body, " ")
		byPublisher[publisher] = append(byPublisher[publisher], number)
	}
	inOrder := 0
	for _, numbers := range byPublisher {
		if slices.Equal(numbers, numbered(100)) {
			inOrder++
		}
	}
	return object{"stored": stored, "in_order": inOrder}
}

func publishHundred(channel *amqp.Channel, queue string, publisher int) error {
	if err := channel.Confirm(false); err != nil {
		return err
	}
	var last *amqp.DeferredConfirmation
	for number := range 100 {
		body := fmt.Appendf(nil, "%d %d", publisher, number)
		confirmation, err := channel.PublishWithDeferredConfirm("", queue, false, false, amqp.Publishing{Body: body})
		if err != nil {
			return err
		}
		if last != nil && !last.Wait() {
			return fmt.Errorf("message %d of publisher %d was refused", number-1, publisher)
		}
		last = confirmation
	}
	last.Wait()
	return nil
}

// patterned makes a body whose every part differs, so that a lost or swapped frame shows.
func patterned(size int) []byte {
	body := make([]byte, 0, size+4)
	for number := uint32(0); len(body) < size; number++ {
		body = binary.BigEndian.AppendUint32(body, number)
	}
	return body[:size]
}
