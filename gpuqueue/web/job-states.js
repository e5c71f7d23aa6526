// What the states of a job mean for the page.

/** @param {string} state */
export const isEnd = (state) => ["succeeded", "failed", "cancelled", "lost"].includes(state);

/** @param {string} state */
export const isActive = (state) => ["starting", "running", "cancelling"].includes(state);
