import com.rabbitmq.client.Channel;
import com.rabbitmq.client.MessageProperties;
import java.util.Map;

/** What a server refuses, with which code and words, and that only the channel pays for it. */
final class Refusals {
    static final Map<String, Driver.Scenario> SCENARIOS = Map.of(
            "redeclare", Refusals::redeclare,
            "redeclare_with_arguments", Refusals::redeclareWithArguments,
            "missing_queues_and_exchanges", Refusals::missingQueuesAndExchanges,
            "reserved_names", Refusals::reservedNames,
            "default_exchange_is_fixed", Refusals::defaultExchangeIsFixed,
            "internal_exchange", Refusals::internalExchange,
            "unknown_exchange_type", Refusals::unknownExchangeType,
            "pipelined_after_an_error", Refusals::pipelinedAfterAnError);

    private static final byte[] EMPTY = new byte[0];

    private static Object redeclare(Session session) throws Exception {
        Channel channel = session.channel();
        String queue = session.queue(channel);
        String exchange = Exchanges.declare(session, channel, "direct", "e", null);
        return session.refusedEach(Map.of(
                "same", other -> other.queueDeclare(queue, false, false, false, null),
                "durable", other -> other.queueDeclare(queue, true, false, false, null),
                "auto_delete", other -> other.queueDeclare(queue, false, false, true, null),
                "exclusive", other -> other.queueDeclare(queue, false, true, false, null),
                "exchange_same", other -> other.exchangeDeclare(exchange, "direct", false, false, false, null),
                "exchange_type", other -> other.exchangeDeclare(exchange, "fanout", false, false, false, null),
                "exchange_durable", other -> other.exchangeDeclare(exchange, "direct", true, false, false, null),
                "exchange_auto_delete", other -> other.exchangeDeclare(exchange, "direct", false, true, false, null),
                "exchange_internal", other -> other.exchangeDeclare(exchange, "direct", false, false, true, null)));
    }

    private static Object redeclareWithArguments(Session session) throws Exception {
        Channel channel = session.channel();
        String plain = session.queue(channel, "plain");
        String limited = session.name("limited");
        channel.queueDeclare(limited, false, false, false, ttl(60000));
        return session.refusedEach(Map.of(
                "same", other -> other.queueDeclare(limited, false, false, false, ttl(60000)),
                "added", other -> other.queueDeclare(plain, false, false, false, ttl(60000)),
                "missing", other -> other.queueDeclare(limited, false, false, false, null),
                "different", other -> other.queueDeclare(limited, false, false, false, ttl(50000)),
                "unknown", other -> other.queueDeclare(plain, false, false, false, Map.of("x-of-no-meaning", "any"))));
    }

    private static Object missingQueuesAndExchanges(Session session) throws Exception {
        String queue = session.queue(session.channel());
        String missing = session.name("missing");
        return session.refusedEach(Map.ofEntries(
                Map.entry("get", channel -> channel.basicGet(missing, false)),
                Map.entry("consume", channel -> Collector.manual(channel, missing)),
                Map.entry("purge", channel -> channel.queuePurge(missing)),
                Map.entry("bind_missing_queue", channel -> channel.queueBind(missing, "amq.direct", "key")),
                Map.entry("bind_missing_exchange", channel -> channel.queueBind(queue, missing, "key")),
                Map.entry("bind_missing_source", channel -> channel.exchangeBind("amq.fanout", missing, "key")),
                Map.entry("bind_missing_destination", channel -> channel.exchangeBind(missing, "amq.fanout", "key")),
                Map.entry("publish", channel -> channel.basicPublish(missing, "key", MessageProperties.MINIMAL_BASIC, EMPTY)),
                Map.entry("delete_queue", channel -> channel.queueDelete(missing)),
                Map.entry("delete_exchange", channel -> channel.exchangeDelete(missing)),
                Map.entry("unbind", channel -> channel.queueUnbind(missing, missing, "key")),
                Map.entry("no_last_queue", channel -> channel.queuePurge(""))));
    }

    private static Object reservedNames(Session session) throws Exception {
        return session.refusedEach(Map.of(
                "queue", channel -> channel.queueDeclare("amq.mine", false, false, false, null),
                "exchange", channel -> channel.exchangeDeclare("amq.mine", "direct"),
                "passive", channel -> channel.queueDeclarePassive("amq.mine"),
                "delete", channel -> channel.exchangeDelete("amq.direct"),
                "redeclare", channel -> channel.exchangeDeclare("amq.direct", "direct", true),
                "redeclare_otherwise", channel -> channel.exchangeDeclare("amq.direct", "fanout", true)));
    }

    private static Object defaultExchangeIsFixed(Session session) throws Exception {
        String queue = session.queue(session.channel());
        return session.refusedEach(Map.of(
                "declare", channel -> channel.exchangeDeclare("", "direct", true),
                "passive", channel -> channel.exchangeDeclarePassive(""),
                "delete", channel -> channel.exchangeDelete(""),
                "bind", channel -> channel.queueBind(queue, "", "key"),
                "unbind", channel -> channel.queueUnbind(queue, "", "key"),
                "source", channel -> channel.exchangeBind("amq.fanout", "", "key"),
                "destination", channel -> channel.exchangeBind("", "amq.fanout", "key")));
    }

    private static Object internalExchange(Session session) throws Exception {
        String exchange = session.name("e");
        session.channel().exchangeDeclare(exchange, "fanout", false, false, true, null);
        return session.refusedEach(Map.of(
                "publish", channel -> channel.basicPublish(exchange, "", MessageProperties.MINIMAL_BASIC, EMPTY)));
    }

    private static Object unknownExchangeType(Session session) throws Exception {
        return session.connectionRefused(channel -> channel.exchangeDeclare(session.name("e"), "no-such-type"));
    }

    private static Object pipelinedAfterAnError(Session session) throws Exception {
        String queue = session.queue(session.channel());
        Object refused = session.refused(channel -> {
            channel.basicPublish(session.name("missing"), "key", MessageProperties.MINIMAL_BASIC, EMPTY);
            // Refused by the client itself, should the server's close have come back already.
            Session.publish(channel, queue, "discarded");
        });
        return Map.of("refused", refused, "stored", Session.ready(session.channel(), queue));
    }

    private static Map<String, Object> ttl(int milliseconds) {
        return Map.of("x-message-ttl", milliseconds);
    }
}
