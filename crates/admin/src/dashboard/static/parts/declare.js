// Declaring a queue or an exchange.

import { ApiError } from "../api.js";

/** As RabbitMQ, the API gives no more than this as the reason, whatever was refused. */
const REFUSED = "Access refused.";
const RESERVED = 'Names that begin with "amq." are reserved.';
const NO_PERMISSION =
  "Access refused: your permissions do not cover this name, or its dead letter exchange or alternate exchange.";

/** Declares what the path names; the error for a refused name says why it is refused. */
export async function declare(api, path, body) {
  try {
    await api.put(path, body);
  } catch (error) {
    if (error.message !== REFUSED) throw error;
    throw new ApiError(error.status, path.at(-1).startsWith("amq.") ? RESERVED : NO_PERMISSION);
  }
}
