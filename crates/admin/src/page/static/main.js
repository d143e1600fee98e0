// The page: connects, publishes, and shows what arrives.

import { Connection } from "/page/amqp/connection.js";

/** Maximum messages in the list; older ones are removed. */
const MOST_SHOWN = 100;
/** Maximum characters of a message that are shown. */
const MOST_TEXT = 4_000;
/** Prefetch of the page's consumer. */
const PREFETCH = 20;

const element = (id) => document.getElementById(id);
const forms = { connect: element("connect"), publish: element("publish"), receive: element("receive") };

/** While connected: the connection, the publishing channel (a promise, opened on demand) and the consuming channel. */
let session = null;
let connecting = false;
/** Messages since the list was cleared. */
let received = 0;

fillInAddress();
showSession();
forms.connect.addEventListener("submit", handled(connectOrDisconnect));
forms.publish.addEventListener("submit", handled(publish));
forms.receive.addEventListener("submit", handled(receive));
element("clear-button").addEventListener("click", clearMessages);

/** Fills in this server's WebSocket URL, unless the user has typed one already. */
async function fillInAddress() {
  const field = forms.connect.elements.url;
  const { ws, wss } = await (await fetch("/page/listeners.json")).json();
  // Pages loaded over TLS may only open WebSockets over TLS.
  const secure = location.protocol === "https:" || ws === null;
  const port = secure ? wss : ws;
  if (port === null) {
    show("connection", "bad", `This server has no ${secure ? "wss" : "ws"} listener on a TCP port.`);
  } else if (field.value === "") {
    field.value = `${secure ? "wss" : "ws"}://${location.hostname}:${port}/`;
  }
}

async function connectOrDisconnect() {
  if (connecting) return;
  if (session) return await session.connection.close();
  connecting = true;
  await connect();
  connecting = false;
}

async function connect() {
  const { url, user, password, vhost } = values(forms.connect);
  show("connection", "wait", "Connecting…");
  try {
    const connection = await Connection.open(url, { user, password, vhost, name: "Leveret's page" });
    session = { connection, user, vhost, publisher: null, receiver: null };
    connection.closed.then(ended);
    connection.onblocked = (reason) =>
      reason === null ? showConnected() : show("connection", "wait", `The server has blocked publishing: ${reason}.`);
    showConnected();
    showSession();
  } catch (error) {
    show("connection", "bad", words(error));
    return;
  }
  await receive();
}

function ended(error) {
  session = null;
  showSession();
  show("publish", "off", "");
  show("receive", "off", "");
  if (error === null) show("connection", "off", "Not connected.");
  else show("connection", "bad", words(error));
}

async function publish() {
  const { exchange, key, body } = values(forms.publish);
  show("publish", "wait", "Publishing…");
  const since = performance.now();
  const current = session;
  try {
    // An error, such as a missing exchange, closes the channel; the next message opens a new one.
    const channel = await (current.publisher ??= openPublisher(current));
    const properties = { contentType: "text/plain", timestamp: new Date() };
    const { tag, returned } = await channel.publish(exchange, key, body, { mandatory: true, properties });
    const milliseconds = Math.round(performance.now() - since);
    if (returned) show("publish", "wait", `Confirmed (no. ${tag}), but not routed: ${returned.text}.`);
    else show("publish", "good", `Confirmed (no. ${tag}) after ${milliseconds} ms.`);
  } catch (error) {
    // If the connection has closed, the connection's own status line says so.
    if (session === current) show("publish", "bad", words(error));
  }
}

async function openPublisher(current) {
  const channel = await current.connection.openChannel();
  channel.closed.then(() => (current.publisher = null));
  await channel.confirmSelect();
  return channel;
}

/** Declares an exclusive queue, binds it, and shows its messages; replaces the previous one, which is deleted with its consumer. */
async function receive() {
  const { exchange, pattern } = values(forms.receive);
  const current = session;
  show("receive", "wait", "Declaring a queue…");
  try {
    const channel = await current.connection.openChannel();
    await channel.prefetch(PREFETCH);
    const { queue } = await channel.declareQueue("", { exclusive: true, autoDelete: true });
    await channel.bindQueue(queue, exchange, pattern);
    const oncancel = () => show("receive", "bad", `Queue ${queue} was deleted.`);
    await channel.consume(queue, (message) => take(channel, message), { oncancel });
    await current.receiver?.close();
    current.receiver = channel;
    channel.closed.then((error) => error && session === current && show("receive", "bad", words(error)));
    show("receive", "good", `Receiving ${exchange} → ${pattern} by queue ${queue}.`);
  } catch (error) {
    if (session === current) show("receive", "bad", words(error));
  }
}

function take(channel, message) {
  const item = document.createElement("li");
  const from = part("div", "from");
  from.append(part("span", "key", `${message.exchange || "(no exchange)"} → ${message.routingKey}`));
  from.append(part("time", "when", new Date().toLocaleTimeString()));
  const text = message.text();
  const shown = text === null ? `(${message.body.length} bytes that are no text)` : text.slice(0, MOST_TEXT);
  item.append(from, part("p", "body", shown + (text?.length > MOST_TEXT ? "…" : "")));
  const list = element("messages");
  list.prepend(item);
  while (list.children.length > MOST_SHOWN) list.lastElementChild.remove();
  received += 1;
  showCount();
  channel.ack(message);
}

function clearMessages() {
  element("messages").replaceChildren();
  received = 0;
  showCount();
}

function showCount() {
  element("message-count").textContent = String(received);
  element("no-messages").hidden = received > 0;
}

function showConnected() {
  const { product = "a server", version = "" } = session.connection.serverProperties;
  const where = `virtual host ${session.vhost} of ${product} ${version}`.trim();
  show("connection", "good", `Connected as ${session.user} to ${where}.`);
}

/** Enables the controls that need a connection, or those that open one. */
function showSession() {
  const connected = session !== null;
  element("connect-button").textContent = connected ? "Disconnect" : "Connect";
  forms.connect.querySelector("fieldset").disabled = connected;
  for (const form of [forms.publish, forms.receive]) form.querySelector("fieldset").disabled = !connected;
}

function show(what, state, text) {
  const line = element(`${what}-state`);
  line.dataset.state = state;
  line.textContent = text;
}

/** Formats an error for display. */
function words(error) {
  if (error.code === 403 && error.message.includes("Login was refused")) {
    return "The server refused the login: wrong user name or password.";
  }
  return error.code ? `Server error: ${error.message} (${error.code}).` : error.message;
}

/** An event handler that prevents the form's default submission. */
function handled(action) {
  return (event) => {
    event.preventDefault();
    action();
  };
}

function values(form) {
  return Object.fromEntries(new FormData(form));
}

function part(name, className, text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}
