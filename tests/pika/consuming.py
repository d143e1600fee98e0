"""Getting, consuming, prefetch, cancelling, and who gets what among consumers."""

from session import Collector, connection_refused, get_all, publish, ready, scenario, seen_again, store, wait_until

FIVE = ["1", "2", "3", "4", "5"]


@scenario
def get(session):
    channel = session.channel()
    queue = session.queue(channel)
    empty = channel.basic_get(queue)[0] is None
    publish(channel, queue, "1", "2", "3")
    got = []
    for _ in range(3):
        method, _, body = channel.basic_get(queue)
        got.append([method.delivery_tag, body.decode(), method.redelivered, method.message_count])
        key_intact = method.routing_key == queue and method.exchange == ""
        channel.basic_ack(method.delivery_tag)
    return {"empty": empty, "got": got, "key_intact": key_intact, "left": ready(channel, queue)}


@scenario
def consume_and_ack(session):
    channel = session.channel()
    queue = session.queue(channel)
    collector = Collector(channel, queue)
    publish(channel, queue, *FIVE)
    deliveries = collector.wait(5)
    for method, _, _ in deliveries:
        channel.basic_ack(method.delivery_tag)
    channel.close()
    return {
        "bodies": collector.bodies,
        "tags": [method.delivery_tag for method, _, _ in deliveries],
        "redelivered": [method.redelivered for method, _, _ in deliveries],
        "left": ready(session.channel(), queue),
    }


@scenario
def consume_without_ack(session):
    channel = session.channel()
    queue = session.queue(channel)
    publish(channel, queue, *FIVE)
    collector = Collector(channel, queue, auto_ack=True)
    collector.wait(5)
    channel.close()
    return {"bodies": collector.bodies, "left": ready(session.channel(), queue)}


@scenario
def prefetch_per_consumer(session):
    channel = session.channel()
    queue = session.queue(channel)
    publish(channel, queue, *[str(number) for number in range(10)])
    channel.basic_qos(prefetch_count=3)
    collector = Collector(channel, queue)
    collector.wait(3)
    first_ready = ready(channel, queue)
    first = len(collector.deliveries)
    channel.basic_ack(collector.deliveries[0][0].delivery_tag)
    collector.wait(4)
    return {
        "first": first,
        "ready": first_ready,
        "after_ack": len(collector.deliveries),
        "ready_after_ack": ready(channel, queue),
    }


@scenario
def prefetch_of_later_consumers_only(session):
    channel = session.channel()
    earlier_queue, later_queue = session.queue(channel, "earlier"), session.queue(channel, "later")
    for queue in [earlier_queue, later_queue]:
        publish(channel, queue, *FIVE)
    earlier = Collector(channel, earlier_queue)
    channel.basic_qos(prefetch_count=2)
    later = Collector(channel, later_queue)
    earlier.wait(5)
    later.wait(2)
    return {"earlier_ready": ready(channel, earlier_queue), "later_ready": ready(channel, later_queue)}


@scenario
def prefetch_global(session):
    channel = session.channel()
    queues = [session.queue(channel, short) for short in ["a", "b"]]
    for queue in queues:
        publish(channel, queue, *FIVE)
    channel.basic_qos(prefetch_count=3, global_qos=True)
    collectors = [Collector(channel, queue) for queue in queues]

    def delivered():
        return sum(len(each.deliveries) for each in collectors)

    wait_until(session.connection, lambda: delivered() >= 3)
    left = sum(ready(channel, queue) for queue in queues)
    wait_until(session.connection, lambda: delivered() >= len(queues) * len(FIVE) - left)
    return {"delivered": delivered(), "ready": left}


@scenario
def cancel(session):
    channel = session.channel()
    queue = session.queue(channel)
    collector = Collector(channel, queue)
    publish(channel, queue, "before")
    collector.wait(1)
    channel.basic_cancel(collector.tag)
    store(session, queue, "after")
    state = channel.queue_declare(queue, passive=True).method
    channel.basic_ack(collector.deliveries[0][0].delivery_tag)
    return {"bodies": collector.bodies, "ready": state.message_count, "consumers": state.consumer_count}


