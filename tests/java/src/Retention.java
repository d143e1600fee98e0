import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.LongString;
import com.rabbitmq.client.MessageProperties;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/** What queues keep, for how long, in which order, and where the rest goes: TTL, lengths, priorities, dead letters. */
final class Retention {
    static final Map<String, Driver.Scenario> SCENARIOS = Map.ofEntries(
            Map.entry("message_ttl", Retention::messageTtl),
            Map.entry("queue_expires", Retention::queueExpires),
            Map.entry("max_length_drops_the_head", Retention::maxLengthDropsTheHead),
            Map.entry("max_length_rejects", Retention::maxLengthRejects),
            Map.entry("dead_letters", Retention::deadLetters),
            Map.entry("dead_letters_and_copies", Retention::deadLettersAndCopies),
            Map.entry("dead_letter_cycles", Retention::deadLetterCycles),
            Map.entry("priorities", Retention::priorities),
            Map.entry("single_active_consumer", Retention::singleActiveConsumer),
            Map.entry("quorum_queue", Retention::quorumQueue),
            Map.entry("requeue_into_a_full_queue", Retention::requeueIntoAFullQueue));

    private static final String EXCHANGE = "x-dead-letter-exchange";
    private static final String KEY = "x-dead-letter-routing-key";
    /** Looks in a row, ten milliseconds apart: a message that went round and round would be seen in some of them. */
    private static final int LOOKS = 20;

    private static Object messageTtl(Session session) throws Exception {
        Channel channel = session.channel();
        String zero = declare(session, channel, "zero", Map.of("x-message-ttl", 0));
        String brief = declare(session, channel, "short", Map.of("x-message-ttl", 50));
        String extended = declare(session, channel, "long", Map.of("x-message-ttl", 600_000));
        String plain = session.queue(channel, "plain");
        session.store(zero, "nobody waits");
        session.store(brief, "not for long");
        expiring(channel, plain, "not for long", "50");
        expiring(channel, extended, "not for long", "50");
        List<Integer> gone = new ArrayList<>();
        for (String queue : List.of(zero, brief, extended, plain)) {
            gone.add(emptied(channel, queue));
        }
        Collector collector = Collector.automatic(channel, zero);
        Session.publish(channel, zero, "somebody waits");
        collector.await(1);
        return Map.of("gone", gone, "to_consumer", collector.bodies());
    }

    private static Object queueExpires(Session session) throws Exception {
        String queue = declare(session, session.channel(), "q", Map.of("x-expires", 100));
        Object answer;
        do {
            // Asking renews the lease, so leave it the time to end.
            Thread.sleep(400);
            answer = session.refused(channel -> Session.ready(channel, queue));
        } while (answer.equals(Session.ACCEPTED));
        return answer;
    }

    private static Object maxLengthDropsTheHead(Session session) throws Exception {
        Channel channel = session.channel();
        String few = declare(session, channel, "few", Map.of("x-max-length", 2));
        String small = declare(session, channel, "small", Map.of("x-max-length-bytes", 5));
        List<Object> outcomes = List.of(
                outcomes(session, few, "1", "2", "3", "4"), outcomes(session, small, "aa", "bb", "cc", "123456"));
        return Map.of("outcomes", outcomes, "few", Session.drain(channel, few), "small", Session.drain(channel, small));
    }

    private static Object maxLengthRejects(Session session) throws Exception {
        Channel channel = session.channel();
        String dead = session.queue(channel, "dead");
        Map<String, Object> observed = new LinkedHashMap<>();
        List<Object> outcomes = new ArrayList<>();
        for (String[] mode : new String[][] {{"silent", "reject-publish"}, {"telling", "reject-publish-dlx"}}) {
            String queue = declare(
                    session, channel, mode[0], Map.of("x-max-length", 2, EXCHANGE, "", KEY, dead, "x-overflow", mode[1]));
            outcomes.add(outcomes(session, queue, "1", "2", "3", "4"));
            observed.put(mode[0], Session.drain(channel, queue));
        }
        observed.put("outcomes", outcomes);
        observed.put("letters", List.of(letter(channel, dead), letter(channel, dead)));
        return observed;
    }

