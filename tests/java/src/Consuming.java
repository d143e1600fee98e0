import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.GetResponse;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** Getting, consuming, prefetch, cancelling, and who gets what among consumers. */
final class Consuming {
    static final Map<String, Driver.Scenario> SCENARIOS = Map.ofEntries(
            Map.entry("get", Consuming::get),
            Map.entry("consume_and_ack", Consuming::consumeAndAck),
            Map.entry("consume_without_ack", Consuming::consumeWithoutAck),
            Map.entry("prefetch_per_consumer", Consuming::prefetchPerConsumer),
            Map.entry("prefetch_of_later_consumers_only", Consuming::prefetchOfLaterConsumersOnly),
            Map.entry("prefetch_global", Consuming::prefetchGlobal),
            Map.entry("cancel", Consuming::cancel),
            Map.entry("server_cancel", Consuming::serverCancel),
            Map.entry("consumer_priority", Consuming::consumerPriority),
            Map.entry("exclusive_consumer", Consuming::exclusiveConsumer),
            Map.entry("duplicate_consumer_tag", Consuming::duplicateConsumerTag),
            Map.entry("requeue_on_close", Consuming::requeueOnClose),
            Map.entry("reused_tag_without_a_queue", Consuming::reusedTagWithoutAQueue),
            Map.entry("tags_of_get_and_deliver", Consuming::tagsOfGetAndDeliver),
            Map.entry("prefetch_does_not_limit", Consuming::prefetchDoesNotLimit),
            Map.entry("prefetch_raised", Consuming::prefetchRaised));

    static final String[] FIVE = {"1", "2", "3", "4", "5"};

    private static Object get(Session session) throws Exception {
        Channel channel = session.channel();
        String queue = session.queue(channel);
        boolean empty = channel.basicGet(queue, false) == null;
        Session.publish(channel, queue, "1", "2", "3");
        List<Object> got = new ArrayList<>();
        boolean keyIntact = true;
        for (int count = 0; count < 3; count++) {
            GetResponse message = channel.basicGet(queue, false);
            var envelope = message.getEnvelope();
            got.add(List.of(
                    envelope.getDeliveryTag(), Session.text(message.getBody()), envelope.isRedeliver(),
                    message.getMessageCount()));
            keyIntact &= envelope.getExchange().isEmpty() && envelope.getRoutingKey().equals(queue);
            channel.basicAck(envelope.getDeliveryTag(), false);
        }
        return Map.of("empty", empty, "got", got, "key_intact", keyIntact, "left", Session.ready(channel, queue));
    }

    private static Object consumeAndAck(Session session) throws Exception {
        Channel channel = session.channel();
        String queue = session.queue(channel);
        Collector collector = Collector.manual(channel, queue);
        Session.publish(channel, queue, FIVE);
        List<Long> tags = new ArrayList<>();
        List<Boolean> redelivered = new ArrayList<>();
        for (Delivery delivery : collector.await(5)) {
            tags.add(delivery.getEnvelope().getDeliveryTag());
            redelivered.add(delivery.getEnvelope().isRedeliver());
            channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
        }
        channel.close();
        return Map.of(
                "bodies", collector.bodies(), "tags", tags, "redelivered", redelivered,
                "left", Session.ready(session.channel(), queue));
    }

    private static Object consumeWithoutAck(Session session) throws Exception {
        Channel channel = session.channel();
        String queue = session.queue(channel);
        Session.publish(channel, queue, FIVE);
        Collector collector = Collector.automatic(channel, queue);
        collector.await(5);
        channel.close();
        return Map.of("bodies", collector.bodies(), "left", Session.ready(session.channel(), queue));
    }

    private static Object prefetchPerConsumer(Session session) throws Exception {
        Channel channel = session.channel();
        String queue = session.queue(channel);
        Session.publish(channel, queue, Session.numbered(10));
        channel.basicQos(3);
        Collector collector = Collector.manual(channel, queue);
        collector.await(3);
        int firstReady = Session.ready(channel, queue);
        int first = collector.await(3).size();
        channel.basicAck(collector.deliveries.get(0).getEnvelope().getDeliveryTag(), false);
        collector.await(4);
        int readyAfterAck = Session.ready(channel, queue);
        return Map.of(
                "first", first, "ready", firstReady,
                "after_ack", collector.await(4).size(), "ready_after_ack", readyAfterAck);
    }

    private static Object prefetchOfLaterConsumersOnly(Session session) throws Exception {
        Channel channel = session.channel();
        String earlierQueue = session.queue(channel, "earlier");
        String laterQueue = session.queue(channel, "later");
        for (String queue : List.of(earlierQueue, laterQueue)) {
            Session.publish(channel, queue, FIVE);
        }
        Collector earlier = Collector.manual(channel, earlierQueue);
        channel.basicQos(2);
        Collector later = Collector.manual(channel, laterQueue);
        earlier.await(5);
        later.await(2);
        return Map.of(
                "earlier_ready", Session.ready(channel, earlierQueue), "later_ready", Session.ready(channel, laterQueue));
    }

    private static Object prefetchGlobal(Session session) throws Exception {
        Channel channel = session.channel();
        List<String> queues = List.of(session.queue(channel, "a"), session.queue(channel, "b"));
        for (String queue : queues) {
            Session.publish(channel, queue, FIVE);
        }
        channel.basicQos(3, true);
        Collector first = Collector.manual(channel, queues.get(0));
        Collector second = Collector.manual(channel, queues.get(1));
        Collector.awaitBoth(first, second, 3);
        int left = Session.ready(channel, queues.get(0)) + Session.ready(channel, queues.get(1));
        // What a queue no longer has may still be on its way.
        int delivered = Collector.awaitBoth(first, second, 2 * FIVE.length - left);
        return Map.of("delivered", delivered, "ready", left);
    }

