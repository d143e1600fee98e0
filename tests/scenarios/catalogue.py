"""The expected observations of each scenario, word for word as RabbitMQ 3.10 answers; rabbitmq4.py lists where RabbitMQ 4
differs.

The suite compares every target with these answers, RabbitMQ itself included, so the targets and the five clients agree as
long as it passes. Names lack the run's prefix; `*` in a generated name stands for its random part. `left_out.py` lists
what a client cannot express.
"""


def refused(code, name, text):
    return {"code": code, "text": f"{name} - {text}"}


def closing_channel(answer):
    """The answer to a request on its own connection, where only the channel is closed."""
    return answer | {"closed": "channel"}


def not_found(text):
    return refused(404, "NOT_FOUND", text)


def no_queue(name):
    return not_found(f"no queue '{name}' in vhost '/'")


def no_exchange(name):
    return not_found(f"no exchange '{name}' in vhost '/'")


def failed(text):
    return refused(406, "PRECONDITION_FAILED", text)


def inequivalent(argument, what, difference):
    return failed(f"inequivalent arg '{argument}' for {what} in vhost '/': {difference}")


def access_refused(text):
    return refused(403, "ACCESS_REFUSED", text)


def locked(queue):
    return refused(
        405,
        "RESOURCE_LOCKED",
        f"cannot obtain exclusive access to locked queue '{queue}' in vhost '/'. It could be originally declared on "
        "another connection or the exclusive property value does not match that of the original declaration.",
    )


def unknown_tag(tag):
    return failed(f"unknown delivery tag {tag}")


ACCEPTED = "accepted"
DEFAULT_EXCHANGE = access_refused("operation not permitted on the default exchange")
IN_EXCLUSIVE_USE = access_refused("queue 'q' in vhost '/' in exclusive use")
TRUE_NOT_FALSE = "received 'true' but current is 'false'"
FIVE = ["1", "2", "3", "4", "5"]
MEBIBYTE = 1 << 20

CONNECTING = {
    "connect": {
        "capabilities": {
            "publisher_confirms": True,
            "exchange_exchange_bindings": True,
            "basic.nack": True,
            "consumer_cancel_notify": True,
            "connection.blocked": True,
            "consumer_priorities": True,
            "authentication_failure_close": True,
            "per_consumer_qos": True,
            "direct_reply_to": True,
        },
        "properties": ["capabilities", "cluster_name", "copyright", "information", "platform", "product", "version"],
        "channel_max": 2047,
        "frame_max": 131072,
        "heartbeat": 60,
    },
    "wrong_password": access_refused(
        "Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
    ),
    "wrong_vhost": refused(530, "NOT_ALLOWED", "vhost nowhere not found"),
    "heartbeat_two_seconds": {"heartbeat": 2, "alive": True},
    "frame_max_4096": {"frame_max": 4096, "intact": [0, 1, 4088, 4089, MEBIBYTE]},
    "frame_max_131072": {"frame_max": 131072, "intact": [0, 1, 131064, 131065, MEBIBYTE]},
    "many_channels": {"channels": 500, "own_messages": 500},
    "ten_connections": {"stored": 1000, "in_order": 10},
}

EXCHANGES = {
    "default_exchange": {"received": ["by name"]},
    "predeclared_exchanges": {"received": ["amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"]},
    "direct_exchange": {"received": ["red", "green", "green after unbind"]},
    "fanout_exchange": {"first": ["1", "2"], "second": ["1", "2"]},
    "topic_exchange": {
        "*.orange.*": ["quick.orange.rabbit", "lazy.orange.elephant"],
        "*.*.rabbit": ["quick.orange.rabbit"],
        "lazy.#": ["lazy.orange.elephant", "lazy.brown.fox", "lazy"],
        "#": [
            "quick.orange.rabbit",
            "lazy.orange.elephant",
            "lazy.brown.fox",
            "lazy",
            "orange",
            "a.b",
            "a.x.y.b",
            "quick.orange.male.rabbit",
            "",
        ],
        # The empty routing key has no words, so `*` does not match it.
        "*": ["lazy", "orange"],
        "#.orange.#": ["quick.orange.rabbit", "lazy.orange.elephant", "orange", "quick.orange.male.rabbit"],
        "a.#.b": ["a.b", "a.x.y.b"],
        "": [""],
        "lazy": ["lazy"],
    },
    "headers_exchange": {
        "all": ["both"],
        "any": ["both", "colour"],
        "unsaid": ["both"],
        "present": ["both", "colour", "other"],
    },
    "exchange_to_exchange": {"received": ["bound"]},
    "alternate_exchange": {"known": ["known"], "unknown": ["unknown"], "returned": ["nowhere"]},
}

