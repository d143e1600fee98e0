// AMQP 0-9-1 frames (specification, section 4.2.3).

export const METHOD = 1;
export const HEADER = 2;
export const BODY = 3;
export const HEARTBEAT = 8;

/** Bytes around the payload: type, channel and length before it, the frame end after it. */
export const OVERHEAD = 8;

/** The protocol header, which a client sends first: AMQP 0-9-1. */
export const PROTOCOL_HEADER = Uint8Array.of(0x41, 0x4d, 0x51, 0x50, 0, 0, 9, 1);

const HEAD = 7;
const END = 0xce;

export function frame(type, channel, payload) {
  const bytes = new Uint8Array(payload.length + OVERHEAD);
  const view = new DataView(bytes.buffer);
  view.setUint8(0, type);
  view.setUint16(1, channel);
  view.setUint32(3, payload.length);
  bytes.set(payload, HEAD);
  bytes[bytes.length - 1] = END;
  return bytes;
}

/**
 * Splits bytes into frames. Leveret sends whole frames in each WebSocket message; a gateway that forwards a TCP
 * stream may cut anywhere, so incomplete frames are buffered.
 */
export class FrameParser {
  /** The maximum frame size in bytes; the negotiated one after tuning. */
  frameMax = 131072;
  #rest = new Uint8Array(0);

  /** The frames that these bytes complete. Throws a RangeError for an invalid frame. */
  *push(bytes) {
    let buffer = bytes;
    if (this.#rest.length) {
      buffer = new Uint8Array(this.#rest.length + bytes.length);
      buffer.set(this.#rest);
      buffer.set(bytes, this.#rest.length);
    }
    let start = 0;
    for (;;) {
      const end = start + this.#length(buffer, start);
      if (!(end <= buffer.length)) break;
      if (buffer[end - 1] !== END) throw new RangeError("the server sent a frame without an end");
      const view = new DataView(buffer.buffer, buffer.byteOffset + start, HEAD);
      const payload = buffer.subarray(start + HEAD, end - 1);
      start = end;
      yield { type: view.getUint8(0), channel: view.getUint16(1), payload };
    }
    this.#rest = buffer.slice(start);
  }

  /** The length of the frame at `start`; NaN if its header is incomplete. */
  #length(buffer, start) {
    if (buffer.length - start < HEAD) return NaN;
    const view = new DataView(buffer.buffer, buffer.byteOffset + start, HEAD);
    if (![METHOD, HEADER, BODY, HEARTBEAT].includes(view.getUint8(0))) {
      throw new RangeError("the server does not speak AMQP 0-9-1");
    }
    const length = view.getUint32(3) + OVERHEAD;
    if (length > this.frameMax) throw new RangeError(`the server sent a frame of ${length} bytes`);
    return length;
  }
}