    private static Object deadLetters(Session session) throws Exception {
        Channel channel = session.channel();
        String exchange = session.name("e");
        String dead = session.queue(channel, "dead");
        channel.exchangeDeclare(exchange, "fanout");
        channel.queueBind(dead, exchange, "");
        Map<String, Object> observed = new LinkedHashMap<>();
        String rejected = declare(session, channel, "rejected", Map.of(EXCHANGE, exchange));
        Session.publish(channel, rejected, "body");
        reject(channel, rejected);
        observed.put("rejected", letter(channel, dead));
        expiring(channel, declare(session, channel, "expired", Map.of(EXCHANGE, exchange)), "body", "20");
        observed.put("expired", letter(channel, dead));
        String full = declare(session, channel, "maxlen", Map.of(EXCHANGE, exchange, KEY, "new", "x-max-length", 1));
        Session.publish(channel, full, "body", "other");
        observed.put("maxlen", letter(channel, dead));
        return observed;
    }

    private static Object deadLettersAndCopies(Session session) throws Exception {
        Channel channel = session.channel();
        String dead = session.queue(channel, "dead");
        String copied = session.queue(channel, "copied");
        Map<String, Object> observed = new LinkedHashMap<>();
        for (String shortName : List.of("renamed", "kept")) {
            boolean renamed = shortName.equals("renamed");
            String queue = declare(session, channel, shortName, renamed ? Map.of(EXCHANGE, "", KEY, dead) : Map.of(EXCHANGE, ""));
            Map<String, Object> headers = Map.of("CC", List.of(copied), "mine", "kept");
            channel.basicPublish(
                    "", queue, new AMQP.BasicProperties.Builder().headers(headers).build(), Session.bytes("body"));
            // The copy made by publishing is taken out first.
            Object before = letter(channel, copied);
            reject(channel, queue);
            observed.put(shortName, List.of(before, letter(channel, renamed ? dead : copied)));
        }
        return observed;
    }

    private static Object deadLetterCycles(Session session) throws Exception {
        Channel channel = session.channel();
        String two = session.name("two");
        String one = declare(session, channel, "one", Map.of(EXCHANGE, "", KEY, two, "x-message-ttl", 50));
        declare(session, channel, "two", Map.of(EXCHANGE, "", KEY, one, "x-message-ttl", 50));
        session.store(one, "goes round once");
        List<Integer> dropped = stayEmpty(channel, one, two);
        String queue = declare(session, channel, "self", Map.of(EXCHANGE, ""));
        Session.publish(channel, queue, "rejected over and over");
        for (int round = 0; round < 3; round++) {
            reject(channel, queue);
        }
        return Map.of("dropped", dropped, "rejected", letter(channel, queue));
    }

    private static Object priorities(Session session) throws Exception {
        Channel channel = session.channel();
        String queue = declare(session, channel, "q", Map.of("x-max-priority", 5));
        for (Integer priority : new Integer[] {1, 5, null, 3, 0, 9, 1}) {
            AMQP.BasicProperties properties = new AMQP.BasicProperties.Builder().priority(priority).build();
            channel.basicPublish("", queue, properties, Session.bytes(priority == null ? "0" : priority.toString()));
        }
        // Taken on the channel that has published, so that nothing is still on its way.
        Session.publish(channel, queue, "last");
        return Map.of("order", Session.drain(channel, queue));
    }

    private static Object singleActiveConsumer(Session session) throws Exception {
        Channel channel = session.channel();
        String queue = declare(session, channel, "q", Map.of("x-single-active-consumer", true));
        Collector first = Collector.automatic(channel, queue);
        Collector second = Collector.automatic(channel, queue);
        Session.publish(channel, queue, "1", "2", "3");
        first.await(3);
        channel.basicCancel(first.tag);
        Session.publish(channel, queue, "4");
        second.await(1);
        return Map.of("first", first.bodies(), "second", second.bodies());
    }

    private static Object quorumQueue(Session session) throws Exception {
        Channel channel = session.channel();
        String dead = session.queue(channel, "dead");
        Map<String, Object> quorum = Map.of("x-queue-type", "quorum", "x-delivery-limit", 1, EXCHANGE, "", KEY, dead);
        String queue = channel.queueDeclare(session.name("q"), true, false, false, quorum).getQueue();
        session.store(queue, "body");
        List<Object> seen = new ArrayList<>();
        for (int round = 0; round < 2; round++) {
            // What counts as a failure for every release is a channel that goes.
            Channel taker = session.channel();
            GetResponse got = taken(taker, queue, false);
            Map<String, Object> headers = got.getProps().getHeaders();
            seen.add(Arrays.asList(got.getEnvelope().isRedeliver(), headers == null ? null : headers.get("x-delivery-count")));
            taker.close();
        }
        Object letter = letter(channel, dead);
        channel.queueDelete(queue);
        Object refused = session.refused(other -> declare(session, other, "transient", Map.of("x-queue-type", "quorum")));
        return Map.of("seen", seen, "letter", letter, "transient", refused);
    }

