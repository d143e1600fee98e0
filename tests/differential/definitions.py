"""What both brokers are started with: users and policies, which programs meet by the names that they use.

The names of a run end in `_q0` to `_q9` and `_e0` to `_e9`. `src/users.rs` names the users of a program's connections."""

from harness.definitions import operator_policy, permission, policy, topic_permission, user

# Shorter than the wait of a program (`src/run.rs`), longer than all of its steps take.
SHORT_MILLISECONDS = 2000
LONG_MILLISECONDS = 600_000

DEFINITIONS = {
    "rabbit_version": "3.10.8",
    "vhosts": [{"name": "/"}],
    "users": [user("guest", "administrator"), user("limited"), user("topical"), user("masked", "impersonator")],
    "permissions": [
        permission("guest", "/", ".*", ".*", ".*"),
        # q0 and e0: everything; 1: configure; 2: write; 3: read.
        permission(
            "limited",
            "/",
            configure="_[qe][014]$|^amq\\.gen-",
            write="_[qe][02]$|^amq\\.(gen-|default$|topic$|rabbitmq\\.reply-to)",
            read="_[qe][03]$|^amq\\.(gen-|topic$|rabbitmq\\.reply-to)",
        ),
        permission("topical", "/", ".*", ".*", ".*"),
        permission("masked", "/", configure="^$", write="_|^amq\\.default$", read=".*"),
    ],
    "topic_permissions": [
        topic_permission("topical", "amq.topic", "_q[01]", "_q[02]"),
        topic_permission("limited", "amq.topic", "_q2", ""),
    ],
    "policies": [
        policy("letters", "_q5$", {"max-length": 3, "dead-letter-exchange": "amq.direct"}, "queues", 1),
        policy("less important", "_q5$", {"max-length": 1, "overflow": "reject-publish"}, "queues", 0),
        policy(
            "long",
            "_q6$",
            {
                "message-ttl": LONG_MILLISECONDS,
                "expires": LONG_MILLISECONDS,
                "dead-letter-exchange": "amq.direct",
                "dead-letter-routing-key": "nowhere",
                "delivery-limit": 1,
            },
            "all",
        ),
        policy("full", "_q7$", {"max-length": 1, "overflow": "reject-publish"}, "queues"),
        policy("short", "_q8$", {"message-ttl": SHORT_MILLISECONDS, "dead-letter-exchange": "amq.direct"}),
        policy("expiring", "_q9$", {"expires": SHORT_MILLISECONDS, "message-ttl": 0}),
        policy("alternate", "_e5$", {"alternate-exchange": "amq.direct"}, "exchanges"),
        policy("missing alternate", "_e6$", {"alternate-exchange": "missing"}),
        policy("not of exchanges", "_e7$", {"alternate-exchange": "amq.direct"}, "queues"),
    ],
    "parameters": [
        operator_policy("cap", "_q[56]$", {"max-length": 2}),
        operator_policy("small", "_q7$", {"max-length-bytes": 40, "message-ttl": LONG_MILLISECONDS}),
    ],
}
