<?php

// php-amqplib with the loop of its README's chapter "Connection recovery": each exception that it names is followed by a new
// connection.

require_once 'PhpAmqpLib/autoload.php';

use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Exception\AMQPIOException;

const WAIT_BEFORE_RECONNECT_uS = 500000;
const READ_WRITE_SECONDS = 130.0;

[, $uri, $queue, $pause] = $argv;

// A broken socket is an exception, as in PHP's frameworks.
set_error_handler(function ($severity, $message, $file, $line) {
    if (error_reporting() & $severity) {
        throw new ErrorException($message, 0, $severity, $file, $line);
    }
    return false;
});

function report(array $what)
{
    fwrite(STDOUT, json_encode($what) . "\n");
}

function connect(string $uri)
{
    $parts = parse_url($uri);
    return new AMQPStreamConnection(
        $parts['host'],
        $parts['port'],
        $parts['user'],
        $parts['pass'],
        '/',
        read_write_timeout: READ_WRITE_SECONDS
    );
}

function cleanup_connection($connection)
{
    try {
        if ($connection !== null) {
            $connection->close();
        }
    } catch (\Exception $e) {
        // It might be closed already.
    }
}

function with_recovery(string $uri, callable $work)
{
    $connection = null;
    while (true) {
        try {
            $connection = connect($uri);
            $work($connection);
        } catch (AMQPIOException | \RuntimeException | \ErrorException $e) {
            report(['lost' => get_class($e), 'error' => $e->getMessage()]);
            cleanup_connection($connection);
            $connection = null;
            usleep(WAIT_BEFORE_RECONNECT_uS);
        }
    }
}
