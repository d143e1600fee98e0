"""Unit tests of the dashboard's independent modules: URLs, number formats, metrics, sparklines, the order of the diagram."""

import pytest

from harness.dashboard import server, window

NAMES = ["", "~", "~~", "a/b", "%2F", "a?b=c&d#e", "..", " ", "\n", "héllo 🐇", "__proto__", "'\"<>"]


@pytest.fixture(scope="module")
def page(window, server):
    window.open(server.http + "/")
    return window


def test_every_name_comes_back_from_its_address(page):
    script = """
        const { here, to } = await import("/dashboard/router.js");
        return args[0].map((name) => {
            history.replaceState(null, "", to(["queues", name, name], { name, page: 2 }));
            const { parts, query } = here();
            return [parts, query.get("name"), query.get("page")];
        });
    """
    # An empty value is left out of a query.
    assert page.run(script, NAMES) == [[["queues", name, name], name or None, "2"] for name in NAMES]


def test_numbers_sizes_and_durations_are_abbreviated(page):
    script = """
        const { bytes, count, duration, known, percent, rate, short } = await import("/dashboard/format.js");
        return [count(1234567), short(9999), short(1234567), rate(0.24), rate(46.8), rate(undefined), bytes(0), bytes(1536),
            bytes(3 * 2 ** 30), duration(0), duration(59_999), duration(3_600_000), duration(90_061_000), percent(1, 3),
            percent(0, 0), known("–"), count(NaN)];
    """
    assert page.run(script) == [
        *("1,234,567", "9,999", "1.2M", "0.2/s", "47/s", "–", "0 B", "1.5 KiB"),
        *("3 GiB", "0 s", "59 s", "1 h", "1 d 1 h", "33.3 %", "–", None, "–"),
    ]


def test_features_are_abbreviated_as_in_rabbitmq_with_an_explanation(page):
    script = """
        const { attributes, features } = await import("/dashboard/format.js");
        const given = { "x-max-length": 5, other: ["a"], "x-message-ttl": 60000 };
        const queue = { durable: true, auto_delete: false, owner_pid_details: {}, arguments: given, policy: "limits" };
        const exchange = { internal: true, auto_delete: true, arguments: { "alternate-exchange": "spare" } };
        return [attributes(queue), features(queue), features(exchange), features({})];
    """
    assert page.run(script) == [
        ["durable", "exclusive"],
        [
            ["D", "", "durable"],
            ["Excl", "", "exclusive"],
            ["TTL", "", "message TTL: 60000 ms"],
            ["Lim", "", "max length: 5 messages"],
            ["Args", "", 'other: ["a"]'],
            ["limits", "good", "policy: limits"],
        ],
        [["AD", "", "auto-delete"], ["I", "", "internal"], ["AE", "", "alternate exchange: spare"]],
        [],
    ]


def test_a_table_has_headings_of_groups_which_span_the_columns_that_are_shown(page):
    script = """
        const { Table } = await import("/dashboard/parts/table.js");
        const column = (title, group, more = {}) => ({ title, group, text: (each) => each[title] ?? "–", ...more });
        const columns = [column("vhost", "Overview"), column("name", "Overview", { isName: true }), column("ready", "Messages"),
            column("total", "Messages"), column("ack", "Rates"), { title: "mode", badges: () => [["C", "", "confirm"], "x"] }];
        const table = new Table({ caption: "", key: (each) => each.name, columns });
        const texts = (row) => [...row.children].filter((each) => !each.hidden).map((each) => each.textContent);
        const look = (item) => {
            table.show([item]);
            const [groups, titles] = table.element.querySelectorAll("thead tr");
            const spans = [...groups.children].map((each) => each.scope === "colgroup" && !each.hidden && each.colSpan);
            const [name] = table.element.querySelectorAll("tbody th[scope=row]");
            return [texts(groups), spans, texts(titles), texts(name.parentNode), name.textContent];
        };
        const badges = (selector) => [...table.element.querySelectorAll(selector)].map((each) => [each.textContent, each.title]);
        return [look({ vhost: "/", name: "a", ready: "1", total: "2" }), look({ vhost: "/", name: "a", total: "2", ack: "3" }),
            badges("abbr.badge"), badges("span.badge")];
    """
    assert page.run(script) == [
        [
            ["Overview", "Messages", ""],
            [2, 2, False, 1],
            ["vhost", "name", "ready", "total", "mode"],
            ["/", "a", "1", "2", "Cx"],
            "a",
        ],
        [
            ["Overview", "Messages", "Rates", ""],
            [2, 1, 1, 1],
            ["vhost", "name", "total", "ack", "mode"],
            ["/", "a", "2", "3", "Cx"],
            "a",
        ],
        [["C", "confirm"]],
        [["x", ""]],
    ]