CONTENT = {
    "properties": {
        "content_type": "text/plain",
        "content_encoding": "identity",
        "headers": {"animal": "hare"},
        "delivery_mode": 2,
        "priority": 5,
        "correlation_id": "correlation",
        "reply_to": "reply",
        "expiration": "60000",
        "message_id": "message",
        "timestamp": 1_700_000_000,
        "type": "greeting",
        "user_id": "guest",
        "app_id": "scenarios",
        "cluster_id": "cluster",
        "body": "häre",
        "exchange": "",
        "routing_key": "q",
        "redelivered": False,
    },
    "header_values": {
        "true": True,
        "false": False,
        "byte": -8,
        "short": -300,
        "int": -100_000,
        "long": 1 << 40,
        "float": 0.5,
        "double": 1.1,
        "decimal": "1.25",
        "text": "häre",
        "empty": "",
        "binary": "0001ff",
        "timestamp": 1_700_000_000,
        "void": None,
        "list": [1, "two", True, None, [3]],
        "table": {"inner": {"deep": 7}},
    },
    "body_sizes": {"intact": [0, 1, 4088, 4089, 131_064, 131_065, MEBIBYTE, 16 * MEBIBYTE]},
}

PUBLISHING = {
    "confirms": {"acked": 1000, "nacked": 0, "stored": 1000, "in_order": True},
    "mandatory_return": {"events": ["return 312 NO_ROUTE returned", "ack", "ack", "ack"], "received": ["kept"]},
    "immediate": refused(540, "NOT_IMPLEMENTED", "immediate=true"),
    "tx_commit": {"before": 0, "after": ["1", "2"]},
    "tx_rollback": {"after_rollback": 0, "back": [["kept", True]]},
    "tx_refused": {
        "confirm_then_tx": failed("cannot switch from confirm to tx mode"),
        "tx_then_confirm": failed("cannot switch from tx to confirm mode"),
        "commit_without_select": failed("channel is not transactional"),
        "rollback_without_select": failed("channel is not transactional"),
    },
}

CONSUMING = {
    "get": {
        "empty": True,
        # Delivery tag, body, redelivered, messages left.
        "got": [[1, "1", False, 2], [2, "2", False, 1], [3, "3", False, 0]],
        "key_intact": True,
        "left": 0,
    },
    "consume_and_ack": {"bodies": FIVE, "tags": [1, 2, 3, 4, 5], "redelivered": [False] * 5, "left": 0},
    "consume_without_ack": {"bodies": FIVE, "left": 0},
    "prefetch_per_consumer": {"first": 3, "ready": 7, "after_ack": 4, "ready_after_ack": 6},
    "prefetch_of_later_consumers_only": {"earlier_ready": 0, "later_ready": 3},
    "prefetch_global": {"delivered": 3, "ready": 7},
    "cancel": {"bodies": ["before"], "ready": 1, "consumers": 0},
    "server_cancel": {"cancelled": ["watcher"], "channel_open": True},
    "consumer_priority": {"high": ["1", "2", "3"], "low": ["4", "5"]},
    "exclusive_consumer": {"second": IN_EXCLUSIVE_USE, "exclusive_second": IN_EXCLUSIVE_USE},
    "duplicate_consumer_tag": refused(530, "NOT_ALLOWED", "attempt to reuse consumer tag 'twice'"),
    "requeue_on_close": {
        "after_channel": [["1", True], ["2", True], ["3", True]],
        "after_connection": [["1", True], ["2", True], ["3", True]],
    },
}

