"""tx: all or nothing, and never together with confirms."""

from session import drain, get_all, publish, ready, scenario, seen_again, store


@scenario
def tx_commit(session):
    channel, observer = session.channel(), session.channel()
    queue = session.queue(channel)
    store(session, queue, "acked")
    channel.tx_select()
    [(_, method)] = get_all(channel, queue)
    publish(channel, queue, "1", "2")
    channel.basic_ack(method.delivery_tag)
    before = ready(observer, queue)
    channel.tx_commit()
    channel.close()
    return {"before": before, "after": drain(observer, queue)}


@scenario
def tx_rollback(session):
    channel, observer = session.channel(), session.channel()
    queue = session.queue(channel)
    store(session, queue, "kept")
    channel.tx_select()
    [(_, method)] = get_all(channel, queue)
    publish(channel, queue, "1", "2")
    channel.basic_ack(method.delivery_tag)
    channel.tx_rollback()
    after_rollback = ready(observer, queue)
    channel.close()
    return {"after_rollback": after_rollback, "back": seen_again(observer, queue, 1)}


@scenario
def tx_refused(session):
    def both(first, second):
        def action(channel):
            getattr(channel, first)()
            getattr(channel, second)()

        return action

    return {
        "confirm_then_tx": session.refused(both("confirm_delivery", "tx_select")),
        "tx_then_confirm": session.refused(both("tx_select", "confirm_delivery")),
        "commit_without_select": session.refused(lambda channel: channel.tx_commit()),
        "rollback_without_select": session.refused(lambda channel: channel.tx_rollback()),
    }
