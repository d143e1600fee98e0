import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.MessageProperties;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;

/** Publishes what each line of standard input asks for, and answers it once all of that is confirmed: harness/publishers.py. */
public final class ConfirmedPublisher {
    public static void main(String[] arguments) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(arguments[0]);
        factory.setAutomaticRecoveryEnabled(false);
        try (Connection connection = factory.newConnection()) {
            Channel channel = connection.createChannel();
            channel.confirmSelect();
            System.out.println("connected");
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                String[] parts = line.split("\t", -1);
                BasicProperties properties = MessageProperties.PERSISTENT_BASIC;
                if (!parts[4].isEmpty()) {
                    properties = properties.builder().userId(parts[4]).build();
                }
                for (int number = Integer.parseInt(parts[2]); number < Integer.parseInt(parts[3]); number++) {
                    byte[] body = Integer.toString(number).getBytes(StandardCharsets.UTF_8);
                    channel.basicPublish(parts[0], parts[1], properties, body);
                }
                channel.waitForConfirmsOrDie(Session.WAIT_MILLISECONDS);
                System.out.println("confirmed");
            }
        } catch (Exception problem) {
            System.out.println("failed " + problem);
            System.exit(1);
        }
    }
}