SETTLING = {
    "ack_multiple": {"back": [["4", True], ["5", True]]},
    "ack_all_outstanding": {"left": 0},
    "nack_requeue_order": {"all": [[body, True] for body in FIVE], "middle": [["2", True], ["4", True]]},
    "nack_drops": {"back": [["4", True], ["5", True]]},
    "reject": {"back": [["2", True]]},
    "recover": {"back": [[body, True] for body in FIVE]},
    "recover_without_requeue": refused(540, "NOT_IMPLEMENTED", "requeue=false"),
    "unknown_delivery_tag": {
        "ack": unknown_tag(5),
        "ack_multiple": unknown_tag(5),
        "nack": unknown_tag(5),
        "reject": unknown_tag(5),
        "twice": unknown_tag(1),
    },
}

QUEUES = {
    "server_named_queue": {
        "name": "amq.gen-*",
        "received": ["bound"],
        "purged": 2,
        "deleted": 1,
        "on_another_channel": not_found("no previously declared queue"),
    },
    "exclusive_queue": {
        "declare": locked("q"),
        "passive": locked("q"),
        "bind": locked("q"),
        "get": locked("q"),
        "consume": locked("q"),
        "purge": locked("q"),
        "delete": locked("q"),
        "received": ["publishing is open to all"],
        "after_close": no_queue("q"),
        "redeclared": True,
    },
    "auto_delete_queue": {"after_get": 0, "after_first_cancel": 0, "after_last_cancel": no_queue("q")},
    "auto_delete_exchange": {"after_first_unbind": ACCEPTED, "after_last_unbind": no_exchange("e")},
    "passive_declare": {
        "messages": 1,
        "consumers": 1,
        "other_flags": ACCEPTED,
        "queue": no_queue("missing"),
        "exchange": no_exchange("missing"),
    },
    "purge_and_delete_counts": {"purged": 3, "deleted": 2, "missing": 0},
    "if_unused_if_empty": {
        "exchange_in_use": failed("exchange 'e' in vhost '/' in use"),
        "queue_not_empty": failed("queue 'q' in vhost '/' not empty"),
        "queue_in_use": failed("queue 'q' in vhost '/' in use"),
        "queue_gone": no_queue("q"),
        "exchange_gone": no_exchange("e"),
    },
}

REFUSALS = {
    "redeclare": {
        "same": ACCEPTED,
        "durable": inequivalent("durable", "queue 'q'", TRUE_NOT_FALSE),
        "auto_delete": inequivalent("auto_delete", "queue 'q'", TRUE_NOT_FALSE),
        "exclusive": locked("q"),
        "exchange_same": ACCEPTED,
        "exchange_type": inequivalent("type", "exchange 'e'", "received 'fanout' but current is 'direct'"),
        "exchange_durable": inequivalent("durable", "exchange 'e'", TRUE_NOT_FALSE),
        "exchange_auto_delete": inequivalent("auto_delete", "exchange 'e'", TRUE_NOT_FALSE),
        "exchange_internal": inequivalent("internal", "exchange 'e'", TRUE_NOT_FALSE),
    },
    "redeclare_with_arguments": {
        "same": ACCEPTED,
        "added": inequivalent(
            "x-message-ttl", "queue 'plain'", "received the value '60000' of type 'signedint' but current is none"
        ),
        "missing": inequivalent(
            "x-message-ttl", "queue 'limited'", "received none but current is the value '60000' of type 'signedint'"
        ),
        "different": inequivalent("x-message-ttl", "queue 'limited'", "received '50000' but current is '60000'"),
        "unknown": ACCEPTED,
    },
    "missing_queues_and_exchanges": {
        "get": no_queue("missing"),
        "consume": no_queue("missing"),
        "purge": no_queue("missing"),
        "bind_missing_queue": no_queue("missing"),
        "bind_missing_exchange": no_exchange("missing"),
        "bind_missing_source": no_exchange("missing"),
        "bind_missing_destination": no_exchange("missing"),
        "publish": no_exchange("missing"),
        "delete_queue": ACCEPTED,
        "delete_exchange": ACCEPTED,
        "unbind": ACCEPTED,
        "no_last_queue": not_found("no previously declared queue"),
    },
    "reserved_names": {
        "queue": access_refused("queue name 'amq.mine' contains reserved prefix 'amq.*'"),
        "exchange": access_refused("exchange name 'amq.mine' contains reserved prefix 'amq.*'"),
        "passive": no_queue("amq.mine"),
        "delete": access_refused("deletion of system exchange 'amq.direct' in vhost '/' not allowed"),
        "redeclare": ACCEPTED,
        "redeclare_otherwise": inequivalent(
            "type", "exchange 'amq.direct'", "received 'fanout' but current is 'direct'"
        ),
    },
    "default_exchange_is_fixed": dict.fromkeys(
        ["declare", "passive", "delete", "bind", "unbind", "source", "destination"], DEFAULT_EXCHANGE
    ),
    "internal_exchange": {"publish": access_refused("cannot publish to internal exchange 'e' in vhost '/'")},
    "unknown_exchange_type": refused(503, "COMMAND_INVALID", "unknown exchange type 'no-such-type'"),
    "pipelined_after_an_error": {"refused": no_exchange("missing"), "stored": 0},
}


