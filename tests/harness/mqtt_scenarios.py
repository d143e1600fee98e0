"""The expected results of tests/websocket/mqtt_scenarios.mjs and mqtt5_scenarios.mjs, in Node and in a browser."""

MQTT_311 = {
    "every_quality": {
        "0": {"granted": [0], "payload": "at 0", "came": 0, "retain": False},
        "1": {"granted": [1], "payload": "at 1", "came": 1, "retain": False},
        "2": {"granted": [2], "payload": "at 2", "came": 2, "retain": False},
    },
    "wildcards": {"seen": ["a/b", "deep", "deep/1", "deep/1/2"], "after": ["deep/3"]},
    "retained": {"payload": "2", "retain": True, "live": {"payload": "3", "retain": False}, "left": []},
    "will": {"topic": "mortal", "payload": "gone"},
    "kept_session": {"present": [False, True, False], "payloads": list("0123456789"), "left": []},
    "takeover": {"outcome": "closed", "payload": "still here"},
    # 4: bad user name or password.
    "refusals": {"password": 4, "vhost": 4, "named": "let in"},
    "order_and_size": {"inOrder": 500, "same": True},
    "keep_alive": {"cmd": "pingresp"},
    "reconnecting": {"payload": "after"},
}

# Where RabbitMQ 3.10 differs (docs/compatibility.md).
RABBITMQ_311 = {
    "every_quality": {**MQTT_311["every_quality"], "2": {"granted": [1], "payload": "at 2", "came": 1, "retain": False}},
}
# Over WebSocket, RabbitMQ 3.10 closes before its CONNACK is read, and publishes the will of a client that sent DISCONNECT.
RABBITMQ_311_WEB = {
    "refusals": {"password": "closed", "vhost": "closed", "named": "let in"},
    "will": {"topic": "polite", "payload": "gone"},
}

MQTT_5 = {
    "properties": {
        "contentType": "application/json",
        "responseTopic": "answers/me",
        "correlationData": list("\u00ff\0".encode()),
        "payloadFormatIndicator": True,
        "expires": True,
        "userProperties": {"a": ["1", "2"], "b": "3"},
    },
    # 16: no subscribers. 17: no such subscription. 134: bad user name or password.
    "reason_codes": {"puback": 16, "pubrec": 16, "unsuback": [17], "wrong": 134},
    "topic_aliases": {"seen": ["a", "b", "a", "b", "a"], "offered": True},
    "receive_maximum": {"inOrder": 20},
    "shared_subscriptions": {"each": 20, "all": 20, "both": True},
    "subscription_options": {"unasked": [], "payload": "kept", "retain": True, "identifiers": [7], "live": True},
    "session_expiry": {"present": [False, True, False]},
    # 142: session taken over.
    "takeover_is_told": {"reasonCode": 142},
    "maximum_packet_size": {"payload": "small"},
    "will_delay": {"order": ["before resumed", "before ended", "ended"]},
    "request_and_response": {"payload": "!", "id": "7"},
    "assigned_name": {"given": True},
}

# Why a pool differs, by scenario (docs/compatibility.md).
IN_FRONT_OF_AN_UPSTREAM = {
    "reason_codes": "a client is not told whether anybody has subscribed",
}


def of_311(kind, transport="tcp"):
    """The expected results of MQTT 3.1.1 clients for a kind of server."""
    if kind != "rabbitmq":
        return MQTT_311
    return {**MQTT_311, **RABBITMQ_311, **(RABBITMQ_311_WEB if transport == "web" else {})}
