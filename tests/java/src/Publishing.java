import com.rabbitmq.client.Channel;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.MessageProperties;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/** Confirms, returns and transactions. */
final class Publishing {
    static final Map<String, Driver.Scenario> SCENARIOS = Map.of(
            "confirms", Publishing::confirms,
            "mandatory_return", Publishing::mandatoryReturn,
            "immediate", Publishing::immediate,
            "tx_commit", Publishing::txCommit,
            "tx_rollback", Publishing::txRollback,
            "tx_refused", Publishing::txRefused,
            "tx_returns", Publishing::txReturns);

    private record Confirm(String kind, long tag, boolean multiple) {}

    private static Object confirms(Session session) throws Exception {
        Channel channel = session.channel();
        String queue = session.queue(channel);
        channel.confirmSelect();
        BlockingQueue<Confirm> arriving = new LinkedBlockingQueue<>();
        channel.addConfirmListener(
                (tag, multiple) -> arriving.add(new Confirm("acked", tag, multiple)),
                (tag, multiple) -> arriving.add(new Confirm("nacked", tag, multiple)));
        String[] bodies = Session.numbered(1000);
        Session.publish(channel, queue, bodies);
        // Index 0 stays empty, as delivery tags count from 1.
        String[] outcomes = new String[bodies.length + 1];
        for (int open = bodies.length; open > 0; ) {
            Confirm confirm = Collector.inTime(arriving);
            for (int tag = (int) confirm.tag(); tag > 0 && outcomes[tag] == null; tag--) {
                outcomes[tag] = confirm.kind();
                open--;
                if (!confirm.multiple()) {
                    break;
                }
            }
        }
        int stored = Session.ready(channel, queue);
        return Map.of(
                "acked", count(outcomes, "acked"),
                "nacked", count(outcomes, "nacked"),
                "stored", stored,
                "in_order", Session.drain(channel, queue).equals(List.of(bodies)));
    }

    private static int count(String[] outcomes, String wanted) {
        int count = 0;
        for (String outcome : outcomes) {
            count += wanted.equals(outcome) ? 1 : 0;
        }
        return count;
    }

    private static Object mandatoryReturn(Session session) throws Exception {
        Channel channel = session.channel();
        String queue = session.queue(channel);
        String missing = session.name("missing");
        BlockingQueue<String> arriving = new LinkedBlockingQueue<>();
        channel.addReturnListener(message -> arriving.add(
                "return " + message.getReplyCode() + " " + message.getReplyText() + " " + Session.text(message.getBody())));
        channel.addConfirmListener((tag, multiple) -> arriving.add("ack"), (tag, multiple) -> arriving.add("nack"));
        channel.confirmSelect();
        List<String> events = new ArrayList<>();
        publishAwaited(channel, missing, "returned", true, arriving, events);
        publishAwaited(channel, queue, "kept", true, arriving, events);
        publishAwaited(channel, missing, "dropped", false, arriving, events);
        return Map.of("events", events, "received", Session.drain(channel, queue));
    }

    /** Publishes one message and notes all that happens up to its confirm. */
    private static void publishAwaited(
            Channel channel, String key, String body, boolean mandatory, BlockingQueue<String> arriving, List<String> events)
            throws Exception {
        channel.basicPublish("", key, mandatory, MessageProperties.MINIMAL_BASIC, Session.bytes(body));
        String event;
        do {
            event = Collector.inTime(arriving);
            events.add(event);
        } while (event.startsWith("return"));
    }

    private static Object immediate(Session session) throws Exception {
        return session.connectionRefused(
                channel -> channel.basicPublish("", "any", false, true, MessageProperties.MINIMAL_BASIC, new byte[0]));
    }

    private static Object txCommit(Session session) throws Exception {
        Channel channel = session.channel();
        Channel observer = session.channel();
        String queue = session.queue(channel);
        session.store(queue, "acked");
        channel.txSelect();
        GetResponse got = Session.getAll(channel, queue).get(0);
        Session.publish(channel, queue, "1", "2");
        channel.basicAck(got.getEnvelope().getDeliveryTag(), false);
        int before = Session.ready(observer, queue);
        channel.txCommit();
        channel.close();
        return Map.of("before", before, "after", Session.drain(observer, queue));
    }

    private static Object txRollback(Session session) throws Exception {
        Channel channel = session.channel();
        Channel observer = session.channel();
        String queue = session.queue(channel);
        session.store(queue, "kept");
        channel.txSelect();
        GetResponse got = Session.getAll(channel, queue).get(0);
        Session.publish(channel, queue, "1", "2");
        channel.basicAck(got.getEnvelope().getDeliveryTag(), false);
        channel.txRollback();
        int afterRollback = Session.ready(observer, queue);
        channel.close();
        return Map.of("after_rollback", afterRollback, "back", Session.seenAgain(observer, queue, 1));
    }

    private static Object txRefused(Session session) throws Exception {
        return session.refusedEach(Map.of(
                "confirm_then_tx", channel -> {
                    channel.confirmSelect();
                    channel.txSelect();
                },
                "tx_then_confirm", channel -> {
                    channel.txSelect();
                    channel.confirmSelect();
                },
                "commit_without_select", Channel::txCommit,
                "rollback_without_select", Channel::txRollback));
    }

    private static Object txReturns(Session session) throws Exception {
        Channel channel = session.channel();
        BlockingQueue<String> returns = new LinkedBlockingQueue<>();
        channel.addReturnListener(message -> returns.add(Session.text(message.getBody())));
        channel.txSelect();
        String missing = session.name("missing");
        channel.basicPublish("", missing, true, MessageProperties.MINIMAL_BASIC, Session.bytes("returned"));
        Session.roundTrip(channel);
        List<String> before = List.copyOf(returns);
        channel.txCommit();
        return Map.of("before", before, "with_commit", List.copyOf(returns));
    }
}