def letter(queue, reason, key, exchange="", body="body", **more):
    """A message that was published to `queue` and then dead-lettered; `more` is added to the x-death entry."""
    death = {"count": 1, "reason": reason, "queue": queue, "exchange": "", "routing-keys": [queue], **more}
    first = {"x-first-death-exchange": "", "x-first-death-queue": queue, "x-first-death-reason": reason}
    headers = {"x-death": [death], **first}
    return {"body": body, "exchange": exchange, "routing_key": key, "expiration": None, "headers": headers}


def with_headers(message, **headers):
    return {**message, "headers": {**message["headers"], **headers}}


def copied(queue):
    """A copy made by CC, unchanged."""
    headers = {"CC": ["copied"], "mine": "kept"}
    return {"body": "body", "exchange": "", "routing_key": queue, "expiration": None, "headers": headers}


BOTH_KEYS = {"routing-keys": ["renamed", "copied"]}

RETENTION = {
    "message_ttl": {"gone": [0, 0, 0, 0], "to_consumer": ["somebody waits"]},
    "queue_expires": no_queue("q"),
    "max_length_drops_the_head": {"outcomes": [["ack"] * 4, ["ack"] * 4], "few": ["3", "4"], "small": []},
    "max_length_rejects": {
        "outcomes": [["ack", "ack", "nack", "nack"]] * 2,
        "silent": ["1", "2"],
        "telling": ["1", "2"],
        "letters": [letter("telling", "maxlen", "dead", body="3"), letter("telling", "maxlen", "dead", body="4")],
    },
    "dead_letters": {
        "rejected": letter("rejected", "rejected", "rejected", "e"),
        "expired": letter("expired", "expired", "expired", "e", **{"original-expiration": "20"}),
        "maxlen": letter("maxlen", "maxlen", "new", "e"),
    },
    "dead_letters_and_copies": {
        # A dead-letter routing key replaces all routing keys, so CC is removed.
        "renamed": [
            copied("renamed"),
            with_headers(letter("renamed", "rejected", "dead", **BOTH_KEYS), mine="kept"),
        ],
        "kept": [
            copied("kept"),
            with_headers(
                letter("kept", "rejected", "kept", **{"routing-keys": ["kept", "copied"]}), CC=["copied"], mine="kept"
            ),
        ],
    },
    "dead_letter_cycles": {
        "dropped": [0, 0],
        "rejected": letter("self", "rejected", "self", body="rejected over and over", count=3),
    },
    "priorities": {"order": ["5", "9", "3", "1", "1", "0", "0", "last"]},
    "single_active_consumer": {"first": ["1", "2", "3"], "second": ["4"]},
    "quorum_queue": {
        "seen": [[False, 0], [True, 1]],
        "letter": letter("q", "delivery_limit", "dead"),
        "transient": failed("invalid property 'non-durable' for queue 'transient' in vhost '/'"),
    },
}

NO_REPLIES = closing_channel(failed("fast reply consumer does not exist"))
CC_SHOWN = {"CC": ["cc", "to"], "mine": "kept"}

