'use strict';

/** A body whose every part differs, so that a lost or swapped frame shows. */
function patterned(size) {
  const body = Buffer.alloc(Math.ceil(size / 4) * 4);
  for (let at = 0; at < body.length; at += 4) body.writeUInt32BE(at / 4, at);
  return body.subarray(0, size);
}

module.exports = { patterned };
