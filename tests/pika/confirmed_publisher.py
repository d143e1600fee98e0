"""Publishes what each line of standard input asks for, and answers it once all of that is confirmed: harness/publishers.py."""

import sys

import pika


def main(uri):
    with pika.BlockingConnection(pika.URLParameters(uri)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        print("connected", flush=True)
        for line in sys.stdin:
            exchange, key, first, end, user_id = line.rstrip("\n").split("\t")
            properties = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent, user_id=user_id or None)
            for number in range(int(first), int(end)):
                channel.basic_publish(exchange, key, str(number), properties)
            print("confirmed", flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except pika.exceptions.AMQPError as problem:
        sys.exit(f"failed {problem!r}".replace("\n", " "))
