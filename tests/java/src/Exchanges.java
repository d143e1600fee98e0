import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.MessageProperties;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/** Each exchange type routes by its own rule, and exchanges feed exchanges. */
final class Exchanges {
    static final Map<String, Driver.Scenario> SCENARIOS = Map.of(
            "default_exchange", Exchanges::defaultExchange,
            "predeclared_exchanges", Exchanges::predeclaredExchanges,
            "direct_exchange", Exchanges::directExchange,
            "fanout_exchange", Exchanges::fanoutExchange,
            "topic_exchange", Exchanges::topicExchange,
            "headers_exchange", Exchanges::headersExchange,
            "exchange_to_exchange", Exchanges::exchangeToExchange,
            "alternate_exchange", Exchanges::alternateExchange);

    private static final List<String> TOPIC_PATTERNS =
            List.of("*.orange.*", "*.*.rabbit", "lazy.#", "#", "*", "#.orange.#", "a.#.b", "", "lazy");
    private static final List<String> TOPIC_KEYS = List.of(
            "quick.orange.rabbit", "lazy.orange.elephant", "lazy.brown.fox", "lazy", "orange", "a.b", "a.x.y.b",
            "quick.orange.male.rabbit", "");

    private static Object defaultExchange(Session session) throws Exception {
        Channel channel = session.channel();
        String queue = session.queue(channel);
        Session.publish(channel, queue, "by name");
        Session.publish(channel, session.name("missing"), "dropped in silence");
        return Map.of("received", Session.drain(channel, queue));
    }

    private static Object predeclaredExchanges(Session session) throws Exception {
        Channel channel = session.channel();
        String queue = session.queue(channel);
        for (String exchange : List.of("amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match")) {
            channel.queueBind(queue, exchange, queue, Map.of("run", queue));
            send(channel, exchange, queue, exchange, Map.of("run", queue));
        }
        return Map.of("received", Session.drain(channel, queue));
    }

    private static Object directExchange(Session session) throws Exception {
        Channel channel = session.channel();
        String exchange = declare(session, channel, "direct", "e", null);
        String queue = session.queue(channel);
        for (String key : List.of("red", "green")) {
            channel.queueBind(queue, exchange, key);
        }
        for (String key : List.of("red", "blue", "green", "red.green")) {
            send(channel, exchange, key, key, null);
        }
        channel.queueUnbind(queue, exchange, "red");
        for (String key : List.of("red", "green")) {
            send(channel, exchange, key, key + " after unbind", null);
        }
        return Map.of("received", Session.drain(channel, queue));
    }

    private static Object fanoutExchange(Session session) throws Exception {
        Channel channel = session.channel();
        String exchange = declare(session, channel, "fanout", "e", null);
        String first = session.queue(channel, "first");
        String second = session.queue(channel, "second");
        channel.queueBind(first, exchange, "one");
        channel.queueBind(first, exchange, "another");
        channel.queueBind(second, exchange, "");
        for (String body : List.of("1", "2")) {
            send(channel, exchange, "any", body, null);
        }
        return Map.of("first", Session.drain(channel, first), "second", Session.drain(channel, second));
    }

    private static Object topicExchange(Session session) throws Exception {
        Channel channel = session.channel();
        String exchange = declare(session, channel, "topic", "e", null);
        Map<String, String> queues = new LinkedHashMap<>();
        for (String pattern : TOPIC_PATTERNS) {
            String queue = session.queue(channel, "q" + queues.size());
            channel.queueBind(queue, exchange, pattern);
            queues.put(pattern, queue);
        }
        for (String key : TOPIC_KEYS) {
            send(channel, exchange, key, key, null);
        }
        return drainEach(channel, queues);
    }

    private static Object headersExchange(Session session) throws Exception {
        Channel channel = session.channel();
        String exchange = declare(session, channel, "headers", "e", null);
        Map<String, Object> present = new HashMap<>();
        present.put("x-match", "all");
        present.put("colour", null);
        Map<String, Map<String, Object>> bindings = Map.of(
                "all", Map.of("x-match", "all", "colour", "red", "size", 1),
                "any", Map.of("x-match", "any", "colour", "red", "size", 1),
                "unsaid", Map.of("colour", "red", "size", 1),
                "present", present);
        Map<String, String> queues = new HashMap<>();
        for (String shortName : bindings.keySet()) {
            queues.put(shortName, session.queue(channel, shortName));
            channel.queueBind(queues.get(shortName), exchange, "", bindings.get(shortName));
        }
        send(channel, exchange, "", "both", Map.of("colour", "red", "size", 1, "more", "x"));
        send(channel, exchange, "", "colour", Map.of("colour", "red", "size", 2));
        send(channel, exchange, "", "other", Map.of("colour", "blue"));
        send(channel, exchange, "", "none", Map.of());
        return drainEach(channel, queues);
    }

    private static Object exchangeToExchange(Session session) throws Exception {
        Channel channel = session.channel();
        String source = declare(session, channel, "topic", "source", null);
        String middle = declare(session, channel, "fanout", "middle", null);
        String queue = session.queue(channel);
        channel.queueBind(queue, middle, "");
        channel.exchangeBind(middle, source, "to.#");
        send(channel, source, "to.you", "bound", null);
        send(channel, source, "elsewhere", "not matched", null);
        channel.exchangeUnbind(middle, source, "to.#");
        send(channel, source, "to.you", "unbound", null);
        return Map.of("received", Session.drain(channel, queue));
    }

    private static Object alternateExchange(Session session) throws Exception {
        Channel channel = session.channel();
        String alternate = declare(session, channel, "fanout", "alternate", null);
        String main = declare(session, channel, "direct", "main", Map.of("alternate-exchange", alternate));
        String known = session.queue(channel, "known");
        String unknown = session.queue(channel, "unknown");
        channel.queueBind(known, main, "known");
        channel.queueBind(unknown, alternate, "");
        BlockingQueue<String> returns = new LinkedBlockingQueue<>();
        channel.addReturnListener(message -> returns.add(Session.text(message.getBody())));
        for (String key : List.of("known", "unknown")) {
            channel.basicPublish(main, key, true, MessageProperties.MINIMAL_BASIC, Session.bytes(key));
        }
        // A message that is returned for certain, so that no other return can still be on its way.
        channel.basicPublish("", session.name("missing"), true, MessageProperties.MINIMAL_BASIC, Session.bytes("nowhere"));
        List<String> returned = new ArrayList<>(List.of(Collector.inTime(returns)));
        returns.drainTo(returned);
        return Map.of(
                "known", Session.drain(channel, known),
                "unknown", Session.drain(channel, unknown),
                "returned", returned);
    }

    static String declare(Session session, Channel channel, String kind, String shortName, Map<String, Object> arguments)
            throws IOException {
        channel.exchangeDeclare(session.name(shortName), kind, false, false, arguments);
        return session.name(shortName);
    }

    static void send(Channel channel, String exchange, String key, String body, Map<String, Object> headers)
            throws IOException {
        BasicProperties properties = new BasicProperties.Builder().headers(headers).build();
        channel.basicPublish(exchange, key, properties, Session.bytes(body));
    }

    private static Map<String, List<String>> drainEach(Channel channel, Map<String, String> queues) throws IOException {
        Map<String, List<String>> bodies = new HashMap<>();
        for (Map.Entry<String, String> each : queues.entrySet()) {
            bodies.put(each.getKey(), Session.drain(channel, each.getValue()));
        }
        return bodies;
    }
}
