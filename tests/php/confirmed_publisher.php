<?php

// Publishes what each line of standard input asks for, and answers it once all of that is confirmed: harness/publishers.py.

require_once 'PhpAmqpLib/autoload.php';

use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Message\AMQPMessage;

// As that of the tests that start this (harness/patience.py).
define('PATIENCE_SECONDS', (int) (getenv('LEVERET_PATIENCE') ?: 180));

try {
    $parts = parse_url($argv[1]);
    $connection = new AMQPStreamConnection(
        $parts['host'],
        $parts['port'],
        $parts['user'],
        $parts['pass'],
        '/',
        read_write_timeout: PATIENCE_SECONDS
    );
    $channel = $connection->channel();
    $channel->confirm_select();
    echo "connected\n";
    while (($line = fgets(STDIN)) !== false) {
        [$exchange, $key, $from, $to, $user] = explode("\t", rtrim($line, "\n"));
        $properties = ['delivery_mode' => AMQPMessage::DELIVERY_MODE_PERSISTENT];
        if ($user !== '') {
            $properties['user_id'] = $user;
        }
        for ($number = (int) $from; $number < (int) $to; $number++) {
            $channel->basic_publish(new AMQPMessage((string) $number, $properties), $exchange, $key);
        }
        $channel->wait_for_pending_acks(PATIENCE_SECONDS);
        echo "confirmed\n";
    }
    $connection->close();
} catch (\Exception $problem) {
    echo 'failed ' . get_class($problem) . ': ' . str_replace("\n", ' ', $problem->getMessage()) . "\n";
    exit(1);
}
