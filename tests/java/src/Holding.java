import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.MessageProperties;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;

/**
 * Holds one connection to the URI that it is given. Each line of standard input goes through a queue there, confirmed, and
 * to standard output. At the end of the input the connection is closed.
 */
public final class Holding {
    private Holding() {}

    public static void main(String[] arguments) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(arguments[0]);
        Tls.configure(factory, arguments[0]);
        // A connection that was lost is not to be hidden.
        factory.setAutomaticRecoveryEnabled(false);
        Connection connection = factory.newConnection();
        Channel channel = connection.createChannel();
        String queue = channel.queueDeclare().getQueue();
        channel.confirmSelect();
        System.out.println("connected");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            channel.basicPublish("", queue, MessageProperties.MINIMAL_BASIC, line.getBytes(StandardCharsets.UTF_8));
            channel.waitForConfirmsOrDie(Session.WAIT_MILLISECONDS);
            System.out.println(new String(channel.basicGet(queue, true).getBody(), StandardCharsets.UTF_8));
        }
        connection.close();
        System.exit(0); // The client's threads would keep the process alive.
    }
}
