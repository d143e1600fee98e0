package main

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Messages arrive as they were sent: properties, header values, bodies of any size.

const timestamp = 1_700_000_000

func properties(s *session) any {
	got := throughQueue(s, amqp.Publishing{
		ContentType:     "text/plain",
		ContentEncoding: "identity",
		Headers:         amqp.Table{"animal": "hare"},
		DeliveryMode:    amqp.Persistent,
		Priority:        5,
		CorrelationId:   "correlation",
		ReplyTo:         "reply",
		Expiration:      "60000",
		MessageId:       "message",
		Timestamp:       time.Unix(timestamp, 0),
		Type:            "greeting",
		UserId:          "guest",
		AppId:           "scenarios",
		Body:            []byte("häre"),
	})
	return object{
		"content_type":     got.ContentType,
		"content_encoding": got.ContentEncoding,
		"headers":          plain(got.Headers),
		"delivery_mode":    got.DeliveryMode,
		"priority":         got.Priority,
		"correlation_id":   got.CorrelationId,
		"reply_to":         got.ReplyTo,
		"expiration":       got.Expiration,
		"message_id":       got.MessageId,
		"timestamp":        got.Timestamp.Unix(),
		"type":             got.Type,
		"user_id":          got.UserId,
		"app_id":           got.AppId,
		"body":             string(got.Body),
		"exchange":         got.Exchange,
		"routing_key":      got.RoutingKey,
		"redelivered":      got.Redelivered,
	}
}

func headerValues(s *session) any {
	got := throughQueue(s, amqp.Publishing{Headers: amqp.Table{
		"true":      true,
		"false":     false,
		"byte":      int8(-8),
		"short":     int16(-300),
		"int":       int32(-100_000),
		"long":      int64(1) << 40,
		"float":     float32(0.5),
		"double":    1.1,
		"decimal":   amqp.Decimal{Scale: 2, Value: 125},
		"text":      "häre",
		"empty":     "",
		"binary":    []byte{0x00, 0x01, 0xff},
		"timestamp": time.Unix(timestamp, 0),
		"void":      nil,
		"list":      []any{int32(1), "two", true, nil, []any{int32(3)}},
		"table":     amqp.Table{"inner": amqp.Table{"deep": int32(7)}},
	}})
	return plain(got.Headers)
}

func throughQueue(s *session, message amqp.Publishing) amqp.Delivery {
	channel := s.channel()
	queue := s.queue(channel, "q")
	deliveries := consumeAutomatically(channel, queue)
	check(channel.Publish("", queue, false, false, message))
	return await(deliveries)
}

// plain gives a field value as JSON shows it: decimals as text, bytes in hex, timestamps in seconds.
func plain(value any) any {
	switch value := value.(type) {
	case amqp.Table:
		inner := object{}
		for key, each := range value {
			inner[key] = plain(each)
		}
		return inner
	case []any:
		inner := make([]any, len(value))
		for index, each := range value {
			inner[index] = plain(each)
		}
		return inner
	case []byte:
		return hex.EncodeToString(value)
	case amqp.Decimal:
		digits := fmt.Sprintf("%0*d", int(value.Scale)+1, value.Value)
		point := len(digits) - int(value.Scale)
		return digits[:point] + "." + digits[point:]
	case time.Time:
		return value.Unix()
	default:
		return value
	}
}

func bodySizes(s *session) any {
	channel := s.channel()
	queue := s.queue(channel, "q")
	deliveries := consume(channel, queue)
	intact := []int{}
	for _, size := range []int{0, 1, 4088, 4089, 131_064, 131_065, mebibyte, 16 * mebibyte} {
		sent := patterned(size)
		check(channel.Publish("", queue, false, false, amqp.Publishing{Body: sent}))
		message := await(deliveries)
		check(message.Ack(false))
		if bytes.Equal(message.Body, sent) {
			intact = append(intact, len(message.Body))
		}
	}
	return object{"intact": intact}
}
