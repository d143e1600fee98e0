"""Ack, nack, reject and recover: what is gone, what comes back, and where in the queue."""

from session import connection_refused, drain, get_all, publish, scenario, seen_again

FIVE = ["1", "2", "3", "4", "5"]


@scenario
def ack_multiple(session):
    channel, queue, tags = holding_five(session)
    channel.basic_ack(tags[2], multiple=True)
    channel.close()
    return {"back": seen_again(session.channel(), queue, 2)}


@scenario
def ack_all_outstanding(session):
    channel, queue, _ = holding_five(session)
    channel.basic_ack(0, multiple=True)
    # Messages that were left would come back, and before one that is published behind them.
    channel.basic_recover(requeue=True)
    publish(channel, queue, "marker")
    return {"left": drain(channel, queue).index("marker")}


@scenario
def nack_requeue_order(session):
    channel, queue, tags = holding_five(session)
    channel.basic_nack(tags[4], multiple=True, requeue=True)
    taken = get_all(channel, queue)
    for _, method in [taken[3], taken[1]]:
        channel.basic_nack(method.delivery_tag, requeue=True)
    return {"all": [[body, method.redelivered] for body, method in taken], "middle": seen(channel, queue)}


@scenario
def nack_drops(session):
    channel, queue, tags = holding_five(session)
    channel.basic_nack(tags[2], multiple=True, requeue=False)
    channel.close()
    return {"back": seen_again(session.channel(), queue, 2)}


@scenario
def reject(session):
    channel, queue, tags = holding_five(session)
    channel.basic_reject(tags[0], requeue=False)
    channel.basic_reject(tags[1], requeue=True)
    return {"back": seen(channel, queue)}


@scenario
def recover(session):
    channel, queue, _ = holding_five(session)
    channel.basic_recover(requeue=True)
    return {"back": seen(channel, queue)}


@scenario
def recover_without_requeue(session):
    return connection_refused(session.connect(), lambda channel: channel.basic_recover(requeue=False))


@scenario
def unknown_delivery_tag(session):
    def twice(channel):
        queue = session.queue(channel)
        publish(channel, queue, "once")
        tag = channel.basic_get(queue)[0].delivery_tag
        channel.basic_ack(tag)
        channel.basic_ack(tag)

    return {
        "ack": session.refused(lambda channel: channel.basic_ack(5)),
        "ack_multiple": session.refused(lambda channel: channel.basic_ack(5, multiple=True)),
        "nack": session.refused(lambda channel: channel.basic_nack(5)),
        "reject": session.refused(lambda channel: channel.basic_reject(5)),
        "twice": session.refused(twice),
    }


def holding_five(session):
    """A channel that holds five unacknowledged messages of a queue: the channel, the queue, the delivery tags."""
    channel = session.channel()
    queue = session.queue(channel)
    publish(channel, queue, *FIVE)
    tags = [method.delivery_tag for _, method in get_all(channel, queue)]
    return channel, queue, tags


def seen(channel, queue):
    return [[body, method.redelivered] for body, method in get_all(channel, queue)]
