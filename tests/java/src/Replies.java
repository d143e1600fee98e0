import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.GetResponse;
import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/** Direct reply-to, copies by header, and properties that the server looks at. */
final class Replies {
    static final Map<String, Driver.Scenario> SCENARIOS = Map.of(
            "direct_reply_to", Replies::directReplyTo,
            "direct_reply_to_refused", Replies::directReplyToRefused,
            "copies", Replies::copies,
            "judged_properties", Replies::judgedProperties,
            "through_an_internal_exchange", Replies::throughAnInternalExchange,
            "channel_flow", Replies::channelFlow);

    private static final String REPLY_TO = "amq.rabbitmq.reply-to";

    private static Object directReplyTo(Session session) throws Exception {
        Channel channel = session.channel();
        Channel server = session.connect().createChannel();
        String queue = session.queue(channel);
        Collector replies = Collector.automatic(channel, REPLY_TO);
        request(channel, queue);
        String secret = Retention.taken(server, queue, true).getProps().getReplyTo();
        AMQP.Queue.DeclareOk found = server.queueDeclarePassive(secret);
        BlockingQueue<String> returned = new LinkedBlockingQueue<>();
        server.addReturnListener(message -> returned.add(message.getRoutingKey()));
        server.basicPublish("", secret, correlated().build(), Session.bytes("reply"));
        server.basicPublish("", secret, true, correlated().build(), Session.bytes("counts as unroutable"));
        server.basicPublish("", session.name("nowhere"), true, correlated().build(), Session.bytes("always is"));
        Envelope envelope = replies.await(2).get(0).getEnvelope();
        Map<String, Object> observed = new LinkedHashMap<>();
        observed.put("pattern", secret.startsWith(REPLY_TO + "."));
        observed.put(
                "found", List.of(found.getMessageCount(), found.getConsumerCount(), found.getQueue().equals(secret)));
        observed.put("bodies", replies.bodies());
        observed.put("returned", Collector.inTime(returned).equals(secret));
        observed.put("exchange", envelope.getExchange());
        observed.put("key_is_secret", envelope.getRoutingKey().equals(secret));
        observed.put("get", told(session.connectionRefused(other -> other.basicGet(secret, false)), secret));
        observed.put("bind", told(session.connectionRefused(other -> other.queueBind(secret, "amq.direct", "key")), secret));
        channel.basicCancel(replies.tag);
        server.basicPublish("", secret, null, Session.bytes("nobody there"));
        observed.put("after_cancel", told(session.connectionRefused(other -> other.queueDeclarePassive(secret)), secret));
        return observed;
    }

    private static Object directReplyToRefused(Session session) throws Exception {
        String queue = session.queue(session.channel());
        Map<String, Session.Action> attempts = Map.of(
                "acknowledging", channel -> Collector.manual(channel, REPLY_TO),
                "twice", channel -> {
                    Collector.automatic(channel, REPLY_TO);
                    Collector.automatic(channel, REPLY_TO);
                },
                "without_consumer", channel -> request(channel, queue),
                "after_cancel", channel -> {
                    channel.basicCancel(Collector.automatic(channel, REPLY_TO).tag);
                    request(channel, queue);
                },
                "declare", channel -> channel.queueDeclare(REPLY_TO, false, false, false, null),
                "declare_secret", channel -> channel.queueDeclarePassive(REPLY_TO + ".guessed"),
                "get", channel -> channel.basicGet(REPLY_TO, false));
        Map<String, Object> observed = new LinkedHashMap<>();
        for (Map.Entry<String, Session.Action> attempt : attempts.entrySet()) {
            observed.put(attempt.getKey(), session.connectionRefused(attempt.getValue()));
        }
        return observed;
    }

