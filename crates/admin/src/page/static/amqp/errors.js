/** An error with a text for people; `code` is AMQP's reply code (404, …) where the server gave one. */
export class AmqpError extends Error {
  constructor(message, code) {
    super(message);
    this.name = "AmqpError";
    this.code = code;
  }
}

/** A promise together with what settles it. */
export function deferred() {
  const result = {};
  result.promise = new Promise((resolve, reject) => Object.assign(result, { resolve, reject }));
  // A rejection that nobody waits for is no error.
  result.promise.catch(() => {});
  return result;
}

/** Calls a function of the page's; its errors are its own and end no connection. */
export function tell(callback, value) {
  try {
    callback?.(value);
  } catch (error) {
    reportError(error);
  }
}
