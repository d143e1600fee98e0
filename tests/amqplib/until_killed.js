// Publishes numbered persistent messages with confirms until the connection breaks, and prints what was confirmed.
// Arguments: URI, queue, how many may be unconfirmed at a time.
'use strict';

const amqp = require('amqplib');

async function main([uri, queue, window]) {
  const connection = await amqp.connect(uri);
  const broken = new Promise((resolve) => connection.on('error', resolve).on('close', resolve));
  const channel = await connection.createConfirmChannel();
  channel.on('error', () => {});
  const confirmed = [];
  let sent = 0;
  const fill = () => {
    while (sent - confirmed.length < Number(window)) {
      const number = sent++;
      const done = (error) => {
        if (error) return;
        confirmed.push(number);
        fill();
      };
      const body = Buffer.from(`${number}:`.padEnd(200 + (number % 7) * 300, 'x'));
      channel.publish('', queue, body, { persistent: true, messageId: String(number) }, done);
    }
  };
  fill();
  console.log('publishing');
  await broken;
  console.log(JSON.stringify({ sent, confirmed }));
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
