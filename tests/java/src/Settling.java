import com.rabbitmq.client.Channel;
import com.rabbitmq.client.GetResponse;
import java.util.List;
import java.util.Map;

/** Ack, nack, reject and recover: what is gone, what comes back, and where in the queue. */
final class Settling {
    static final Map<String, Driver.Scenario> SCENARIOS = Map.of(
            "ack_multiple", Settling::ackMultiple,
            "ack_all_outstanding", Settling::ackAllOutstanding,
            "nack_requeue_order", Settling::nackRequeueOrder,
            "nack_drops", Settling::nackDrops,
            "reject", Settling::reject,
            "recover", Settling::recover,
            "recover_without_requeue", Settling::recoverWithoutRequeue,
            "unknown_delivery_tag", Settling::unknownDeliveryTag);

    /** A channel that holds five unacknowledged messages of a queue. */
    private record Holding(Channel channel, String queue, List<GetResponse> taken) {
        static Holding five(Session session) throws Exception {
            Channel channel = session.channel();
            String queue = session.queue(channel);
            Session.publish(channel, queue, Consuming.FIVE);
            return new Holding(channel, queue, Session.getAll(channel, queue));
        }

        long tag(int index) {
            return taken.get(index).getEnvelope().getDeliveryTag();
        }
    }

    private static Object ackMultiple(Session session) throws Exception {
        Holding held = Holding.five(session);
        held.channel.basicAck(held.tag(2), true);
        held.channel.close();
        return Map.of("back", Session.seenAgain(session.channel(), held.queue, 2));
    }

    private static Object ackAllOutstanding(Session session) throws Exception {
        Holding held = Holding.five(session);
        held.channel.basicAck(0, true);
        // What was left would come back, and before what is published behind it.
        held.channel.basicRecover(true);
        Session.publish(held.channel, held.queue, "marker");
        return Map.of("left", Session.drain(held.channel, held.queue).indexOf("marker"));
    }

    private static Object nackRequeueOrder(Session session) throws Exception {
        Holding held = Holding.five(session);
        held.channel.basicNack(held.tag(4), true, true);
        List<GetResponse> again = Session.getAll(held.channel, held.queue);
        for (int index : new int[] {3, 1}) {
            held.channel.basicNack(again.get(index).getEnvelope().getDeliveryTag(), false, true);
        }
        return Map.of("all", Session.marked(again), "middle", Session.seen(held.channel, held.queue));
    }

    private static Object nackDrops(Session session) throws Exception {
        Holding held = Holding.five(session);
        held.channel.basicNack(held.tag(2), true, false);
        held.channel.close();
        return Map.of("back", Session.seenAgain(session.channel(), held.queue, 2));
    }

    private static Object reject(Session session) throws Exception {
        Holding held = Holding.five(session);
        held.channel.basicReject(held.tag(0), false);
        held.channel.basicReject(held.tag(1), true);
        return Map.of("back", Session.seen(held.channel, held.queue));
    }

    private static Object recover(Session session) throws Exception {
        Holding held = Holding.five(session);
        held.channel.basicRecover(true);
        return Map.of("back", Session.seen(held.channel, held.queue));
    }

    private static Object recoverWithoutRequeue(Session session) throws Exception {
        return session.connectionRefused(channel -> channel.basicRecover(false));
    }

    private static Object unknownDeliveryTag(Session session) throws Exception {
        return session.refusedEach(Map.of(
                "ack", channel -> channel.basicAck(5, false),
                "ack_multiple", channel -> channel.basicAck(5, true),
                "nack", channel -> channel.basicNack(5, false, true),
                "reject", channel -> channel.basicReject(5, true),
                "twice", channel -> {
                    String queue = session.queue(channel);
                    Session.publish(channel, queue, "once");
                    long tag = channel.basicGet(queue, false).getEnvelope().getDeliveryTag();
                    channel.basicAck(tag, false);
                    channel.basicAck(tag, false);
                }));
    }
}