def test_a_page_that_is_chosen_while_another_is_read_is_read_next(page):
    script = """
        const { list } = await import("/dashboard/parts/list.js");
        const asked = [];
        let answer;
        const fetch = ({ page }) => {
            asked.push(page);
            const items = [{ name: `of page ${page}` }];
            return new Promise((resolve) => (answer = () => resolve({ items, page, pages: 3, found: 150, total: 150 })));
        };
        const columns = [{ title: "name", isName: true, text: ({ name }) => name }];
        const rows = list({ caption: "", columns, key: ({ name }) => name, fetch, isPart: true });
        const read = async (meanwhile = () => {}) => {
            const reading = rows.refresh();
            meanwhile();
            answer();
            await reading;
        };
        await read();
        await read(() => [...rows.element.querySelectorAll("button")].find(({ innerText }) => innerText.startsWith("Next")).click());
        await read();
        return asked;
    """
    assert page.run(script) == [1, 1, 2]


def test_a_slow_list_is_read_again_after_a_change_during_its_read_and_after_a_failure(page):
    script = """
        const { slowly } = await import("/dashboard/parts/slow.js");
        let reads = 0, end;
        const refresh = () => {
            reads += 1;
            return new Promise((resolve, reject) => (end = { resolve, reject }));
        };
        const rows = slowly({ element: document.createElement("div"), refresh }, () => {});
        const read = async (meanwhile) => {
            const reading = rows.refresh();
            meanwhile();
            await reading.catch(() => {});
            return reads;
        };
        return [
            await read(() => (rows.changed(), end.resolve())),
            await read(() => end.reject(new Error("no answer"))),
            await read(() => end.resolve()),
            await read(() => {}),
        ];
    """
    assert page.run(script) == [1, 2, 3, 3]


def test_metrics_are_read_with_their_labels(page):
    script = r"""
        const { Metrics } = await import("/dashboard/metrics.js");
        const metrics = new Metrics('# TYPE a gauge\na 1\nb{x="1",y="q\\"\\\\\\n,z=\\"2"} 2.5e3\nb{x="2"} +Inf\nnonsense\n');
        return [metrics.value("a"), metrics.value("missing") ?? null, metrics.samples("b"), metrics.isProxy];
    """
    labels = {"x": "1", "y": 'q"\\\n,z="2'}
    told = page.run(script)
    # JSON has no infinity.
    assert told == [1, None, [{"labels": labels, "value": 2500}, {"labels": {"x": "2"}, "value": None}], False]


def test_a_line_ends_at_the_right_and_zero_is_at_the_bottom(page):
    script = """
        const { places } = await import("/dashboard/parts/sparkline.js");
        const { Series, ratesBefore } = await import("/dashboard/history.js");
        const series = new Series();
        for (let n = 0; n < 100; n += 1) series.push(n);
        series.push(NaN);
        const samples = [[60, 7000], [40, 5000], [10, 2000], [0, 1000]].map(([sample, timestamp]) => ({ sample, timestamp }));
        return [places([]), places([5]), places([0, 10, 5]).map(([, y]) => y), places([0, 0]).map(([, y]) => y),
            series.points.length, series.last, places(series.points)[0][0],
            ratesBefore({ publish_details: { samples } }, "publish"), ratesBefore(undefined, "publish")];
    """
    told = page.run(script)
    assert told == [[], [[120, 2]], [30, 2, 16], [30, 30], 60, 99, 0, [10, 10], []]


