import com.rabbitmq.client.AuthenticationFailureException;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Opening, negotiating and keeping connections and channels. */
final class Connecting {
    static final int MEBIBYTE = 1 << 20;
    static final Map<String, Driver.Scenario> SCENARIOS = Map.of(
            "connect", Connecting::connect,
            "wrong_password", Connecting::wrongPassword,
            "wrong_vhost", Connecting::wrongVhost,
            "heartbeat_two_seconds", Connecting::heartbeatTwoSeconds,
            "frame_max_4096", session -> throughFramesOf(session, 4096),
            "frame_max_131072", session -> throughFramesOf(session, 131072),
            "many_channels", Connecting::manyChannels,
            "ten_connections", Connecting::tenConnections);

    private static Object connect(Session session) throws Exception {
        Connection connection = session.connect();
        Map<String, Object> properties = connection.getServerProperties();
        return Map.of(
                "capabilities", properties.get("capabilities"),
                "properties", new TreeSet<>(properties.keySet()),
                "channel_max", connection.getChannelMax(),
                "frame_max", connection.getFrameMax(),
                "heartbeat", connection.getHeartbeat());
    }

    private static Object wrongPassword(Session session) throws Exception {
        try {
            session.connect(factory -> factory.setPassword("not-the-password"));
        } catch (AuthenticationFailureException refused) {
            return Map.of("text", refused.getMessage());
        }
        return Session.ACCEPTED;
    }

    private static Object wrongVhost(Session session) throws Exception {
        try {
            session.connect(factory -> factory.setVirtualHost("nowhere"));
        } catch (IOException refused) {
            return Session.closeOf((ShutdownSignalException) refused.getCause());
        }
        return Session.ACCEPTED;
    }

    private static Object heartbeatTwoSeconds(Session session) throws Exception {
        Connection connection = session.connect(factory -> factory.setRequestedHeartbeat(2));
        // The client closes the connection should the server's heartbeats fail to arrive, as the server does for its own.
        Thread.sleep(5_000);
        Session.roundTrip(connection.createChannel());
        return Map.of("heartbeat", connection.getHeartbeat(), "alive", connection.isOpen());
    }

    private static Object throughFramesOf(Session session, int frameMax) throws Exception {
        Connection connection = session.connect(factory -> factory.setRequestedFrameMax(frameMax));
        Channel channel = connection.createChannel();
        String queue = session.queue(channel);
        Collector collector = Collector.automatic(channel, queue);
        int[] sizes = {0, 1, frameMax - 8, frameMax - 7, MEBIBYTE};
        for (int size : sizes) {
            channel.basicPublish("", queue, MessageProperties.MINIMAL_BASIC, patterned(size));
        }
        List<Integer> intact = new ArrayList<>();
        List<Delivery> got = collector.await(sizes.length);
        for (int index = 0; index < sizes.length; index++) {
            if (Arrays.equals(got.get(index).getBody(), patterned(sizes[index]))) {
                intact.add(sizes[index]);
            }
        }
        return Map.of("frame_max", connection.getFrameMax(), "intact", intact);
    }

    private static Object manyChannels(Session session) throws Exception {
        List<Channel> channels = new ArrayList<>();
        List<String> queues = new ArrayList<>();
        for (int number = 0; number < 500; number++) {
            channels.add(session.channel());
            queues.add(channels.get(number).queueDeclare().getQueue());
        }
        for (int number = 0; number < channels.size(); number++) {
            Session.publish(channels.get(number), queues.get(number), Integer.toString(number));
        }
        int own = 0;
        for (int number = 0; number < channels.size(); number++) {
            List<String> bodies = Session.drain(channels.get(number), queues.get(number));
            own += bodies.equals(List.of(Integer.toString(number))) ? 1 : 0;
        }
        return Map.of("channels", channels.size(), "own_messages", own);
    }

    private static Object tenConnections(Session session) throws Exception {
        String queue = session.queue(session.channel());
        ExecutorService publishers = Executors.newFixedThreadPool(10);
        List<Future<?>> running = new ArrayList<>();
        for (int publisher = 0; publisher < 10; publisher++) {
            Channel channel = session.connect().createChannel();
            int number = publisher;
            running.add(publishers.submit(() -> publishHundred(channel, queue, number)));
        }
        for (Future<?> each : running) {
            each.get();
        }
        publishers.shutdown();
        Channel channel = session.channel();
        int stored = Session.ready(channel, queue);
        Collector collector = Collector.automatic(channel, queue);
        collector.await(1000);
        Map<String, List<String>> byPublisher = new HashMap<>();
        for (String body : collector.bodies()) {
            String[] parts = body.split(" ");
            byPublisher.computeIfAbsent(parts[0], key -> new ArrayList<>()).add(parts[1]);
        }
        List<String> order = List.of(Session.numbered(100));
        return Map.of("stored", stored, "in_order", byPublisher.values().stream().filter(order::equals).count());
    }

    private static Object publishHundred(Channel channel, String queue, int publisher) throws Exception {
        channel.confirmSelect();
        for (int number = 0; number < 100; number++) {
            Session.publish(channel, queue, publisher + " " + number);
        }
        channel.waitForConfirmsOrDie(Session.WAIT_MILLISECONDS);
        return null;
    }

    /** A body whose every part differs, so that a lost or swapped frame shows. */
    static byte[] patterned(int size) {
        ByteBuffer body = ByteBuffer.allocate(size + 4);
        for (int number = 0; body.position() < size; number++) {
            body.putInt(number);
        }
        return Arrays.copyOf(body.array(), size);
    }
}
