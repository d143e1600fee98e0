import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Delivery;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** A consumer that keeps what it is given. */
final class Collector {
    final String tag;
    final List<Delivery> deliveries = new ArrayList<>();
    private final BlockingQueue<Delivery> arriving = new LinkedBlockingQueue<>();
    private final BlockingQueue<String> cancelled = new LinkedBlockingQueue<>();

    Collector(Channel channel, String queue, boolean automatic, String tag, boolean exclusive, Map<String, Object> arguments)
            throws IOException {
        this.tag = channel.basicConsume(
                queue, automatic, tag, false, exclusive, arguments,
                (consumer, delivery) -> arriving.add(delivery), cancelled::add);
    }

    /** A consumer with manual acknowledgement. */
    static Collector manual(Channel channel, String queue) throws IOException {
        return new Collector(channel, queue, false, "", false, null);
    }

    /** A consumer whose messages need no acknowledgement. */
    static Collector automatic(Channel channel, String queue) throws IOException {
        return new Collector(channel, queue, true, "", false, null);
    }

    /** Waits until there are at least so many deliveries in all. */
    List<Delivery> await(int count) throws InterruptedException {
        while (deliveries.size() < count) {
            deliveries.add(inTime(arriving));
        }
        arriving.drainTo(deliveries);
        return deliveries;
    }

    /** Waits until there are at least so many deliveries to two of them together; returns how many there are. */
    static int awaitBoth(Collector first, Collector second, int count) throws InterruptedException {
        long deadline = System.nanoTime() + Session.WAIT_MILLISECONDS * 1_000_000L;
        while (first.await(0).size() + second.await(0).size() < count) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError("waited in vain");
            }
            Thread.sleep(10);
        }
        return first.deliveries.size() + second.deliveries.size();
    }

    String awaitCancel() throws InterruptedException {
        return inTime(cancelled);
    }

    List<String> bodies() {
        return deliveries.stream().map(delivery -> Session.text(delivery.getBody())).toList();
    }

    static <T> T inTime(BlockingQueue<T> source) throws InterruptedException {
        T value = source.poll(Session.WAIT_MILLISECONDS, TimeUnit.MILLISECONDS);
        if (value == null) {
            throw new AssertionError("waited in vain");
        }
        return value;
    }
}