    private static Object cancel(Session session) throws Exception {
        Channel channel = session.channel();
        String queue = session.queue(channel);
        Collector collector = Collector.manual(channel, queue);
        Session.publish(channel, queue, "before");
        Delivery before = collector.await(1).get(0);
        channel.basicCancel(collector.tag);
        session.store(queue, "after");
        AMQP.Queue.DeclareOk state = channel.queueDeclarePassive(queue);
        collector.await(0);
        channel.basicAck(before.getEnvelope().getDeliveryTag(), false);
        return Map.of(
                "bodies", collector.bodies(), "ready", state.getMessageCount(), "consumers", state.getConsumerCount());
    }

    private static Object serverCancel(Session session) throws Exception {
        Channel channel = session.channel();
        String queue = session.queue(channel);
        Collector collector = new Collector(channel, queue, false, "watcher", false, null);
        session.channel().queueDelete(queue);
        String cancelled = collector.awaitCancel();
        Session.roundTrip(channel);
        return Map.of("cancelled", List.of(cancelled), "channel_open", channel.isOpen());
    }

    private static Object consumerPriority(Session session) throws Exception {
        Channel channel = session.channel();
        String queue = session.queue(channel);
        channel.basicQos(3);
        Collector low = Collector.manual(channel, queue);
        Collector high = new Collector(channel, queue, false, "", false, Map.of("x-priority", 10));
        Session.publish(channel, queue, FIVE);
        high.await(3);
        low.await(2);
        return Map.of("high", high.bodies(), "low", low.bodies());
    }

    private static Object exclusiveConsumer(Session session) throws Exception {
        String queue = session.queue(session.channel());
        Channel holder = session.channel();
        String tag = new Collector(holder, queue, false, "", true, null).tag;
        Object second = session.refused(channel -> Collector.manual(channel, queue));
        holder.basicCancel(tag);
        Collector.manual(holder, queue);
        Object exclusiveSecond = session.refused(channel -> new Collector(channel, queue, false, "", true, null));
        return Map.of("second", second, "exclusive_second", exclusiveSecond);
    }

    private static Object duplicateConsumerTag(Session session) throws Exception {
        String queue = session.queue(session.channel());
        return session.connectionRefused(channel -> {
            for (int count = 0; count < 2; count++) {
                new Collector(channel, queue, false, "twice", false, null);
            }
        });
    }

    private static Object requeueOnClose(Session session) throws Exception {
        session.connect();
        Channel holder = session.connect().createChannel();
        String queue = session.queue(holder);
        Session.publish(holder, queue, "1", "2", "3");
        Session.getAll(holder, queue);
        holder.close();
        Connection other = session.connect();
        List<List<Object>> afterChannel = Session.seenAgain(other.createChannel(), queue, 3);
        other.close();
        List<List<Object>> afterConnection = Session.seenAgain(session.channel(), queue, 3);
        return Map.of("after_channel", afterChannel, "after_connection", afterConnection);
    }

    private static Object reusedTagWithoutAQueue(Session session) throws Exception {
        String queue = session.queue(session.channel());
        return session.refused(channel -> {
            new Collector(channel, queue, false, "twice", false, null);
            new Collector(channel, "", false, "twice", false, null);
        });
    }

    private static Object tagsOfGetAndDeliver(Session session) throws Exception {
        Channel channel = session.channel();
        String got = session.queue(channel, "got");
        String delivered = session.queue(channel, "delivered");
        Session.publish(channel, got, "1", "2");
        List<Long> tags = new ArrayList<>();
        tags.add(channel.basicGet(got, false).getEnvelope().getDeliveryTag());
        Collector collector = Collector.manual(channel, delivered);
        Session.publish(channel, delivered, "3");
        tags.add(collector.await(1).get(0).getEnvelope().getDeliveryTag());
        tags.add(channel.basicGet(got, false).getEnvelope().getDeliveryTag());
        Channel other = session.channel();
        Session.publish(other, got, "4");
        return Map.of("tags", tags, "on_another_channel", other.basicGet(got, false).getEnvelope().getDeliveryTag());
    }

    private static Object prefetchDoesNotLimit(Session session) throws Exception {
        Channel channel = session.channel();
        String automatic = session.queue(channel, "automatic");
        String unlimited = session.queue(channel, "unlimited");
        String got = session.queue(channel, "got");
        for (String queue : List.of(automatic, unlimited, got)) {
            Session.publish(channel, queue, FIVE);
        }
        channel.basicQos(1);
        Collector.automatic(channel, automatic).await(5);
        List<String> gets = new ArrayList<>();
        for (int count = 0; count < 2; count++) {
            gets.add(Session.text(channel.basicGet(got, false).getBody()));
        }
        channel.basicQos(0);
        int taken = Collector.manual(channel, unlimited).await(5).size();
        return Map.of("get", gets, "unlimited", taken, "automatic", Session.ready(channel, automatic));
    }

    private static Object prefetchRaised(Session session) throws Exception {
        Channel channel = session.channel();
        String queue = session.queue(channel);
        Session.publish(channel, queue, FIVE);
        channel.basicQos(1, true);
        Collector collector = Collector.manual(channel, queue);
        collector.await(1);
        List<Integer> left = new ArrayList<>(List.of(Session.ready(channel, queue)));
        channel.basicQos(3, true);
        collector.await(3);
        left.add(Session.ready(channel, queue));
        channel.basicQos(0, true);
        collector.await(5);
        left.add(Session.ready(channel, queue));
        return Map.of("left", left, "bodies", collector.bodies());
    }
}
