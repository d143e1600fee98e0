import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;

/**
 * Runs scenarios with the Java client: one JSON request a line on standard input, one JSON answer a line on standard
 * output. The first line out lists the scenarios this driver knows. tests/README.md describes the protocol.
 */
public final class Driver {
    /** A scenario returns what it observed, as JSON can hold it, and throws on what it did not expect. */
    interface Scenario {
        Object run(Session session) throws Exception;
    }

    record Request(String scenario, String uri, String prefix) {}

    private static final Gson JSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    public static void main(String[] arguments) throws Exception {
        Map<String, Scenario> scenarios = new TreeMap<>();
        scenarios.putAll(Connecting.SCENARIOS);
        scenarios.putAll(Content.SCENARIOS);
        scenarios.putAll(Exchanges.SCENARIOS);
        scenarios.putAll(Publishing.SCENARIOS);
        scenarios.putAll(Consuming.SCENARIOS);
        scenarios.putAll(Settling.SCENARIOS);
        scenarios.putAll(Queues.SCENARIOS);
        scenarios.putAll(Refusals.SCENARIOS);
        scenarios.putAll(Replies.SCENARIOS);
        scenarios.putAll(Retention.SCENARIOS);
        OUT.println(JSON.toJson(Map.of("scenarios", scenarios.keySet())));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Request request = JSON.fromJson(line, Request.class);
            OUT.println(JSON.toJson(run(scenarios.get(request.scenario()), request)));
        }
        System.exit(0); // The client's threads would keep the process alive.
    }

    private static Map<String, Object> run(Scenario scenario, Request request) {
        try (Session session = new Session(request.uri(), request.prefix())) {
            return Map.of("scenario", request.scenario(), "ok", true, "observed", scenario.run(session));
        } catch (Exception | AssertionError problem) {
            StringWriter trace = new StringWriter();
            problem.printStackTrace(new PrintWriter(trace));
            return Map.of("scenario", request.scenario(), "ok", false, "error", trace.toString());
        }
    }
}