    private static Object copies(Session session) throws Exception {
        Channel channel = session.channel();
        String to = session.queue(channel, "to");
        String cc = session.queue(channel, "cc");
        String bcc = session.queue(channel, "bcc");
        Map<String, Object> headers = Map.of("CC", List.of(cc, to), "BCC", List.of(bcc), "mine", "kept");
        publish(channel, to, new AMQP.BasicProperties.Builder().headers(headers), "body");
        Map<String, Object> observed = new LinkedHashMap<>();
        for (String queue : List.of(to, cc, bcc)) {
            GetResponse got = Retention.taken(channel, queue, true);
            Object shown = Retention.plain(got.getProps().getHeaders());
            observed.put(
                    queue.replaceFirst(session.name(""), ""),
                    List.of(Session.text(got.getBody()), got.getEnvelope().getRoutingKey(), shown));
        }
        List<Object> left = new ArrayList<>();
        for (String queue : List.of(to, cc, bcc)) {
            left.add(Session.drain(channel, queue));
        }
        observed.put("left", left);
        AMQP.BasicProperties.Builder noArray = new AMQP.BasicProperties.Builder().headers(Map.of("CC", cc));
        observed.put("no_array", session.refused(other -> publish(other, to, noArray, "")));
        return observed;
    }

    private static Object judgedProperties(Session session) throws Exception {
        String queue = session.queue(session.channel());
        Map<String, AMQP.BasicProperties.Builder> attempts = Map.of(
                "user_id", new AMQP.BasicProperties.Builder().userId("somebody"),
                "own_user_id", new AMQP.BasicProperties.Builder().userId("guest"),
                "expiration_of_words", new AMQP.BasicProperties.Builder().expiration("soon"),
                "expiration_empty", new AMQP.BasicProperties.Builder().expiration(""),
                "expiration_negative", new AMQP.BasicProperties.Builder().expiration("-1"),
                "expiration_with_unit", new AMQP.BasicProperties.Builder().expiration("5s"));
        Map<String, Object> observed = new LinkedHashMap<>();
        for (Map.Entry<String, AMQP.BasicProperties.Builder> attempt : attempts.entrySet()) {
            observed.put(
                    attempt.getKey(), session.refused(channel -> publish(channel, queue, attempt.getValue(), "")));
        }
        return observed;
    }

    private static Object throughAnInternalExchange(Session session) throws Exception {
        Channel channel = session.channel();
        String queue = session.queue(channel);
        String outer = session.name("outer");
        String inner = session.name("inner");
        channel.exchangeDeclare(outer, "fanout");
        channel.exchangeDeclare(inner, "fanout", false, false, true, null);
        channel.exchangeBind(inner, outer, "");
        channel.queueBind(queue, inner, "");
        channel.basicPublish(outer, "", null, Session.bytes("through both"));
        return Map.of("received", List.of(Session.text(Retention.taken(channel, queue, true).getBody())));
    }

    private static Object channelFlow(Session session) throws Exception {
        AMQP.Channel.FlowOk answer = (AMQP.Channel.FlowOk) session.channel().rpc(flow(true)).getMethod();
        return Map.of(
                "active", answer.getActive(),
                "inactive", session.connectionRefused(channel -> channel.rpc(flow(false))));
    }

    private static AMQP.Channel.Flow flow(boolean active) {
        return new AMQP.Channel.Flow.Builder().active(active).build();
    }

    private static void request(Channel channel, String queue) throws IOException {
        publish(channel, queue, correlated().replyTo(REPLY_TO), "request");
    }

    private static AMQP.BasicProperties.Builder correlated() {
        return new AMQP.BasicProperties.Builder().correlationId("1");
    }

    private static void publish(Channel channel, String key, AMQP.BasicProperties.Builder properties, String body)
            throws IOException {
        channel.basicPublish("", key, properties.build(), Session.bytes(body));
    }

    /** An error whose text must not hold what is different in each run. */
    private static Object told(Object answer, String secret) {
        Map<?, ?> close = (Map<?, ?>) answer;
        Map<Object, Object> told = new LinkedHashMap<>(close);
        told.put("text", close.get("text").toString().replace(secret, "SECRET"));
        return told;
    }
}
