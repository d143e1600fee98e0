// Columns that several lists have: counts and message rates of the API.

import { count, rate, rateOf } from "../format.js";

/** A column with a count of the API. */
export function countColumn(title, key, group) {
  return { title, sort: key, group, number: true, text: (each) => count(each[key]) };
}

/** A column with the rate of a counter of `message_stats`, in messages per second. */
export function rateColumn(title, counter) {
  const sort = `message_stats.${counter}_details.rate`;
  return { title, sort, group: "Message rates", number: true, text: (each) => rate(rateOf(each.message_stats, counter)) };
}