def test_exchanges_that_lead_round_in_circles_are_drawn(page):
    script = """
        const { diagram } = await import("/dashboard/parts/diagram.js");
        const node = (kind, name) => ({ key: `${kind} ${name}`, kind, vhost: "/", name });
        const nodes = [node("queue", "q"), node("exchange", "a"), node("exchange", "b"), node("exchange", "self")];
        const edge = (from, to) => ({ from, to, keys: ["k"], rate: undefined });
        const edges = [edge("exchange a", "exchange b"), edge("exchange b", "exchange a"), edge("exchange b", "queue q"),
            edge("exchange self", "exchange self"), edge("exchange self", "queue q")];
        const drawn = diagram({ nodes: new Map(nodes.map((each) => [each.key, each])), edges });
        const paths = [...drawn.querySelectorAll("path")].map((each) => each.getAttribute("d"));
        const areDrawn = paths.every((path) => /^M[-\\d.]/.test(path) && !path.includes("NaN"));
        const nothing = diagram({ nodes: new Map(), edges: [] });
        return [drawn.querySelectorAll(".node").length, paths.length, areDrawn, nothing];
    """
    assert page.run(script) == [4, 5, True, None]


def test_pages_of_a_spool_and_a_pool_with_long_names_fit_a_phone(page):
    script = """
        const { Metrics } = await import("/dashboard/metrics.js");
        const { History } = await import("/dashboard/history.js");
        const { spool } = await import("/dashboard/views/spool.js");
        const { pool } = await import("/dashboard/views/pool.js");
        const long = "x".repeat(255);
        const names = { user: long, vhost: long, name: long, exchange: long, routing_key: long, reason: long, waits_for: long };
        const each = { ...names, protocol: "mqtt", state: "paused", address: long, cause: long, up: false, oldest_seconds: null };
        // Messages that were refused at the same time.
        const items = [each, each, each];
        const api = { get: async () => items, list: async () => ({ items, page: 1, pages: 1, found: 3, total: 3 }) };
        const metrics = new Metrics("leveret_spool_parked_messages 3\\nleveret_multiplexed_queues 3\\nleveret_pool_clients 3\\n");
        const context = { api, sampler: { metrics, overview: {}, history: new History() }, session: { may: () => true } };
        const look = async (view) => {
            const main = document.getElementById("view").cloneNode();
            main.removeAttribute("hidden");
            main.append(view.element);
            document.body.append(main);
            await view.refresh();
            const outside = document.documentElement.scrollWidth - innerWidth;
            const rows = [...view.element.querySelectorAll("table")].map((table) => table.tBodies[0].rows.length);
            main.remove();
            return [outside, rows];
        };
        return [await look(spool(context)), await look(pool(context))];
    """
    page.become_phone()
    page.reload()
    try:
        # The spool itself has a row for each user and virtual host.
        assert page.run(script) == [[0, [1, 3]], [0, [3]]]
    finally:
        page.become_desktop()


def test_integers_beyond_the_precision_of_a_number_keep_their_digits(page):
    script = """
        const { Api } = await import("/dashboard/api.js");
        const { value } = await import("/dashboard/format.js");
        const fetch = window.fetch;
        window.fetch = async () => new Response('{"a": [9223372036854775807, -9007199254740993, 1e400, 1e20, 0.1, 7], "b": 7}');
        const answer = await new Api(null).post(["any"]).finally(() => (window.fetch = fetch));
        return [value(answer.a), answer.b];
    """
    assert page.run(script) == ["[9223372036854775807,-9007199254740993,null,100000000000000000000,0.1,7]", 7]
