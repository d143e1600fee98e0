import com.rabbitmq.client.ConnectionFactory;
import java.io.InputStream;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.HashMap;
import java.util.Map;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** What the query of an amqps URI says of TLS, by the name that the Go client has for it. */
final class Tls {
    private Tls() {}

    static void configure(ConnectionFactory factory, String uri) throws Exception {
        Map<String, String> query = query(uri);
        if (!query.containsKey("cacertfile")) {
            return;
        }
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, authority(query.get("cacertfile")).getTrustManagers(), null);
        factory.useSslProtocol(context);
        factory.enableHostnameVerification();
    }

    private static TrustManagerFactory authority(String file) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null);
        try (InputStream input = Files.newInputStream(Path.of(file))) {
            store.setCertificateEntry("authority", CertificateFactory.getInstance("X.509").generateCertificate(input));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        return trust;
    }

    private static Map<String, String> query(String uri) {
        Map<String, String> query = new HashMap<>();
        String text = URI.create(uri).getQuery();
        for (String part : text == null ? new String[0] : text.split("&")) {
            int equals = part.indexOf('=');
            query.put(part.substring(0, equals), part.substring(equals + 1));
        }
        return query;
    }
}
