"""aio-pika as its documents use it: `connect_robust`, publisher confirms, a consumer that acknowledges by `process`."""

import asyncio
import itertools
import json
import os
import sys

import aio_pika

WINDOW = 10
PAUSE = 0.1
PREFETCH = 20
RECONNECT_SECONDS = 1
# What a publish raises when its connection has gone: the message is published again.
LOST = (aio_pika.exceptions.AMQPError, ConnectionError, asyncio.TimeoutError, RuntimeError)


def report(**what):
    print(json.dumps(what), flush=True)


async def connect(uri):
    return await aio_pika.connect_robust(uri, reconnect_interval=RECONNECT_SECONDS)


async def publish(uri, queue):
    connection = await connect(uri)
    channel = await connection.channel()
    await channel.declare_queue(queue, durable=True)

    async def publish_one(number):
        message = aio_pika.Message(str(number).encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        try:
            await channel.default_exchange.publish(message, routing_key=queue)
        except LOST as error:
            report(lost=number, error=repr(error))
            return number
        report(confirmed=number)
        return None

    numbers, again = itertools.count(), []
    while True:
        batch = again + list(itertools.islice(numbers, WINDOW - len(again)))
        outcomes = await asyncio.gather(*map(publish_one, batch))
        again = [number for number in outcomes if number is not None]
        await asyncio.sleep(PAUSE)


async def consume(uri, queue, pause):
    connection = await connect(uri)
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=PREFETCH)
    declared = await channel.declare_queue(queue, durable=True)

    async def take(message):
        while os.path.exists(pause):
            await asyncio.sleep(PAUSE)
        async with message.process():
            report(received=int(message.body))

    await declared.consume(take)
    await asyncio.Future()


async def main(uri, queue, pause):
    await asyncio.gather(publish(uri, queue), consume(uri, queue, pause))


asyncio.run(main(*sys.argv[1:]))
