<?php

require __DIR__ . '/connection.php';

use PhpAmqpLib\Message\AMQPMessage;

const PREFETCH = 20;
const PAUSED_uS = 50000;

with_recovery($uri, function ($connection) use ($queue, $pause) {
    $channel = $connection->channel();
    $channel->queue_declare($queue, false, true, false, false);
    $channel->basic_qos(0, PREFETCH, false);
    $channel->basic_consume($queue, '', false, false, false, false, function (AMQPMessage $message) use ($pause) {
        while (file_exists($pause)) {
            usleep(PAUSED_uS);
            clearstatcache();
        }
        $message->ack();
        report(['received' => (int) $message->body]);
    });
    while ($channel->is_consuming()) {
        $channel->wait();
    }
});
