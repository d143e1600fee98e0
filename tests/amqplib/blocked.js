// Publishes one message and prints why it has to wait. Started with the URI by blackbox/alarms.py.
'use strict';

const amqp = require('amqplib');

async function main(uri) {
  const connection = await amqp.connect(uri);
  connection.on('error', () => {});
  connection.on('blocked', (reason) => {
    console.log(reason);
    // A blocked connection is not read, so its goodbye would wait as well.
    process.exit(0);
  });
  const channel = await connection.createChannel();
  channel.publish('', 'nowhere', Buffer.from('x'));
}

main(process.argv[2]);