    static String declare(Session session, Channel channel, String shortName, Map<String, Object> arguments)
            throws IOException {
        return channel.queueDeclare(session.name(shortName), false, false, false, arguments).getQueue();
    }

    /** Publishes one after the other; what became of each. */
    private static List<String> outcomes(Session session, String queue, String... bodies) throws Exception {
        Channel channel = session.channel();
        BlockingQueue<String> arriving = new LinkedBlockingQueue<>();
        channel.addConfirmListener((tag, multiple) -> arriving.add("ack"), (tag, multiple) -> arriving.add("nack"));
        channel.confirmSelect();
        List<String> outcomes = new ArrayList<>();
        for (String body : bodies) {
            channel.basicPublish("", queue, MessageProperties.MINIMAL_BASIC, Session.bytes(body));
            outcomes.add(Collector.inTime(arriving));
        }
        channel.close();
        return outcomes;
    }

    private static void expiring(Channel channel, String queue, String body, String expiration) throws IOException {
        AMQP.BasicProperties properties = new AMQP.BasicProperties.Builder().expiration(expiration).build();
        channel.basicPublish("", queue, properties, Session.bytes(body));
    }

    private static void reject(Channel channel, String queue) throws Exception {
        channel.basicReject(taken(channel, queue, false).getEnvelope().getDeliveryTag(), false);
    }

    /** Waits for a message, which may have been sent on its way by something that has no answer. */
    static GetResponse taken(Channel channel, String queue, boolean automatic) throws Exception {
        long deadline = System.nanoTime() + Session.WAIT_MILLISECONDS * 1_000_000L;
        while (System.nanoTime() < deadline) {
            GetResponse got = channel.basicGet(queue, automatic);
            if (got != null) {
                return got;
            }
            Thread.sleep(10);
        }
        throw new AssertionError("waited in vain");
    }

    /** Waits until nothing is in the queue; how much is left. */
    private static int emptied(Channel channel, String queue) throws Exception {
        while (Session.ready(channel, queue) > 0) {
            Thread.sleep(10);
        }
        return Session.ready(channel, queue);
    }

    /** Waits until several looks in a row find nothing in either queue; how much is left in each. */
    private static List<Integer> stayEmpty(Channel channel, String one, String two) throws Exception {
        long deadline = System.nanoTime() + Session.WAIT_MILLISECONDS * 1_000_000L;
        for (int looks = 0; ; Thread.sleep(10)) {
            List<Integer> left = List.of(Session.ready(channel, one), Session.ready(channel, two));
            looks = left.equals(List.of(0, 0)) ? looks + 1 : 0;
            if (looks == LOOKS || System.nanoTime() > deadline) {
                return left;
            }
        }
    }

    /** A message as dead-lettering has left it, without the times of death. */
    private static Map<String, Object> letter(Channel channel, String queue) throws Exception {
        GetResponse got = taken(channel, queue, true);
        Map<String, Object> letter = new HashMap<>();
        letter.put("body", Session.text(got.getBody()));
        letter.put("exchange", got.getEnvelope().getExchange());
        letter.put("routing_key", got.getEnvelope().getRoutingKey());
        letter.put("expiration", got.getProps().getExpiration());
        letter.put("headers", plain(got.getProps().getHeaders()));
        return letter;
    }

    /** A header's value as JSON can hold it, without the times of death. */
    static Object plain(Object value) {
        if (value instanceof LongString) {
            return value.toString();
        }
        if (value instanceof List<?> list) {
            return list.stream().map(Retention::plain).toList();
        }
        if (value instanceof Map<?, ?> map) {
            Map<Object, Object> copy = new HashMap<>();
            map.forEach((key, inner) -> copy.put(key, plain(inner)));
            copy.remove("time");
            return copy;
        }
        return value;
    }

    private static Object requeueIntoAFullQueue(Session session) throws Exception {
        Channel channel = session.channel();
        String queue = declare(session, channel, "q", Map.of("x-max-length", 2));
        Session.publish(channel, queue, "1", "2");
        GetResponse first = channel.basicGet(queue, false);
        session.store(queue, "3");
        // What is unacknowledged does not count.
        int counted = Session.ready(channel, queue);
        channel.basicNack(first.getEnvelope().getDeliveryTag(), false, true);
        return Map.of("counted", counted, "left", Session.drain(channel, queue));
    }
}
