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
    static final Map<String, Driver.Scenario> SCENARIOS = Map.ofEntries(
            Map.entry("default_exchange", Exchanges::defaultExchange),
            Map.entry("predeclared_exchanges", Exchanges::predeclaredExchanges),
            Map.entry("direct_exchange", Exchanges::directExchange),
            Map.entry("fanout_exchange", Exchanges::fanoutExchange),
            Map.entry("topic_exchange", Exchanges::topicExchange),
            Map.entry("headers_exchange", Exchanges::headersExchange),
            Map.entry("exchange_to_exchange", Exchanges::exchangeToExchange),
            Map.entry("alternate_exchange", Exchanges::alternateExchange),
            Map.entry("headers_matching", Exchanges::headersMatching),
            Map.entry("consistent_hash_exchange", Exchanges::consistentHashExchange),
            Map.entry("consistent_hash_of_headers_and_properties", Exchanges::consistentHashOfHeadersAndProperties),
            Map.entry("circles", Exchanges::circles),
            Map.entry("auto_delete_source", Exchanges::autoDeleteSource));

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

    private static Object headersMatching(Session session) throws Exception {
        Channel channel = session.channel();
        String exchange = declare(session, channel, "headers", "e", null);
        Map<String, Object> present = new HashMap<>();
        present.put("x-match", "any");
        present.put("colour", null);
        Map<String, Map<String, Object>> bindings = new LinkedHashMap<>();
        bindings.put("present", present);
        for (String match : List.of("all", "all-with-x", "any", "any-with-x")) {
            bindings.put(match, Map.of("x-match", match, "colour", "red", "x-size", 1));
        }
        bindings.put("nothing to match all", Map.of("x-match", "all"));
        bindings.put("nothing to match any", Map.of("x-match", "any", "x-size", 1));
        Map<String, String> queues = new HashMap<>();
        for (String shortName : bindings.keySet()) {
            queues.put(shortName, session.queue(channel, "q" + queues.size()));
            channel.queueBind(queues.get(shortName), exchange, "", bindings.get(shortName));
        }
        Map<String, Object> empty = new HashMap<>();
        empty.put("colour", null);
        send(channel, exchange, "", "red", Map.of("colour", "red"));
        send(channel, exchange, "", "red of size 1", Map.of("colour", "red", "x-size", 1));
        send(channel, exchange, "", "size 1", Map.of("x-size", 1));
        send(channel, exchange, "", "blue", Map.of("colour", "blue"));
        send(channel, exchange, "", "void", empty);
        send(channel, exchange, "", "none", Map.of());
        Map<String, Object> observed = new HashMap<>(drainEach(channel, queues));
        String any = queues.get("any");
        observed.put("wrong", session.refused(
                other -> other.queueBind(any, exchange, "", Map.of("x-match", "some", "colour", "red"))));
        observed.put("of a wrong type", session.refused(
                other -> other.queueBind(any, exchange, "", Map.of("x-match", 5, "colour", "red"))));
        return observed;
    }

    private static Object consistentHashExchange(Session session) throws Exception {
        Channel channel = session.channel();
        String exchange = declare(session, channel, "x-consistent-hash", "e", null);
        String light = session.queue(channel, "light");
        String heavy = session.queue(channel, "heavy");
        channel.queueBind(light, exchange, "1");
        channel.queueBind(heavy, exchange, "3");
        List<String> first = placed(channel, exchange, light);
        List<String> others = new ArrayList<>(Session.drain(channel, heavy));
        List<String> again = placed(channel, exchange, light);
        boolean same = first.equals(again) && others.equals(Session.drain(channel, heavy));
        channel.queueUnbind(light, exchange, "1");
        int left = placed(channel, exchange, light).size();
        double ratio = (double) others.size() / first.size();
        Map<String, Object> observed = new HashMap<>(session.refusedEach(Map.of(
                "weight", other -> other.queueBind(light, exchange, "heavy"),
                "negative", other -> other.queueBind(light, exchange, "-1"),
                "type", other -> other.exchangeDeclare(exchange, "direct"),
                "two_ways", other -> declare(
                        session, other, "x-consistent-hash", "two",
                        Map.of("hash-header", "h", "hash-property", "message_id")),
                "property", other -> declare(
                        session, other, "x-consistent-hash", "odd", Map.of("hash-property", "odd")))));
        observed.put("after_unbind", List.of(left, Session.drain(channel, heavy).size()));
        observed.put("each_once", first.size() + others.size() == 400 && !others.removeAll(first));
        observed.put("same_key_same_queue", same);
        observed.put("three_times_as_many", 2 < ratio && ratio < 4.5);
        return observed;
    }

    /** Publishes with many keys; what of it came to the queue. */
    private static List<String> placed(Channel channel, String exchange, String queue) throws IOException {
        for (int number = 0; number < 400; number++) {
            send(channel, exchange, "key " + number, "key " + number, null);
        }
        return new ArrayList<>(Session.drain(channel, queue));
    }

    private static Object consistentHashOfHeadersAndProperties(Session session) throws Exception {
        Channel channel = session.channel();
        Map<String, Object> observed = new HashMap<>();
        Map<String, Map<String, Object>> kinds =
                Map.of("header", Map.of("hash-header", "who"), "property", Map.of("hash-property", "message_id"));
        for (String shortName : kinds.keySet()) {
            String exchange = declare(session, channel, "x-consistent-hash", shortName, kinds.get(shortName));
            List<String> queues = List.of(session.queue(channel, shortName + 0), session.queue(channel, shortName + 1));
            for (String queue : queues) {
                channel.queueBind(queue, exchange, "1");
            }
            for (int number = 0; number < 200; number++) {
                String who = Integer.toString(number % 20);
                BasicProperties properties =
                        new BasicProperties.Builder().headers(Map.of("who", who)).messageId(who).build();
                channel.basicPublish(exchange, Integer.toString(number), properties, Session.bytes(who));
            }
            List<String> one = new ArrayList<>(Session.drain(channel, queues.get(0)));
            List<String> other = new ArrayList<>(Session.drain(channel, queues.get(1)));
            int all = one.size() + other.size();
            boolean spread = !one.isEmpty() && !other.isEmpty();
            observed.put(shortName, Map.of("all", all, "together", !one.removeAll(other), "spread", spread));
        }
        return observed;
    }

    private static Object circles(Session session) throws Exception {
        Channel channel = session.channel();
        String first = declare(session, channel, "fanout", "first", null);
        String second = declare(session, channel, "fanout", "second", null);
        String queue = session.queue(channel);
        channel.exchangeBind(first, second, "");
        channel.exchangeBind(second, first, "");
        channel.queueBind(queue, second, "");
        send(channel, first, "", "once round", null);
        // Each is the alternate of the other, or of nobody.
        String one = declare(session, channel, "direct", "one", Map.of("alternate-exchange", session.name("other")));
        declare(session, channel, "direct", "other", Map.of("alternate-exchange", one));
        String lost = declare(session, channel, "direct", "lost", Map.of("alternate-exchange", session.name("missing")));
        BlockingQueue<String> returns = new LinkedBlockingQueue<>();
        channel.addReturnListener(message -> returns.add(Session.text(message.getBody())));
        channel.basicPublish(one, "nowhere", true, MessageProperties.MINIMAL_BASIC, Session.bytes("by nobody"));
        channel.basicPublish(
                lost, "nowhere", true, MessageProperties.MINIMAL_BASIC, Session.bytes("alternate is missing"));
        List<String> returned = List.of(Collector.inTime(returns), Collector.inTime(returns));
        return Map.of("received", Session.drain(channel, queue), "returned", returned);
    }

    private static Object autoDeleteSource(Session session) throws Exception {
        Channel channel = session.channel();
        String destination = declare(session, channel, "fanout", "destination", null);
        String source = session.name("source");
        channel.exchangeDeclare(source, "fanout", false, true, null);
        channel.exchangeBind(destination, source, "");
        Object bound = session.refused(other -> other.exchangeDeclarePassive(source));
        channel.exchangeUnbind(destination, source, "");
        return Map.of("bound", bound, "unbound", session.refused(other -> other.exchangeDeclarePassive(source)));
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
