// AMQP 0-9-1 data types (specification, section 4.2) with RabbitMQ's field types
// (<https://www.rabbitmq.com/amqp-0-9-1-errata>): a Writer and a Reader.

const text = { encode: new TextEncoder(), decode: new TextDecoder() };

/** A growing byte buffer. */
export class Writer {
  #bytes = new Uint8Array(128);
  #view = new DataView(this.#bytes.buffer);
  #length = 0;

  /** The bytes written so far. */
  finish() {
    return this.#bytes.slice(0, this.#length);
  }

  octet(value) {
    this.#put("Uint8", 1, value);
  }

  short(value) {
    this.#put("Uint16", 2, value);
  }

  long(value) {
    this.#put("Uint32", 4, value);
  }

  longlong(value) {
    this.#put("BigUint64", 8, BigInt(value));
  }

  bytes(value) {
    // Reserve space first, because that may replace the buffer.
    const start = this.#advance(value.length);
    this.#bytes.set(value, start);
  }

  /** At most 255 bytes of text. */
  shortstr(value) {
    const encoded = text.encode.encode(value);
    if (encoded.length > 255) throw new RangeError(`longer than 255 bytes: ${value.slice(0, 40)}…`);
    this.octet(encoded.length);
    this.bytes(encoded);
  }

  /** Any number of bytes, or text. */
  longstr(value) {
    const encoded = typeof value === "string" ? text.encode.encode(value) : value;
    this.long(encoded.length);
    this.bytes(encoded);
  }

  table(value) {
    this.#prefixedWithLength(() => {
      for (const [name, field] of Object.entries(value)) {
        this.shortstr(name);
        this.field(field);
      }
    });
  }

  /** A value with its type. Numbers without a fraction are integers. */
  field(value) {
    if (value === null || value === undefined) {
      this.#tag("V");
    } else if (typeof value === "boolean") {
      this.#tag("t");
      this.octet(value ? 1 : 0);
    } else if (typeof value === "string") {
      this.#tag("S");
      this.longstr(value);
    } else if (typeof value === "bigint" || typeof value === "number") {
      this.#number(value);
    } else if (value instanceof Uint8Array) {
      this.#tag("x");
      this.longstr(value);
    } else if (value instanceof Date) {
      this.#tag("T");
      this.longlong(seconds(value));
    } else if (Array.isArray(value)) {
      this.#tag("A");
      this.#prefixedWithLength(() => value.forEach((item) => this.field(item)));
    } else {
      this.#tag("F");
      this.table(value);
    }
  }

  #number(value) {
    if (typeof value === "number" && !Number.isSafeInteger(value)) {
      this.#tag("d");
      this.#put("Float64", 8, value);
    } else if (value >= -(2 ** 31) && value < 2 ** 31) {
      this.#tag("I");
      this.#put("Int32", 4, Number(value));
    } else {
      this.#tag("l");
      this.#put("BigInt64", 8, BigInt(value));
    }
  }

  /** Writes a number of a DataView type, such as "Uint8". */
  #put(type, size, value) {
    // Reserve space first, because that may replace the view.
    const start = this.#advance(size);
    this.#view[`set${type}`](start, value);
  }

  #tag(letter) {
    this.octet(letter.charCodeAt(0));
  }

  #prefixedWithLength(write) {
    const prefix = this.#advance(4);
    write();
    this.#view.setUint32(prefix, this.#length - prefix - 4);
  }

  /** Reserves space; returns its offset. */
  #advance(count) {
    const start = this.#length;
    this.#length += count;
    if (this.#length > this.#bytes.length) {
      const larger = new Uint8Array(Math.max(2 * this.#bytes.length, this.#length));
      larger.set(this.#bytes);
      this.#bytes = larger;
      this.#view = new DataView(larger.buffer);
    }
    return start;
  }
}

/** Reads bytes in order; reading past the end throws a RangeError. */
export class Reader {
  #bytes;
  #view;
  #position = 0;

  constructor(bytes) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  }

  octet() {
    return this.#view.getUint8(this.#advance(1));
  }

  short() {
    return this.#view.getUint16(this.#advance(2));
  }

  long() {
    return this.#view.getUint32(this.#advance(4));
  }

  /** Exact up to 2^53, which no delivery tag or body comes near. */
  longlong() {
    return Number(this.#view.getBigUint64(this.#advance(8)));
  }

  bytes(count) {
    const start = this.#advance(count);
    return this.#bytes.subarray(start, start + count);
  }

  shortstr() {
    return text.decode.decode(this.bytes(this.octet()));
  }

  longstr() {
    return text.decode.decode(this.bytes(this.long()));
  }

  table() {
    const inner = new Reader(this.bytes(this.long()));
    const entries = [];
    while (!inner.isAtEnd()) entries.push([inner.shortstr(), inner.field()]);
    // fromEntries defines own properties, so a field named __proto__ is an ordinary field.
    return Object.fromEntries(entries);
  }

  field() {
    const type = String.fromCharCode(this.octet());
    const read = FIELDS[type];
    if (!read) throw new RangeError(`unknown field type '${type}'`);
    return read(this);
  }

  isAtEnd() {
    return this.#position === this.#bytes.length;
  }

  /** Skips bytes; returns their offset. */
  #advance(count) {
    const start = this.#position;
    if (start + count > this.#bytes.length) throw new RangeError("the frame ends too early");
    this.#position += count;
    return start;
  }

  /** A number of a DataView type, such as "Int8". */
  number(type, size) {
    return this.#view[`get${type}`](this.#advance(size));
  }
}

/** Readers of the field types. */
const FIELDS = {
  t: (reader) => reader.octet() !== 0,
  b: (reader) => reader.number("Int8", 1),
  B: (reader) => reader.octet(),
  s: (reader) => reader.number("Int16", 2),
  u: (reader) => reader.short(),
  I: (reader) => reader.number("Int32", 4),
  i: (reader) => reader.long(),
  l: (reader) => exact(reader.number("BigInt64", 8)),
  f: (reader) => reader.number("Float32", 4),
  d: (reader) => reader.number("Float64", 8),
  // A decimal: the number of digits after the point, then all digits.
  D: (reader) => {
    const scale = reader.octet();
    return reader.number("Int32", 4) / 10 ** scale;
  },
  S: (reader) => reader.longstr(),
  x: (reader) => reader.bytes(reader.long()).slice(),
  A: (reader) => {
    const inner = new Reader(reader.bytes(reader.long()));
    const items = [];
    while (!inner.isAtEnd()) items.push(inner.field());
    return items;
  },
  T: (reader) => new Date(reader.longlong() * 1000),
  F: (reader) => reader.table(),
  V: () => null,
};

/** A number if that is lossless, otherwise a BigInt. */
function exact(value) {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}

/** AMQP's timestamps: whole seconds since 1970. */
export function seconds(date) {
  return Math.floor(date.getTime() / 1000);
}
