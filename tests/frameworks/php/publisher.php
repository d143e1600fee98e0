<?php

require __DIR__ . '/connection.php';

use PhpAmqpLib\Message\AMQPMessage;

const WINDOW = 10;
const PAUSE_uS = 100000;

$next = 0;
// What is published and not confirmed yet, by number; published again on the next connection.
$unconfirmed = [];

with_recovery($uri, function ($connection) use ($queue, &$next, &$unconfirmed) {
    $channel = $connection->channel();
    $channel->set_ack_handler(function (AMQPMessage $message) use (&$unconfirmed) {
        unset($unconfirmed[(int) $message->body]);
        report(['confirmed' => (int) $message->body]);
    });
    $channel->confirm_select();
    $channel->queue_declare($queue, false, true, false, false);
    while (true) {
        while (count($unconfirmed) < WINDOW) {
            $unconfirmed[$next++] = true;
        }
        foreach (array_keys($unconfirmed) as $number) {
            $properties = ['delivery_mode' => AMQPMessage::DELIVERY_MODE_PERSISTENT];
            $channel->basic_publish(new AMQPMessage((string) $number, $properties), '', $queue);
        }
        $channel->wait_for_pending_acks();
        usleep(PAUSE_uS);
    }
});