REPLIES = {
    "direct_reply_to": {
        "pattern": True,
        "found": [0, 1, True],
        "bodies": ["reply", "counts as unroutable"],
        "returned": True,
        "exchange": "",
        "key_is_secret": True,
        **dict.fromkeys(["get", "bind", "after_cancel"], closing_channel(no_queue("SECRET"))),
    },
    "direct_reply_to_refused": {
        "acknowledging": closing_channel(failed("reply consumer cannot acknowledge")),
        "twice": closing_channel(failed("reply consumer already set")),
        "without_consumer": NO_REPLIES,
        "after_cancel": NO_REPLIES,
        "declare": ACCEPTED,
        "declare_secret": closing_channel(no_queue("amq.rabbitmq.reply-to.guessed")),
        "get": closing_channel(no_queue("amq.rabbitmq.reply-to")),
    },
    "copies": {
        **{queue: ["body", "to", CC_SHOWN] for queue in ["to", "cc", "bcc"]},
        "left": [[], [], []],
        "no_array": failed('invalid message: {unacceptable_type_in_header,"CC",longstr}'),
    },
    "judged_properties": {
        "user_id": failed("user_id property set to 'somebody' but authenticated user was 'guest'"),
        "own_user_id": ACCEPTED,
        "expiration_of_words": failed("invalid expiration 'soon': no_integer"),
        "expiration_empty": failed("invalid expiration '': no_integer"),
        "expiration_negative": failed("invalid expiration '-1': {value_negative,-1}"),
        "expiration_with_unit": failed("invalid expiration '5s': {leftover_string,\"s\"}"),
    },
    "through_an_internal_exchange": {"received": ["through both"]},
    "channel_flow": {"active": True, "inactive": refused(540, "NOT_IMPLEMENTED", "active=false")},
    "update_secret": {"still_open": True},
}

DETAILS = {
    "headers_matching": {
        "present": ["red", "red of size 1", "blue", "void"],
        "all": ["red", "red of size 1"],
        "all-with-x": ["red of size 1"],
        "any": ["red", "red of size 1"],
        "any-with-x": ["red", "red of size 1", "size 1"],
        "nothing to match all": ["red", "red of size 1", "size 1", "blue", "void", "none"],
        "nothing to match any": [],
        "wrong": failed('Invalid x-match field value <<"some">>; expected all, any, all-with-x, or any-with-x'),
        "of a wrong type": failed("Invalid x-match field type signedint (value 5); expected longstr"),
    },
    # The broker chooses which queue gets which key; that the choice is stable, and the proportions, are checked.
    "consistent_hash_exchange": {
        "each_once": True,
        "same_key_same_queue": True,
        "three_times_as_many": True,
        "after_unbind": [0, 400],
        "weight": failed('The binding key must be an integer: <<"heavy">>'),
        "negative": failed("The binding key must be greater than 0"),
        "type": inequivalent("type", "exchange 'e'", "received 'direct' but current is ''x-consistent-hash''"),
        "two_ways": failed("hash-header and hash-property are mutually exclusive"),
        "property": failed("Unsupported property: odd"),
    },
    "consistent_hash_of_headers_and_properties": dict.fromkeys(
        ["header", "property"], {"all": 200, "together": True, "spread": True}
    ),
    "circles": {"received": ["once round"], "returned": ["by nobody", "alternate is missing"]},
    "auto_delete_source": {"bound": ACCEPTED, "unbound": no_exchange("source")},
    # The server resolves the empty queue name before it checks the consumer tag.
    "reused_tag_without_a_queue": not_found("no previously declared queue"),
    "tags_of_get_and_deliver": {"tags": [1, 2, 3], "on_another_channel": 1},
    "prefetch_does_not_limit": {"get": ["1", "2"], "unlimited": 5, "automatic": 0},
    "prefetch_raised": {"left": [4, 2, 0], "bodies": FIVE},
    "requeue_into_a_full_queue": {"counted": 2, "left": ["2", "3"]},
    "names": {
        "stripped": True,
        "received": ["found"],
        "longest": True,
        "exchange": ACCEPTED,
        "exchange_stripped": ACCEPTED,
    },
    "cancel_of_an_unknown_tag": ACCEPTED,
    "no_wait_errors": {
        "declare": inequivalent("durable", "queue 'q'", TRUE_NOT_FALSE),
        "bind": no_exchange("missing"),
    },
    "tx_returns": {"before": [], "with_commit": ["returned"]},
}

EXPECTED = (
    CONNECTING
    | EXCHANGES
    | CONTENT
    | PUBLISHING
    | CONSUMING
    | SETTLING
    | QUEUES
    | REFUSALS
    | RETENTION
    | REPLIES
    | DETAILS
)
