import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AlreadyClosedException;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** What every scenario is handed: connections to the target, names of its own, and ways to observe. */
final class Session implements AutoCloseable {
    /** As that of the tests that start this (harness/patience.py). */
    static final int WAIT_MILLISECONDS = 1000 * Integer.parseInt(System.getenv().getOrDefault("LEVERET_PATIENCE", "180"));

    static final String ACCEPTED = "accepted";

    interface Action {
        void on(Channel channel) throws Exception;
    }

    interface Change {
        void to(ConnectionFactory factory);
    }

    private final String uri;
    private final String prefix;
    private final List<Connection> connections = new ArrayList<>();

    Session(String uri, String prefix) {
        this.uri = uri;
        this.prefix = prefix;
    }

    /** A queue's or exchange's name that no other run of any scenario uses. */
    String name(String shortName) {
        return prefix + shortName;
    }

    Connection connect(Change change) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(uri);
        Tls.configure(factory, uri);
        factory.setAutomaticRecoveryEnabled(false);
        change.to(factory);
        Connection connection = factory.newConnection();
        connections.add(connection);
        return connection;
    }

    Connection connect() throws Exception {
        return connect(factory -> {});
    }

    /** A channel on the scenario's main connection, which is made on first use. */
    Channel channel() throws Exception {
        Connection connection = connections.isEmpty() ? connect() : connections.get(0);
        return connection.createChannel();
    }

    /** Declares a queue of this run and returns its full name. */
    String queue(Channel channel, String shortName) throws IOException {
        return channel.queueDeclare(name(shortName), false, false, false, null).getQueue();
    }

    String queue(Channel channel) throws IOException {
        return queue(channel, "q");
    }

    /** Runs the action on a fresh channel; returns the error that closed it, the connection staying usable. */
    Object refused(Action action) throws Exception {
        Channel channel = channel();
        try {
            action.on(channel);
            roundTrip(channel);
        } catch (IOException | AlreadyClosedException problem) {
            Object answer = closeOf(channel.getCloseReason());
            channel().queueDeclare();
            return answer;
        }
        channel.close();
        return ACCEPTED;
    }

    /**
     * What {@link #refused} gives as soon as that is not {@code before}: RabbitMQ 4 deletes an exclusive queue some time after it has
     * answered its owner's close.
     */
    Object refusedOtherwise(Action action, Object before) throws Exception {
        long deadline = System.nanoTime() + WAIT_MILLISECONDS * 1_000_000L;
        Object now = refused(action);
        while (now.equals(before) && System.nanoTime() < deadline) {
            Thread.sleep(10);
            now = refused(action);
        }
        return now;
    }

    /** The answers to several attempts, each made by {@link #refused} and one after the other. */
    Map<String, Object> refusedEach(Map<String, Action> attempts) throws Exception {
        Map<String, Object> answers = new LinkedHashMap<>();
        for (Map.Entry<String, Action> attempt : attempts.entrySet()) {
            answers.put(attempt.getKey(), refused(attempt.getValue()));
        }
        return answers;
    }

    /** Runs the action on a channel of a fresh connection; returns the error that closed it, or says that it closed the channel alone. */
    Object connectionRefused(Action action) throws Exception {
        Connection connection = connect();
        Channel channel = connection.createChannel();
        try {
            action.on(channel);
            roundTrip(channel);
        } catch (IOException | AlreadyClosedException problem) {
            if (!connection.isOpen()) {
                return closeOf(connection.getCloseReason());
            }
            Map<String, Object> answer = new LinkedHashMap<>(closeOf(channel.getCloseReason()));
            answer.put("closed", "channel");
            return answer;
        }
        return ACCEPTED;
    }

    /** Publishes and returns once the queue has them all, for what is to be counted or taken on another channel. */
    void store(String queue, String... bodies) throws Exception {
        Channel channel = channel();
        channel.confirmSelect();
        publish(channel, queue, bodies);
        channel.waitForConfirmsOrDie(WAIT_MILLISECONDS);
        channel.close();
    }

    @Override
    public void close() {
        connections.forEach(connection -> connection.abort(WAIT_MILLISECONDS));
    }

    static Map<String, Object> closeOf(ShutdownSignalException signal) {
        if (signal.getReason() instanceof AMQP.Channel.Close close) {
            return Map.of("code", close.getReplyCode(), "text", close.getReplyText());
        }
        if (signal.getReason() instanceof AMQP.Connection.Close close) {
            return Map.of("code", close.getReplyCode(), "text", close.getReplyText());
        }
        throw signal;
    }

    /** Returns once the server has handled everything sent on the channel, throwing what it objected to. */
    static void roundTrip(Channel channel) throws IOException {
        channel.exchangeDeclarePassive("amq.direct");
    }

    static void publish(Channel channel, String queue, String... bodies) throws IOException {
        for (String body : bodies) {
            channel.basicPublish("", queue, MessageProperties.MINIMAL_BASIC, bytes(body));
        }
    }

    static int ready(Channel channel, String queue) throws IOException {
        return channel.queueDeclarePassive(queue).getMessageCount();
    }

    /** Gets everything in the queue, in order. */
    static List<GetResponse> getAll(Channel channel, String queue, boolean automatic) throws IOException {
        List<GetResponse> taken = new ArrayList<>();
        for (GetResponse got = channel.basicGet(queue, automatic); got != null; ) {
            taken.add(got);
            got = channel.basicGet(queue, automatic);
        }
        return taken;
    }

    static List<GetResponse> getAll(Channel channel, String queue) throws IOException {
        return getAll(channel, queue, false);
    }

    /** Gets and acknowledges everything in the queue; the bodies in order. */
    static List<String> drain(Channel channel, String queue) throws IOException {
        return getAll(channel, queue, true).stream().map(got -> text(got.getBody())).toList();
    }

    /** Gets everything in the queue: body and whether it was marked as redelivered. */
    static List<List<Object>> seen(Channel channel, String queue) throws IOException {
        return marked(getAll(channel, queue));
    }

    /** What {@link #seen} gives, once that many are back: a server may answer a close before its queue has the messages. */
    static List<List<Object>> seenAgain(Channel channel, String queue, int count) throws Exception {
        long deadline = System.nanoTime() + WAIT_MILLISECONDS * 1_000_000L;
        while (ready(channel, queue) != count) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError("waited in vain");
            }
            Thread.sleep(10);
        }
        return seen(channel, queue);
    }

    static List<List<Object>> marked(List<GetResponse> taken) {
        return taken.stream().map(got -> List.<Object>of(text(got.getBody()), got.getEnvelope().isRedeliver())).toList();
    }

    static String[] numbered(int count) {
        String[] bodies = new String[count];
        for (int number = 0; number < count; number++) {
            bodies[number] = Integer.toString(number);
        }
        return bodies;
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] body) {
        return new String(body, StandardCharsets.UTF_8);
    }
}
