// Lists that the server does not page: they are fetched on demand, not every few seconds.

/**
 * Limits `refresh` of a list to the first time, page changes, and calls of its new method `changed`, which also
 * refreshes the view. Returns the list.
 */
export function slowly(list, refreshNow) {
  const read = list.refresh;
  let isDue = true;
  list.element.addEventListener("refresh", () => (isDue = true));
  list.refresh = async (signal) => {
    if (!isDue) return;
    // A change during the request makes it due again.
    isDue = false;
    try {
      await read(signal);
    } catch (error) {
      isDue = true;
      throw error;
    }
  };
  list.changed = () => {
    isDue = true;
    refreshNow();
  };
  return list;
}
