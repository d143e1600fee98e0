import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.springframework.amqp.AmqpException;
import org.springframework.amqp.rabbit.annotation.EnableRabbit;
import org.springframework.amqp.rabbit.annotation.RabbitListener;
import org.springframework.amqp.rabbit.config.SimpleRabbitListenerContainerFactory;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory;
import org.springframework.amqp.rabbit.connection.CorrelationData;
import org.springframework.amqp.rabbit.core.RabbitAdmin;
import org.springframework.amqp.rabbit.core.RabbitTemplate;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;

/** Spring AMQP as an application configures it: a listener container, and a template with correlated confirms. */
@Configuration
@EnableRabbit
public class Application {
    private static final int WINDOW = 10;
    private static final long PAUSE_MILLIS = 100;
    private static final long RECOVERY_MILLIS = 1000;
    private static final int PREFETCH = 20;
    /** Longer than any outage of the tests; Spring itself nacks what a lost connection leaves unconfirmed. */
    private static final long CONFIRM_SECONDS = 120;

    private static String uri;
    private static String queueName;
    private static Path pause;

    public static void main(String[] arguments) throws InterruptedException {
        uri = arguments[0];
        queueName = arguments[1];
        pause = Path.of(arguments[2]);
        try (var context = new AnnotationConfigApplicationContext(Application.class)) {
            publish(context.getBean(RabbitTemplate.class));
        }
    }

    @Bean
    public CachingConnectionFactory connectionFactory() {
        var factory = new CachingConnectionFactory(URI.create(uri));
        factory.setPublisherConfirmType(CachingConnectionFactory.ConfirmType.CORRELATED);
        return factory;
    }

    @Bean
    public RabbitAdmin admin(CachingConnectionFactory factory) {
        return new RabbitAdmin(factory);
    }

    @Bean
    public org.springframework.amqp.core.Queue queue() {
        return new org.springframework.amqp.core.Queue(queueName, true);
    }

    @Bean
    public SimpleRabbitListenerContainerFactory rabbitListenerContainerFactory(CachingConnectionFactory factory) {
        var containers = new SimpleRabbitListenerContainerFactory();
        containers.setConnectionFactory(factory);
        containers.setPrefetchCount(PREFETCH);
        containers.setRecoveryInterval(RECOVERY_MILLIS);
        return containers;
    }

    @Bean
    public RabbitTemplate template(CachingConnectionFactory factory) {
        var template = new RabbitTemplate(factory);
        // As its documents advise: an alarm then does not block the consumers' connection.
        template.setUsePublisherConnection(true);
        return template;
    }

    @RabbitListener(queues = "#{queue.name}")
    public void receive(String body) throws InterruptedException {
        while (Files.exists(pause)) {
            Thread.sleep(PAUSE_MILLIS);
        }
        report("received", body);
    }

    private static void publish(RabbitTemplate template) throws InterruptedException {
        Queue<Integer> again = new ArrayDeque<>();
        int next = 0;
        while (true) {
            Map<Integer, CorrelationData> batch = new LinkedHashMap<>();
            while (batch.size() < WINDOW) {
                int number = again.isEmpty() ? next++ : again.remove();
                var correlation = new CorrelationData(Integer.toString(number));
                batch.put(number, correlation);
                try {
                    template.convertAndSend("", queueName, Integer.toString(number), correlation);
                } catch (AmqpException error) {
                    batch.remove(number);
                    again.add(number);
                    Thread.sleep(RECOVERY_MILLIS);
                    break;
                }
            }
            for (var each : batch.entrySet()) {
                if (isConfirmed(each.getValue())) {
                    report("confirmed", each.getKey().toString());
                } else {
                    again.add(each.getKey());
                }
            }
            Thread.sleep(PAUSE_MILLIS);
        }
    }

    private static boolean isConfirmed(CorrelationData correlation) throws InterruptedException {
        try {
            return correlation.getFuture().get(CONFIRM_SECONDS, TimeUnit.SECONDS).isAck();
        } catch (ExecutionException | TimeoutException error) {
            return false;
        }
    }

    private static void report(String what, String number) {
        synchronized (System.out) {
            System.out.print("{\"" + what + "\": " + number + "}\n");
            System.out.flush();
        }
    }
}
