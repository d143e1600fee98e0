/** An error for display; `code` is AMQP's reply code (404, …) if the server sent one. */
export class AmqpError extends Error {
  constructor(message, code) {
    super(message);
    this.name = "AmqpError";
    this.code = code;
  }
}

/** A promise with its resolve and reject functions. */
export function deferred() {
  const result = {};
  result.promise = new Promise((resolve, reject) => Object.assign(result, { resolve, reject }));
  // An unobserved rejection is not an error.
  result.promise.catch(() => {});
  return result;
}

/** Calls a callback of the page; its exceptions do not close the connection. */
export function tell(callback, value) {
  try {
    callback?.(value);
  } catch (error) {
    reportError(error);
  }
}
