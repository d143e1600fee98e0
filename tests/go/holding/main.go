// Holds one connection to the URI that it is given. Each line of standard input goes through a queue there, confirmed, and to
// standard output. At the end of the input the connection is closed.
package main

import (
	"bufio"
	"fmt"
	"log"
	"os"

	amqp "github.com/rabbitmq/amqp091-go"
)

func main() {
	connection := must(amqp.Dial(os.Args[1]))
	channel := must(connection.Channel())
	queue := must(channel.QueueDeclare("", false, false, true, false, nil)).Name
	check(channel.Confirm(false))
	fmt.Println("connected")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		publishing := amqp.Publishing{Body: lines.Bytes()}
		confirmation := must(channel.PublishWithDeferredConfirm("", queue, false, false, publishing))
		if !confirmation.Wait() {
			log.Fatal("not taken")
		}
		message, ok, err := channel.Get(queue, true)
		check(err)
		if !ok {
			log.Fatal("the queue is empty")
		}
		fmt.Println(string(message.Body))
	}
	check(connection.Close())
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