@scenario
def server_cancel(session):
    channel = session.channel()
    queue = session.queue(channel)
    cancelled = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    Collector(channel, queue, consumer_tag="watcher")
    session.channel().queue_delete(queue)
    wait_until(session.connection, lambda: cancelled)
    return {"cancelled": cancelled, "channel_open": channel.is_open}


@scenario
def consumer_priority(session):
    channel = session.channel()
    queue = session.queue(channel)
    channel.basic_qos(prefetch_count=3)
    low = Collector(channel, queue)
    high = Collector(channel, queue, arguments={"x-priority": 10})
    publish(channel, queue, *FIVE)
    high.wait(3)
    low.wait(2)
    return {"high": high.bodies, "low": low.bodies}


@scenario
def exclusive_consumer(session):
    queue = session.queue(session.channel())
    holder = session.channel()
    tag = Collector(holder, queue, exclusive=True).tag
    second = session.refused(lambda channel: Collector(channel, queue))
    holder.basic_cancel(tag)
    Collector(holder, queue)
    exclusive_second = session.refused(lambda channel: Collector(channel, queue, exclusive=True))
    return {"second": second, "exclusive_second": exclusive_second}


@scenario
def duplicate_consumer_tag(session):
    queue = session.queue(session.channel())

    def action(channel):
        for _ in range(2):
            channel._impl._consumers.clear()  # pika itself refuses a second use of a tag
            channel._impl.basic_consume(queue, lambda *_: None, consumer_tag="twice")

    return connection_refused(session.connect(), action)


@scenario
def requeue_on_close(session):
    holder = session.connect().channel()
    queue = session.queue(holder)
    publish(holder, queue, "1", "2", "3")
    get_all(holder, queue)
    holder.close()
    other = session.connect()
    channel = other.channel()
    after_channel = seen_again(channel, queue, 3)
    other.close()
    after_connection = seen_again(session.channel(), queue, 3)
    return {"after_channel": after_channel, "after_connection": after_connection}


@scenario
def reused_tag_without_a_queue(session):
    queue = session.queue(session.channel())

    def action(channel):
        Collector(channel, queue, consumer_tag="twice")
        channel._impl._consumers.clear()
        channel._impl.basic_consume("", lambda *_: None, consumer_tag="twice")

    return session.refused(action)


@scenario
def tags_of_get_and_deliver(session):
    channel = session.channel()
    got, delivered = session.queue(channel, "got"), session.queue(channel, "delivered")
    publish(channel, got, "1", "2")
    tags = [channel.basic_get(got)[0].delivery_tag]
    collector = Collector(channel, delivered)
    publish(channel, delivered, "3")
    tags += [collector.wait(1)[0][0].delivery_tag]
    tags += [channel.basic_get(got)[0].delivery_tag]
    other = session.channel()
    publish(other, got, "4")
    return {"tags": tags, "on_another_channel": other.basic_get(got)[0].delivery_tag}


@scenario
def prefetch_does_not_limit(session):
    channel = session.channel()
    automatic, unlimited, got = [session.queue(channel, short) for short in ["automatic", "unlimited", "got"]]
    for queue in [automatic, unlimited, got]:
        publish(channel, queue, *FIVE)
    channel.basic_qos(prefetch_count=1)
    Collector(channel, automatic, auto_ack=True).wait(5)
    observed = {"get": [channel.basic_get(got)[2].decode() for _ in range(2)]}
    channel.basic_qos(prefetch_count=0)
    observed["unlimited"] = len(Collector(channel, unlimited).wait(5))
    return {**observed, "automatic": ready(channel, automatic)}


@scenario
def prefetch_raised(session):
    channel = session.channel()
    queue = session.queue(channel)
    publish(channel, queue, *FIVE)
    channel.basic_qos(prefetch_count=1, global_qos=True)
    collector = Collector(channel, queue)
    collector.wait(1)
    left = [ready(channel, queue)]
    for limit, delivered in [(3, 3), (0, 5)]:
        channel.basic_qos(prefetch_count=limit, global_qos=True)
        collector.wait(delivered)
        left.append(ready(channel, queue))
    return {"left": left, "bodies": collector.bodies}
