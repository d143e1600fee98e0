import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.LongString;
import com.rabbitmq.client.MessageProperties;
import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Date;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Messages arrive as they were sent: properties, header values, bodies of any size. */
final class Content {
    static final Map<String, Driver.Scenario> SCENARIOS = Map.of(
            "properties", Content::properties,
            "header_values", Content::headerValues,
            "body_sizes", Content::bodySizes);

    private static final long TIMESTAMP = 1_700_000_000L;

    private static Object properties(Session session) throws Exception {
        BasicProperties sent = new BasicProperties.Builder()
                .contentType("text/plain")
                .contentEncoding("identity")
                .headers(Map.of("animal", "hare"))
                .deliveryMode(2)
                .priority(5)
                .correlationId("correlation")
                .replyTo("reply")
                .expiration("60000")
                .messageId("message")
                .timestamp(new Date(TIMESTAMP * 1000))
                .type("greeting")
                .userId("guest")
                .appId("scenarios")
                .clusterId("cluster")
                .build();
        Delivery delivery = throughQueue(session, sent, "häre");
        BasicProperties got = delivery.getProperties();
        Map<String, Object> observed = new HashMap<>();
        observed.put("content_type", got.getContentType());
        observed.put("content_encoding", got.getContentEncoding());
        observed.put("headers", plain(got.getHeaders()));
        observed.put("delivery_mode", got.getDeliveryMode());
        observed.put("priority", got.getPriority());
        observed.put("correlation_id", got.getCorrelationId());
        observed.put("reply_to", got.getReplyTo());
        observed.put("expiration", got.getExpiration());
        observed.put("message_id", got.getMessageId());
        observed.put("timestamp", plain(got.getTimestamp()));
        observed.put("type", got.getType());
        observed.put("user_id", got.getUserId());
        observed.put("app_id", got.getAppId());
        observed.put("cluster_id", got.getClusterId());
        observed.put("body", Session.text(delivery.getBody()));
        observed.put("exchange", delivery.getEnvelope().getExchange());
        observed.put("routing_key", delivery.getEnvelope().getRoutingKey());
        observed.put("redelivered", delivery.getEnvelope().isRedeliver());
        return observed;
    }

    private static Object headerValues(Session session) throws Exception {
        Map<String, Object> headers = new HashMap<>();
        headers.put("true", true);
        headers.put("false", false);
        headers.put("byte", (byte) -8);
        headers.put("short", (short) -300);
        headers.put("int", -100_000);
        headers.put("long", 1L << 40);
        headers.put("float", 0.5f);
        headers.put("double", 1.1);
        headers.put("decimal", new BigDecimal("1.25"));
        headers.put("text", "häre");
        headers.put("empty", "");
        headers.put("binary", new byte[] {0x00, 0x01, (byte) 0xff});
        headers.put("timestamp", new Date(TIMESTAMP * 1000));
        headers.put("void", null);
        headers.put("list", Arrays.asList(1, "two", true, null, List.of(3)));
        headers.put("table", Map.of("inner", Map.of("deep", 7)));
        Delivery delivery = throughQueue(session, new BasicProperties.Builder().headers(headers).build(), "");
        return plain(delivery.getProperties().getHeaders());
    }

    private static Delivery throughQueue(Session session, BasicProperties sent, String body) throws Exception {
        Channel channel = session.channel();
        String queue = session.queue(channel);
        Collector collector = Collector.automatic(channel, queue);
        channel.basicPublish("", queue, sent, Session.bytes(body));
        return collector.await(1).get(0);
    }

    /** A field value as JSON shows it: decimals as text, bytes in hex, timestamps in seconds. */
    private static Object plain(Object value) {
        if (value instanceof Map<?, ?> table) {
            Map<Object, Object> inner = new LinkedHashMap<>();
            table.forEach((key, each) -> inner.put(key, plain(each)));
            return inner;
        }
        if (value instanceof List<?> list) {
            List<Object> inner = new ArrayList<>();
            list.forEach(each -> inner.add(plain(each)));
            return inner;
        }
        if (value instanceof LongString || value instanceof BigDecimal) {
            return value.toString();
        }
        if (value instanceof byte[] bytes) {
            return HexFormat.of().formatHex(bytes);
        }
        return value instanceof Date moment ? (Object) (moment.getTime() / 1000) : value;
    }

    private static Object bodySizes(Session session) throws Exception {
        Channel channel = session.channel();
        String queue = session.queue(channel);
        Collector collector = Collector.manual(channel, queue);
        List<Integer> intact = new ArrayList<>();
        int[] sizes = {0, 1, 4088, 4089, 131_064, 131_065, Connecting.MEBIBYTE, 16 * Connecting.MEBIBYTE};
        for (int size : sizes) {
            byte[] sent = Connecting.patterned(size);
            channel.basicPublish("", queue, MessageProperties.MINIMAL_BASIC, sent);
            Delivery delivery = collector.await(1).remove(0);
            channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
            if (Arrays.equals(delivery.getBody(), sent)) {
                intact.add(delivery.getBody().length);
            }
        }
        return Map.of("intact", intact);
    }
}
