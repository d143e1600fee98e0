import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultSaslConfig;
import com.rabbitmq.client.SocketConfigurators;
import java.io.InputStream;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SNIHostName;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;
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
        KeyManager[] own = query.containsKey("certfile") ? own(query.get("certfile"), query.get("keyfile")) : null;
        context.init(own, trusted(query.get("cacertfile")).getTrustManagers(), null);
        factory.useSslProtocol(context);
        if (query.containsKey("server_name_indication")) {
            SNIHostName name = new SNIHostName(query.get("server_name_indication"));
            factory.setSocketConfigurator(SocketConfigurators.defaultConfigurator().andThen(socket -> {
                SSLParameters parameters = ((SSLSocket) socket).getSSLParameters();
                parameters.setServerNames(List.of(name));
                ((SSLSocket) socket).setSSLParameters(parameters);
            }));
        }
        factory.enableHostnameVerification();
        if ("external".equals(query.get("auth_mechanism"))) {
            factory.setSaslConfig(DefaultSaslConfig.EXTERNAL);
        }
    }

    /** What to show: a certificate and its key, an EC one in PKCS #8. */
    private static KeyManager[] own(String certificate, String key) throws Exception {
        String text = Files.readString(Path.of(key)).replaceAll("-----[A-Z ]+-----", "");
        byte[] der = Base64.getMimeDecoder().decode(text);
        char[] password = {};
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null);
        store.setKeyEntry(
                "own", KeyFactory.getInstance("EC").generatePrivate(new PKCS8EncodedKeySpec(der)), password,
                new Certificate[] {certificate(certificate)});
        KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        keys.init(store, password);
        return keys.getKeyManagers();
    }

    private static TrustManagerFactory trusted(String file) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null);
        store.setCertificateEntry("ca", certificate(file));
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        return trust;
    }

    private static Certificate certificate(String file) throws Exception {
        try (InputStream input = Files.newInputStream(Path.of(file))) {
            return CertificateFactory.getInstance("X.509").generateCertificate(input);
        }
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
