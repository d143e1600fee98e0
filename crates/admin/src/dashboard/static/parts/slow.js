// Lists that the server does not page: they are fetched on demand, not every few seconds.

/**
 * Makes `refresh` of a list do something only for the first time, when its pages are turned, and after its new method
 * `changed`, which also refreshes the view. Returns the list.
 */
export function slowly(list, refreshNow) {
  const read = list.refresh;
  let isDue = true;
  list.element.addEventListener("refresh", () => (isDue = true));
  list.refresh = async (signal) => {
    if (!isDue) return;
    // A change during the read makes it due again.
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
