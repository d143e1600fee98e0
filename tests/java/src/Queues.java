import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Queues and exchanges from declaration to deletion. */
final class Queues {
    static final Map<String, Driver.Scenario> SCENARIOS = Map.of(
            "server_named_queue", Queues::serverNamedQueue,
            "exclusive_queue", Queues::exclusiveQueue,
            "auto_delete_queue", Queues::autoDeleteQueue,
            "auto_delete_exchange", Queues::autoDeleteExchange,
            "passive_declare", Queues::passiveDeclare,
            "purge_and_delete_counts", Queues::purgeAndDeleteCounts,
            "if_unused_if_empty", Queues::ifUnusedIfEmpty,
            "names", Queues::names,
            "no_wait_errors", Queues::noWaitErrors);

    private static Object serverNamedQueue(Session session) throws Exception {
        Channel channel = session.channel();
        String name = channel.queueDeclare("", false, true, false, null).getQueue();
        // The empty name now means that queue, and an empty key its name.
        channel.queueBind("", "amq.direct", "");
        Exchanges.send(channel, "amq.direct", name, "bound", null);
        List<String> received = Session.drain(channel, "");
        Session.publish(channel, name, "1", "2");
        int purged = channel.queuePurge("").getMessageCount();
        Session.publish(channel, name, "3");
        int deleted = channel.queueDelete("").getMessageCount();
        return Map.of(
                "name", name, "received", received, "purged", purged, "deleted", deleted,
                "on_another_channel", session.refused(other -> other.queuePurge("")));
    }

    private static Object exclusiveQueue(Session session) throws Exception {
        Connection stranger = session.connect();
        Connection owner = session.connect();
        String queue = owner.createChannel().queueDeclare(session.name("q"), false, true, false, null).getQueue();
        Map<String, Object> answers = session.refusedEach(Map.of(
                "declare", channel -> channel.queueDeclare(queue, false, true, false, null),
                "passive", channel -> channel.queueDeclarePassive(queue),
                "bind", channel -> channel.queueBind(queue, "amq.direct", "any"),
                "get", channel -> channel.basicGet(queue, false),
                "consume", channel -> Collector.manual(channel, queue),
                "purge", channel -> channel.queuePurge(queue),
                "delete", channel -> channel.queueDelete(queue)));
        session.store(queue, "publishing is open to all");
        answers.put("received", Session.drain(owner.createChannel(), queue));
        owner.close();
        answers.put("after_close", session.refusedOtherwise(channel -> channel.queueDeclarePassive(queue), answers.get("passive")));
        AMQP.Queue.DeclareOk again = stranger.createChannel().queueDeclare(queue, false, true, false, null);
        answers.put("redeclared", again.getQueue().equals(queue));
        return answers;
    }

    private static Object autoDeleteQueue(Session session) throws Exception {
        Channel channel = session.channel();
        String queue = channel.queueDeclare(session.name("q"), false, false, true, null).getQueue();
        channel.basicGet(queue, false);
        int afterGet = Session.ready(channel, queue);
        Collector first = Collector.manual(channel, queue);
        Collector last = Collector.manual(channel, queue);
        channel.basicCancel(first.tag);
        int afterFirst = Session.ready(channel, queue);
        channel.basicCancel(last.tag);
        return Map.of(
                "after_get", afterGet, "after_first_cancel", afterFirst,
                "after_last_cancel", session.refused(other -> Session.ready(other, queue)));
    }

    private static Object autoDeleteExchange(Session session) throws Exception {
        Channel channel = session.channel();
        String exchange = session.name("e");
        String queue = session.queue(channel);
        channel.exchangeDeclare(exchange, "direct", false, true, null);
        for (String key : List.of("one", "two")) {
            channel.queueBind(queue, exchange, key);
        }
        channel.queueUnbind(queue, exchange, "one");
        Object afterFirst = session.refused(other -> other.exchangeDeclarePassive(exchange));
        channel.queueUnbind(queue, exchange, "two");
        Object afterLast = session.refused(other -> other.exchangeDeclarePassive(exchange));
        return Map.of("after_first_unbind", afterFirst, "after_last_unbind", afterLast);
    }

    private static Object passiveDeclare(Session session) throws Exception {
        Channel channel = session.channel();
        String queue = session.queue(channel);
        session.store(queue, "1", "2");
        Channel consumer = session.channel();
        consumer.basicQos(1);
        Collector.manual(consumer, queue).await(1);
        AMQP.Queue.DeclareOk state = channel.queueDeclarePassive(queue);
        String missing = session.name("missing");
        Map<String, Object> answers = new HashMap<>(session.refusedEach(Map.of(
                "queue", other -> other.queueDeclarePassive(missing),
                "exchange", other -> other.exchangeDeclarePassive(missing))));
        answers.put("messages", state.getMessageCount());
        answers.put("consumers", state.getConsumerCount());
        return answers;
    }

    private static Object purgeAndDeleteCounts(Session session) throws Exception {
        Channel channel = session.channel();
        String queue = session.queue(channel);
        Session.publish(channel, queue, "1", "2", "3");
        int purged = channel.queuePurge(queue).getMessageCount();
        Session.publish(channel, queue, "4", "5");
        int deleted = channel.queueDelete(queue).getMessageCount();
        int missing = channel.queueDelete(queue).getMessageCount();
        return Map.of("purged", purged, "deleted", deleted, "missing", missing);
    }

    private static Object ifUnusedIfEmpty(Session session) throws Exception {
        Channel channel = session.channel();
        String queue = session.queue(channel);
        String exchange = Exchanges.declare(session, channel, "direct", "e", null);
        channel.queueBind(queue, exchange, "key");
        Object inUse = session.refused(other -> other.exchangeDelete(exchange, true));
        session.store(queue, "1");
        Object notEmpty = session.refused(other -> other.queueDelete(queue, false, true));
        Collector collector = Collector.automatic(channel, queue);
        collector.await(1);
        Object queueInUse = session.refused(other -> other.queueDelete(queue, true, false));
        channel.basicCancel(collector.tag);
        channel.queueDelete(queue, true, true);
        channel.exchangeDelete(exchange, true);
        return Map.of(
                "exchange_in_use", inUse,
                "queue_not_empty", notEmpty,
                "queue_in_use", queueInUse,
                "queue_gone", session.refused(other -> Session.ready(other, queue)),
                "exchange_gone", session.refused(other -> other.exchangeDeclarePassive(exchange)));
    }

    private static Object names(Session session) throws Exception {
        Channel channel = session.channel();
        String stripped = channel.queueDeclare(session.name("a\r\nb\n"), false, false, false, null).getQueue();
        Session.publish(channel, stripped, "found");
        String longest = session.name("") + "x".repeat(255 - session.name("").length());
        String declared = channel.queueDeclare(longest, false, false, false, null).getQueue();
        return Map.of(
                "stripped", stripped.equals(session.name("ab")),
                "received", Session.drain(channel, session.name("ab")),
                "longest", declared.equals(longest),
                "exchange", session.refused(other -> other.exchangeDeclare(session.name("e\n"), "direct")),
                "exchange_stripped", session.refused(other -> other.exchangeDeclarePassive(session.name("e"))));
    }

    private static Object noWaitErrors(Session session) throws Exception {
        String queue = session.queue(session.channel());
        return Map.of(
                "declare", session.refused(other -> other.queueDeclareNoWait(queue, true, false, false, null)),
                "bind", session.refused(other -> other.queueBindNoWait(queue, session.name("missing"), "", null)));
    }
}
